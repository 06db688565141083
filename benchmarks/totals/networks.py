"""Contractions of many tensors, and of tensors with many axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from benchmarks.totals.calls import Array, Calls, draw_uniform

__all__ = ["LETTERS", "get_symbol", "run_chain", "run_high_rank", "run_network"]

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The indices that numpy and torch support."""
WINDOW = 8
"""Largest distance of linked tensors in a network.

Otherwise the cheapest contraction of a hundred tensors would need all memory there is.
"""


def get_symbol(k: int) -> str:
    """Return the name of an index; those beyond the letters are as in opt_einsum."""
    return LETTERS[k] if k < len(LETTERS) else chr(k + 140)


def run_chain(n: int) -> Calls:
    """Multiply a number of matrices with small random extents."""
    rng = Random(n)
    links = [(k, k + 1) for k in range(n)]
    extents = [rng.randint(2, 20) for _ in range(n + 1)]
    yield _make_call(links, (0, n), extents)


def run_network(n: int) -> Calls:
    """Contract a network of about three links for each tensor.

    Each tensor is linked to the next one, and to another one nearby.
    """
    rng = Random(n)
    pairs = [(k, k + 1) for k in range(n - 1)]
    free = list(range(n))
    while len(free) > 1:
        first = free.pop(0)
        near = [k for k in free if first + 1 < k <= first + WINDOW]
        if near:
            second = rng.choice(near)
            free.remove(second)
            pairs.append((first, second))
    tensors: list[list[int]] = [[] for _ in range(n)]
    for index, pair in enumerate(pairs):
        for tensor in pair:
            tensors[tensor].append(index)
    for axes in tensors:
        rng.shuffle(axes)
    yield _make_call(tensors, (), [rng.randint(2, 4) for _ in pairs])


def run_high_rank(n_shared: int, times: int) -> Calls:
    """Contract tensors of ranks 15 and 13 with 9 shared indices, or smaller ones."""
    first = list(range(n_shared + 6))
    second = list(range(6, n_shared + 10))
    output = [*range(6), *range(n_shared + 6, n_shared + 10)]
    Random(0).shuffle(first)
    Random(1).shuffle(second)
    call = _make_call([first, second], output, [2] * (n_shared + 10))
    for _ in range(times):
        yield call


def _make_call(
    terms: Sequence[Sequence[int]], output: Sequence[int], extents: Sequence[int]
) -> tuple[str, tuple[Array, ...]]:
    """Make a call whose entries are scaled so that products are near 1."""
    rng = np.random.default_rng(len(terms))
    arrays = []
    for term in terms:
        shape = tuple(extents[index] for index in term)
        n_summed = prod(extents[index] for index in term if index not in output)
        arrays.append(draw_uniform(rng, shape) / n_summed**0.5)
    inputs = ",".join("".join(map(get_symbol, term)) for term in terms)
    return f"{inputs}->{''.join(map(get_symbol, output))}", tuple(arrays)
