"""The order in which an einsum is contracted pairwise, and what each step costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from typing import TypeAlias

from feinsum.paths.postorders import path_of
from feinsum.paths.search import Path, find_path

_OPTIMAL_UP_TO = 8

IndexList: TypeAlias = tuple[str, ...]
Subset: TypeAlias = tuple[int, ...]
"""Operand positions, ascending."""


@dataclass(frozen=True)
class Step:
    """A contraction to the product of the operands at these positions, and its cost."""

    operands: Subset
    n_operations: int


@lru_cache(maxsize=1024)
def contraction_steps(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
) -> tuple[Step, ...]:
    """The steps that evaluate one row with the fewest operations.

    Args:
        inputs: index names of each operand.
        output: index names of the result.
        extents: index names and extents, which decide on the cheapest order.

    Returns:
        First the sum of each operand over its private indices, then one step
        less than there are operands.
    """
    costs = _Costs(inputs, output, dict(extents))
    sums = [Step((p,), costs.of_sum(p)) for p in range(len(inputs))]
    pairs = _order(costs)
    return *sums, *(Step(join(*pair), costs.of_step(*pair)) for pair in pairs)


@lru_cache(maxsize=1024)
def pairwise_path(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
) -> Path:
    """The same order as positions in a list: each product goes to its end.

    >>> extents = (("x", 3), ("r", 3), ("e", 8), ("i", 20), ("j", 20))
    >>> pairwise_path((tuple("xre"), tuple("rij"), tuple("ej")), tuple("xei"), extents)
    ((1, 2), (0, 1))
    """
    order = _order(_Costs(inputs, output, dict(extents)))
    return path_of(order, len(inputs))


def _order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    if len(costs.inputs) <= _OPTIMAL_UP_TO:
        return _optimal_order(costs)
    return _greedy_order(costs)


@dataclass(frozen=True)
class _Costs:
    """Costs of contractions, for subsets of the operand positions."""

    inputs: tuple[IndexList, ...]
    output: IndexList
    extent: Mapping[str, int]

    def indices(self, subset: Subset) -> frozenset[str]:
        """Indices of the product of a subset, after all sums that can be done."""
        inside = frozenset(i for p in subset for i in self.inputs[p])
        others = set(range(len(self.inputs))) - set(subset)
        return inside & {*self.output, *(i for p in others for i in self.inputs[p])}

    def size(self, indices: Iterable[str]) -> int:
        return prod(self.extent[index] for index in indices)

    def of_sum(self, position: int) -> int:
        """Additions of summing an operand over its private indices."""
        before = self.size(set(self.inputs[position]))
        return max(before - self.size(self.indices((position,))), 0)

    def of_step(self, left: Subset, right: Subset) -> int:
        """Operations of multiplying two intermediate results and summing."""
        together = self.indices(left) | self.indices(right)
        n_products = self.size(together)
        return n_products + max(
            n_products - self.size(self.indices(join(left, right))), 0
        )


def join(left: Subset, right: Subset) -> Subset:
    return tuple(sorted((*left, *right)))


def _optimal_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    """The pairwise order of lowest cost, by dynamic programming over subsets.

    Complexity: 3**n for n operands.
    """

    @cache
    def best(subset: Subset) -> tuple[int, tuple[tuple[Subset, Subset], ...]]:
        first, *others = subset
        if not others:
            return 0, ()
        candidates = []
        for n_others in range(len(others)):
            for chosen in combinations(others, n_others):
                left = (first, *chosen)
                right = tuple(p for p in others if p not in chosen)
                (left_cost, left_order), (right_cost, right_order) = map(
                    best, (left, right)
                )
                cost = left_cost + right_cost + costs.of_step(left, right)
                order = (*left_order, *right_order, (left, right))
                candidates.append((cost, order))
        return min(candidates)

    return best(tuple(range(len(costs.inputs))))[1]


def _greedy_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    """The greedy order of :func:`feinsum.paths.find_path`."""
    subsets: list[Subset] = [(p,) for p in range(len(costs.inputs))]
    terms = [costs.indices(subset) for subset in subsets]
    path = find_path(terms, costs.output, costs.extent, method="greedy")
    order = []
    for step in path:
        left, right = (subsets.pop(p) for p in sorted(step, reverse=True))
        order.append((left, right))
        subsets.append(join(left, right))
    return tuple(order)
