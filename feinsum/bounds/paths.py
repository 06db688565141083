"""Orders and fusions: the minimum traffic of an einsum of several operands.

A product of many operands is computed in steps that multiply operands or products of
earlier steps. A bound on one step over all operands is not valid: two products compute
the chain ``ij,jk,kl->il`` with far less work and far fewer bytes.

Intermediates may stay in the fast memory, so several steps together certainly move all
operands and results, and the traffic of each step beyond its own arrays::

    bytes >= compulsory + sum(max(0, bound of a step - all its arrays, each once))

A step of more than two factors is a fusion: it recomputes an intermediate wherever it
is needed. Products without a sum are always fused, as in MTTKRP, because their factors
have fewer entries. The bound is the minimum over the orders and fusions considered;
others, and algorithms like Strassen's, are not covered.

Source: Ziogas et al., *Deinsum*, sections IV-C and IV-E. There intermediates are always
stored, and sums are never fused; that sum is ``stored_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from math import ceil, exp
from typing import TypeAlias

from feinsum.bounds.factors import Factors, Positions
from feinsum.bounds.finite import (
    HUGE,
    Certificate,
    FastMemory,
    Survey,
    certified,
    surveyed,
)
from feinsum.bounds.soap import SoapStatement
from feinsum.contraction.paths import PathMethod, find_path

ALL_UP_TO = 4
"""Maximum number of operands for which all orders and fusions are considered."""
METHODS: tuple[PathMethod, ...] = ("auto", "size", "greedy")
"""How orders are found for more operands."""
MOST_FACTORS = 4
"""Maximum factors of a fusion if not all are considered."""

Blocks: TypeAlias = tuple[Positions, ...]
Costs: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class BoundedProduct:
    """A product of factors, with its bound for one memory.

    Attributes:
        results: of statements of a program: their names, which stand for the product.
    """

    blocks: Blocks
    certificate: Certificate
    results: str = ""

    @property
    def statement(self) -> SoapStatement:
        return self.certificate.statement

    @cached_property
    def compulsory_bytes(self) -> int:
        """All its arrays, each once."""
        return ceil(self.statement.compulsory_bytes)

    @cached_property
    def n_bytes(self) -> int:
        """The traffic if all its arrays come from and go to the slow memory."""
        return max(self.certificate.n_bytes, self.compulsory_bytes)

    @property
    def excess_bytes(self) -> int:
        return self.n_bytes - self.compulsory_bytes

    def __str__(self) -> str:
        if self.results:
            return self.results
        *terms, output = (access.indices for access in self.statement.accesses)
        is_compact = all(len(index) == 1 for index in self.statement.extents)
        glue = "" if is_compact else " "
        return f"{','.join(map(glue.join, terms))}->{glue.join(output)}"


@dataclass(frozen=True)
class PathBound:
    """The order and the fusions that move the least between two memories.

    Attributes:
        compulsory_bytes: of the einsum.
    """

    compulsory_bytes: int
    steps: tuple[BoundedProduct, ...]

    @cached_property
    def n_bytes(self) -> int:
        """The minimum traffic, whatever stays in the fast memory."""
        return self.compulsory_bytes + sum(step.excess_bytes for step in self.steps)

    @cached_property
    def stored_bytes(self) -> int:
        """The minimum traffic if every intermediate is stored and read again."""
        return max(self.compulsory_bytes, sum(step.n_bytes for step in self.steps))


def bound_paths(factors: Factors, memories: Sequence[FastMemory]) -> list[PathBound]:
    """Find the best order for each memory among those considered."""
    whole = tuple(range(factors.einsum.n_operands))
    partitions: dict[Positions, list[Blocks]] = {whole: [(whole,)]}
    if len(whole) > 1:
        partitions = _considered(factors)
    groups = list(
        dict.fromkeys(b for partition in partitions.values() for b in partition)
    )
    statements = [factors.statement(blocks) for blocks in groups]
    surveys = dict(zip(groups, surveyed(statements, memories), strict=True))
    chosen = [
        _cheapest(whole, partitions, _costs(surveys, k), {})[1]
        for k in range(len(memories))
    ]
    needed = list(dict.fromkeys(blocks for its in chosen for blocks in its))
    proofs = certified([surveys[blocks] for blocks in needed], memories)
    steps = dict(zip(needed, proofs, strict=True))
    return [
        PathBound(
            factors.compulsory_bytes,
            tuple(BoundedProduct(blocks, steps[blocks][k]) for blocks in its),
        )
        for k, its in enumerate(chosen)
    ]


def fewest_steps(factors: Factors) -> int:
    """Return the fewest multiply-adds of any order considered."""
    whole = tuple(range(factors.einsum.n_operands))
    if len(whole) == 1:
        return factors.statement((whole,)).n_points
    partitions = _considered(factors)

    @cache
    def fewest(positions: Positions) -> int:
        return min(
            factors.statement(blocks).n_points
            + sum(fewest(block) for block in blocks if len(block) > 1)
            for blocks in partitions[positions]
        )

    return fewest(whole)


def _considered(factors: Factors) -> dict[Positions, list[Blocks]]:
    if factors.einsum.n_operands <= ALL_UP_TO:
        return _all_partitions(factors)
    return _partitions_of_trees(factors)


def _costs(surveys: Mapping[Blocks, Survey], memory: int) -> dict[Blocks, Costs]:
    """Estimate the traffic of each step, without and with its arrays."""
    costs = {}
    for blocks, survey in surveys.items():
        compulsory = exp(min(survey.problem.log_bytes, HUGE))
        moved = max(survey.estimated_bytes(memory), compulsory)
        costs[blocks] = moved - compulsory, moved
    return costs


def _cheapest(
    positions: Positions,
    partitions: Mapping[Positions, Sequence[Blocks]],
    costs: Mapping[Blocks, Costs],
    memo: dict[Positions, tuple[Costs, tuple[Blocks, ...]]],
) -> tuple[Costs, tuple[Blocks, ...]]:
    """Find the cheapest steps to make a product; of equals, those with few factors."""
    if positions not in memo:
        choices: list[tuple[Costs, int, tuple[Blocks, ...]]] = []
        for blocks in partitions[positions]:
            excess, moved = costs[blocks]
            steps: tuple[Blocks, ...] = ()
            for block in blocks:
                if len(block) > 1:
                    more, its = _cheapest(block, partitions, costs, memo)
                    excess, moved = excess + more[0], moved + more[1]
                    steps += its
            choices.append(((excess, moved), len(choices), (*steps, blocks)))
        cost, _, chosen = min(choices)
        memo[positions] = cost, chosen
    return memo[positions]


def _all_partitions(factors: Factors) -> dict[Positions, list[Blocks]]:
    """Return all ways to split each product into two or more factors."""
    whole = tuple(range(factors.einsum.n_operands))
    products = [
        chosen
        for n in range(2, len(whole) + 1)
        for chosen in combinations(whole, n)
        if chosen == whole or _has_sum(chosen, factors)
    ]
    factor = {(p,) for p in whole}.union(products)
    return {
        chosen: [
            blocks
            for blocks in _partitions(chosen)
            if len(blocks) > 1 and factor.issuperset(blocks)
        ]
        for chosen in products
    }


def _has_sum(positions: Positions, factors: Factors) -> bool:
    """Whether making a product sums over an index."""
    before = frozenset[str]().union(*(factors.indices((p,)) for p in positions))
    return any(factors.extents[i] > 1 for i in before - factors.indices(positions))


def _partitions(positions: Positions) -> Iterator[Blocks]:
    """Yield all set partitions.

    >>> [*map(len, [list(_partitions(tuple(range(n)))) for n in range(1, 6)])]
    [1, 2, 5, 15, 52]
    """
    if not positions:
        yield ()
        return
    first, *others = positions
    for n in range(len(others) + 1):
        for chosen in combinations(others, n):
            rest = tuple(p for p in others if p not in chosen)
            for blocks in _partitions(rest):
                yield ((first, *chosen), *blocks)


def _partitions_of_trees(factors: Factors) -> dict[Positions, list[Blocks]]:
    """Build the products of some good orders, and fusions of neighbouring ones."""
    children: dict[Positions, list[Blocks]] = {}
    einsum = factors.einsum
    for method in METHODS:
        left: list[Positions] = [(p,) for p in range(einsum.n_operands)]
        path = find_path(einsum.inputs, einsum.output, factors.extents, method=method)
        for step in path:
            blocks = tuple(sorted(left[at] for at in step))
            left = [block for at, block in enumerate(left) if at not in step]
            left.append(tuple(sorted(p for block in blocks for p in block)))
            its = children.setdefault(left[-1], [])
            if blocks not in its:
                its.append(blocks)
    products = {
        node: its
        for node, its in children.items()
        if len(node) == einsum.n_operands or _has_sum(node, factors)
    }
    return {node: _fused(node, children, set(products)) for node in products}


def _fused(
    node: Positions,
    children: Mapping[Positions, Sequence[Blocks]],
    products: set[Positions],
) -> list[Blocks]:
    """Return the factorizations of a node, with any of its factors expanded.

    Products without a sum are always replaced by their factors.
    """
    fusions: dict[Blocks, None] = {}
    seen = set(children[node])
    todo = list(children[node])
    while todo:
        blocks = todo.pop()
        unmade = [b for b in blocks if len(b) > 1 and b not in products]
        if not unmade:
            fusions[blocks] = None
            if len(blocks) >= MOST_FACTORS:
                continue
        for block in unmade[:1] or blocks:
            for inner in children.get(block, ()):
                rest = [other for other in blocks if other != block]
                fused = tuple(sorted([*rest, *inner]))
                if fused not in seen:
                    seen.add(fused)
                    todo.append(fused)
    return [b for b in fusions if len(b) <= MOST_FACTORS] or list(fusions)
