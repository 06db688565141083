"""All orders in which two operands or products at a time become one.

Source: Kanakagiri and Solomonik 2024 (SpTTN), sections 4.1.1 and 4.2.1, definition 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import TypeAlias

from feinsum.paths.search import Path

Operands: TypeAlias = frozenset[int]
"""Positions of the operands in a product."""
Order: TypeAlias = tuple[tuple[Operands, Operands], ...]
"""The two factors of every product, in the order in which products are made."""


def postorders(n_operands: int) -> Iterator[Order]:
    """Every order that is a depth-first postorder of a binary tree of the operands.

    >>> [path_of(order, 3) for order in postorders(3)]
    [((1, 2), (0, 1)), ((0, 1), (0, 1)), ((0, 2), (0, 1))]
    """
    memo: dict[Operands, list[Order]] = {}

    def orders(operands: Operands) -> list[Order]:
        if operands not in memo:
            memo[operands] = [*splits(operands)] if len(operands) > 1 else [()]
        return memo[operands]

    def splits(operands: Operands) -> Iterator[Order]:
        first, *others = sorted(operands)
        for size in range(len(others)):
            for chosen in combinations(others, size):
                left = frozenset({first, *chosen})
                last = ((left, operands - left),)
                for before in orders(left):
                    for after in orders(operands - left):
                        yield before + after + last
                        if before and after:
                            yield after + before + last

    if n_operands:
        yield from splits(frozenset(range(n_operands))) if n_operands > 1 else [()]


def path_of(
    order: Iterable[tuple[Iterable[int], Iterable[int]]], n_operands: int
) -> Path:
    """The order as positions among what is left; each product goes to the end."""
    left = [frozenset({k}) for k in range(n_operands)]
    path = []
    for factors in order:
        pair = [frozenset(operands) for operands in factors]
        path.append(tuple(sorted(map(left.index, pair))))
        left = [operands for operands in left if operands not in pair]
        left.append(pair[0] | pair[1])
    return tuple(path)


def order_of(path: Path, n_operands: int) -> Order:
    """The factors of every step of a path of pairs.

    >>> [[sorted(f) for f in pair] for pair in order_of(((1, 2), (0, 1)), 3)]
    [[[1], [2]], [[0], [1, 2]]]
    """
    left = [frozenset({k}) for k in range(n_operands)]
    order = []
    for first, second in path:
        order.append((left[first], left[second]))
        left = [x for at, x in enumerate(left) if at not in (first, second)]
        left.append(order[-1][0] | order[-1][1])
    return tuple(order)
