"""Separable costs of loop nests: their interface, and several of them.

The nest of ``ijk,ja,ka->ia`` (MTTKRP), and the composition of its cost::

    for i                                loop(i, .
      for j                                loop(j, combine(
        for k                                loop(k, loop(a, nothing)),
          for a  X[a] += T[i,j,k]*C[k,a]     crossing(X),
        for a    M[i,a] += X[a]*B[j,a]       loop(a, nothing))))

A cost is separable if the cost of a loop is a function of the cost of its body, and the
cost of consecutive loops is their sum or maximum. Then the search need not try every
nest. Both functions must be monotone in every argument.

The cost of a buffer depends on where the loops around its producer and its consumer
split, so it is added where these loops are combined. (The paper adds it to the loop
above, but it is not a function of that loop.)

Source: Kanakagiri and Solomonik 2024 (SpTTN), definitions 4.6 to 4.8, sections 4.2.3
and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple, Protocol, TypeVar

from feinsum.nests.nest import Forest, NestLoop, Orders, fuse, list_terms
from feinsum.nests.networks import FactorProduct, Network, Path, Sizes

V = TypeVar("V")


class TermGroup(NamedTuple):
    """Consecutive terms of a path, and the loops around them.

    Attributes:
        terms: the terms, in the order of the path.
        ancestors: the indices of the loops around all of them.
    """

    terms: tuple[FactorProduct, ...]
    ancestors: frozenset[str]


class Cost(Protocol[V]):
    """The quality of a nest: lower is better, and infinity means not allowed."""

    @property
    def nothing(self) -> V:
        """The cost of no loops."""

    def loop(self, group: TermGroup, index: str, body: V) -> V:
        """Return the cost of a loop over an index around all terms of a group."""

    def combine(self, first: V, second: V) -> V:
        """Return the cost of consecutive loops; must be associative."""

    def crossing(self, group: TermGroup, split: int) -> V:
        """Return the cost of buffers from the first terms of a group to the others.

        Args:
            group: all terms, with the loops around them.
            split: number of terms in the first loop.
        """

    def least(self, path: Path) -> V:
        """Return a lower bound on the cost of a path's nests, for pruning paths."""


def evaluate_cost(cost: Cost[Any], path: Path, orders: Orders) -> Any:
    """Compute the cost of one nest from its forest."""
    return _evaluate_forest(cost, path, fuse(orders), frozenset())


def _evaluate_forest(
    cost: Cost[Any], path: Path, forest: Forest, ancestors: frozenset[str]
) -> Any:
    if not forest:
        return cost.nothing
    first, *following = forest
    terms_before = list_terms(first)
    value = cost.nothing
    if isinstance(first, NestLoop):
        group = TermGroup(tuple(path[t] for t in terms_before), ancestors)
        body = _evaluate_forest(cost, path, first.body, ancestors | {first.index})
        value = cost.loop(group, first.index, body)
    if not following:
        return value
    # A buffer crosses here if its producer is in the first node and its consumer in a
    # later one: no further loop is around both.
    terms_after = [t for node in following for t in list_terms(node)]
    group = TermGroup(tuple(path[t] for t in (*terms_before, *terms_after)), ancestors)
    crossing = cost.crossing(group, len(terms_before))
    following_cost = _evaluate_forest(cost, path, tuple(following), ancestors)
    return cost.combine(cost.combine(value, crossing), following_cost)


def list_crossing_buffers(
    group: TermGroup, split: int
) -> Iterator[tuple[FactorProduct, FactorProduct]]:
    """Yield producer and consumer of each buffer from the first terms to the others."""
    producers = {term.result.inputs: term for term in group.terms[:split]}
    for consumer in group.terms[split:]:
        for tensor in (consumer.left, consumer.right):
            if tensor.inputs in producers:
                yield producers[tensor.inputs], consumer


@dataclass(frozen=True)
class IndependentLoops:
    """The negative number of dense innermost loops of single terms, with small buffers.

    A library can execute such loops by a call of BLAS. A loop counts if it is around a
    single term, and if neither it nor a loop inside it is over a sparse index.
    """

    network: Network
    max_dimension: int = 2
    nothing: float = 0.0

    def loop(self, group: TermGroup, index: str, body: float) -> float:
        # a loop around several terms cannot be part of a call of BLAS
        if len(group.terms) > 1:
            return body
        inner_indices = group.terms[0].indices - group.ancestors
        return body - inner_indices.isdisjoint(self.network.level_of)

    def combine(self, first: float, second: float) -> float:
        return first + second

    def crossing(self, group: TermGroup, split: int) -> float:
        buffers = (p.result.indices for p, _ in list_crossing_buffers(group, split))
        is_small = all(len(i - group.ancestors) <= self.max_dimension for i in buffers)
        return 0.0 if is_small else inf

    def least(self, path: Path) -> float:
        return -float(sum(len(t.indices - {*self.network.levels}) for t in path))


@dataclass(frozen=True)
class Operations:
    """Multiplications and additions; loops over nodes count with the mean fiber."""

    network: Network
    sizes: Sizes
    nothing: float = 0.0

    def loop(self, group: TermGroup, index: str, body: float) -> float:
        outer = group.ancestors | {index}
        leaves = sum(term.indices <= outer for term in group.terms)
        # a multiplication and an addition for each term whose loops are complete
        leaf_operations = 2 * self.network.n_rows * leaves
        return count_repetitions(self.network, self.sizes, group, index) * (
            leaf_operations + body
        )

    def combine(self, first: float, second: float) -> float:
        return first + second

    def crossing(self, group: TermGroup, split: int) -> float:
        return 0.0

    def least(self, path: Path) -> float:
        products = sum(count_least_products(self.network, self.sizes, t) for t in path)
        return 2 * self.network.n_rows * products


def count_repetitions(
    network: Network, sizes: Sizes, group: TermGroup, index: str
) -> float:
    """Return the mean number of iterations of a loop each time it is entered."""
    level = network.get_level(group.ancestors, index)
    return float(sizes.extents[index]) if level is None else sizes.children(level)


def count_least_products(network: Network, sizes: Sizes, term: FactorProduct) -> float:
    """Return the fewest products of a term in any nest.

    These are the nodes of the tree for the leading levels among the term's indices,
    times the extents of the other indices.
    """
    n_levels = next(
        (n for n, i in enumerate(network.levels) if i not in term.indices),
        len(network.levels),
    )
    nodes = sizes.nodes[n_levels - 1] if n_levels else 1
    other_indices = term.indices.difference(network.levels[:n_levels])
    return float(nodes * prod(sizes.extents[i] for i in other_indices))


@dataclass(frozen=True)
class Lexicographic:
    """Compare nests by a first cost, then by a second one.

    Both must be sums. A maximum discards its smaller argument, so a search by subtrees
    would not find the best nest.
    """

    first: Cost[float]
    second: Cost[float]

    @property
    def nothing(self) -> tuple[float, float]:
        return (self.first.nothing, self.second.nothing)

    def loop(
        self, group: TermGroup, index: str, body: tuple[float, float]
    ) -> tuple[float, float]:
        first = self.first.loop(group, index, body[0])
        return (first, self.second.loop(group, index, body[1]))

    def combine(
        self, first: tuple[float, float], second: tuple[float, float]
    ) -> tuple[float, float]:
        first_cost = self.first.combine(first[0], second[0])
        return (first_cost, self.second.combine(first[1], second[1]))

    def crossing(self, group: TermGroup, split: int) -> tuple[float, float]:
        first = self.first.crossing(group, split)
        return (first, self.second.crossing(group, split))

    def least(self, path: Path) -> tuple[float, float]:
        return (self.first.least(path), self.second.least(path))
