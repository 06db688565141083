"""Layers of neural networks over batches of many sizes."""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Calls, draw_uniform

__all__ = ["run_attention", "run_bilinear", "run_linear"]


def run_linear(dtype: str, n_sizes: int) -> Calls:
    rng = np.random.default_rng(1)
    weights = draw_uniform(rng, (64, 32), dtype)
    for size in _draw_sizes(rng, n_sizes):
        yield "bi,oi->bo", (draw_uniform(rng, (size, 32), dtype), weights)


def run_attention(dtype: str, n_sizes: int) -> Calls:
    """Yield scores of queries and keys, and values weighted by them; without
    softmax.
    """
    rng = np.random.default_rng(2)
    for size in _draw_sizes(rng, n_sizes):
        shape = 2, 4, size // 8 + 1, 16
        queries, keys, values = (draw_uniform(rng, shape, dtype) for _ in range(3))
        scores = yield "bhqd,bhkd->bhqk", (queries, keys)
        yield "bhqk,bhkd->bhqd", (scores, values)


def run_bilinear(dtype: str, n_sizes: int) -> Calls:
    rng = np.random.default_rng(3)
    weights = draw_uniform(rng, (16, 24, 20), dtype)
    for size in _draw_sizes(rng, n_sizes):
        left, right = (
            draw_uniform(rng, (size, 16), dtype),
            draw_uniform(rng, (size, 20), dtype),
        )
        yield "bi,ijk,bk->bj", (left, weights, right)


def _draw_sizes(rng: np.random.Generator, n: int) -> list[int]:
    """Return each of 1 to n once, in random order."""
    return [int(k) + 1 for k in rng.permutation(n)]
