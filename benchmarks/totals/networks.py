"""Many tensors in one call, and tensors of many axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from benchmarks.totals.calls import Array, Calls, uniform

__all__ = ["LETTERS", "chain", "high_rank", "network", "symbol"]

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""All indices that numpy and torch have."""
WINDOW = 8
"""How far apart linked tensors of a network are at most.

Otherwise the cheapest contraction of a hundred tensors would need all memory there is.
"""


def symbol(k: int) -> str:
    """The name of an index; those beyond the letters are as in opt_einsum."""
    return LETTERS[k] if k < len(LETTERS) else chr(k + 140)


def chain(n: int) -> Calls:
    """The product of so many matrices of small random extents."""
    rng = Random(n)
    links = [(k, k + 1) for k in range(n)]
    extents = [rng.randint(2, 20) for _ in range(n + 1)]
    yield _call(links, (0, n), extents)


def network(n: int) -> Calls:
    """About three links for each tensor, all of them summed.

    Each tensor is linked to the next one, and to another one that is not far.
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
    yield _call(tensors, (), [rng.randint(2, 4) for _ in pairs])


def high_rank(n_shared: int, times: int) -> Calls:
    """Tensors of ranks 15 and 13 that share 9 indices; smaller ones share fewer."""
    first = list(range(n_shared + 6))
    second = list(range(6, n_shared + 10))
    output = [*range(6), *range(n_shared + 6, n_shared + 10)]
    Random(0).shuffle(first)
    Random(1).shuffle(second)
    call = _call([first, second], output, [2] * (n_shared + 10))
    for _ in range(times):
        yield call


def _call(
    terms: Sequence[Sequence[int]], output: Sequence[int], extents: Sequence[int]
) -> tuple[str, tuple[Array, ...]]:
    """Entries are so scaled that those of products are near 1."""
    rng = np.random.default_rng(len(terms))
    arrays = []
    for term in terms:
        shape = tuple(extents[index] for index in term)
        n_summed = prod(extents[index] for index in term if index not in output)
        arrays.append(uniform(rng, shape) / n_summed**0.5)
    inputs = ",".join("".join(map(symbol, term)) for term in terms)
    return f"{inputs}->{''.join(map(symbol, output))}", tuple(arrays)
