"""Loops over batches of many sizes: layers of neural networks."""

from __future__ import annotations

import numpy as np

from benchmarks.totals.calls import Calls, uniform

__all__ = ["attention", "bilinear", "linear"]


def linear(dtype: str, n_sizes: int) -> Calls:
    rng = np.random.default_rng(1)
    weights = uniform(rng, (64, 32), dtype)
    for size in _sizes(rng, n_sizes):
        yield "bi,oi->bo", (uniform(rng, (size, 32), dtype), weights)


def attention(dtype: str, n_sizes: int) -> Calls:
    """Scores of queries and keys, then values weighted by them; without softmax."""
    rng = np.random.default_rng(2)
    for size in _sizes(rng, n_sizes):
        shape = 2, 4, size // 8 + 1, 16
        queries, keys, values = (uniform(rng, shape, dtype) for _ in range(3))
        scores = yield "bhqd,bhkd->bhqk", (queries, keys)
        yield "bhqk,bhkd->bhqd", (scores, values)


def bilinear(dtype: str, n_sizes: int) -> Calls:
    rng = np.random.default_rng(3)
    weights = uniform(rng, (16, 24, 20), dtype)
    for size in _sizes(rng, n_sizes):
        left, right = uniform(rng, (size, 16), dtype), uniform(rng, (size, 20), dtype)
        yield "bi,ijk,bk->bj", (left, weights, right)


def _sizes(rng: np.random.Generator, n: int) -> list[int]:
    """Each of 1 to n once, in random order."""
    return [int(k) + 1 for k in rng.permutation(n)]
