"""Orders and fusions: the minimum traffic of an einsum of several operands.

A product of many operands is computed in steps that multiply operands or products of
earlier steps. The bound of a single step over all operands is not valid: the chain
``ij,jk,kl->il`` takes far less work and far fewer bytes in two products.

Intermediates may stay in the fast memory. So several steps together move at least all
operands and results, and the traffic of each step beyond its own arrays::

    bytes >= compulsory + sum(max(0, bound of a step - all its arrays, each once))

A step of more than two factors is a fusion: it recomputes an intermediate wherever it
needs it. Products without a sum, as in MTTKRP, are always fused, because their factors
have fewer entries. The bound is the minimum over the considered orders and fusions. It
covers neither others nor algorithms like Strassen's.

Source: Ziogas et al., *Deinsum*, sections IV-C and IV-E, where intermediates are always
stored and sums are never fused; its total is ``stored_bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    certify_all,
    survey_statements,
)
from feinsum.bounds.soap import SoapStatement
from feinsum.contraction.paths import PathMethod, find_path, list_partitions

ALL_UP_TO = 4
"""Most operands for which all orders and fusions are considered."""
METHODS: tuple[PathMethod, ...] = ("auto", "size", "greedy")
"""The searches that propose orders for more operands."""
MOST_FACTORS = 4
"""Most factors of a fusion, if not all fusions are considered."""

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
        """Bytes of all its arrays, each once."""
        # rounded up, so that the excess, which is added to a bound, is rounded down
        return ceil(self.statement.compulsory_bytes)

    @cached_property
    def n_bytes(self) -> int:
        """The traffic if all its arrays are read from or written to the slow memory."""
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
    """The order and the fusions that move the fewest bytes between two memories.

    Attributes:
        compulsory_bytes: bytes of all operands and results of the einsum.
        steps: the products, in order.
    """

    compulsory_bytes: int
    steps: tuple[BoundedProduct, ...]

    @cached_property
    def n_bytes(self) -> int:
        """The minimum traffic, if intermediates may stay in the fast memory."""
        return self.compulsory_bytes + sum(step.excess_bytes for step in self.steps)

    @cached_property
    def stored_bytes(self) -> int:
        """The minimum traffic if every intermediate is stored and read again."""
        return max(self.compulsory_bytes, sum(step.n_bytes for step in self.steps))


def bound_paths(factors: Factors, memories: Sequence[FastMemory]) -> list[PathBound]:
    """Find the best order for each memory among those considered."""
    all_operands = tuple(range(factors.einsum.n_operands))
    partitions: dict[Positions, list[Blocks]] = {all_operands: [(all_operands,)]}
    if len(all_operands) > 1:
        partitions = _list_considered(factors)
    groups = list(
        dict.fromkeys(b for partition in partitions.values() for b in partition)
    )
    statements = [factors.statement(blocks) for blocks in groups]
    # estimates choose the steps; only the chosen ones get certificates, which are slow
    surveys = dict(zip(groups, survey_statements(statements, memories), strict=True))
    chosen = [
        _find_cheapest(all_operands, partitions, _estimate_costs(surveys, k))[1]
        for k in range(len(memories))
    ]
    needed = list(
        dict.fromkeys(blocks for blocks_of_path in chosen for blocks in blocks_of_path)
    )
    proofs = certify_all([surveys[blocks] for blocks in needed], memories)
    steps = dict(zip(needed, proofs, strict=True))
    return [
        PathBound(
            factors.compulsory_bytes,
            tuple(
                BoundedProduct(blocks, steps[blocks][k]) for blocks in blocks_of_path
            ),
        )
        for k, blocks_of_path in enumerate(chosen)
    ]


def count_fewest_steps(factors: Factors) -> int:
    """Return the fewest multiply-adds of any order considered, of several operands."""
    all_operands = tuple(range(factors.einsum.n_operands))
    partitions = _list_considered(factors)
    every = {blocks for splits in partitions.values() for blocks in splits}
    steps: dict[Blocks, Costs] = {
        blocks: (factors.statement(blocks).n_points, 0) for blocks in every
    }
    (fewest, _), _ = _find_cheapest(all_operands, partitions, steps)
    return int(fewest)


def _list_considered(factors: Factors) -> dict[Positions, list[Blocks]]:
    if factors.einsum.n_operands <= ALL_UP_TO:
        return _list_all_partitions(factors)
    return _list_partitions_of_trees(factors)


def _estimate_costs(
    surveys: Mapping[Blocks, Survey], memory: int
) -> dict[Blocks, Costs]:
    """Estimate the traffic of each step, without and with its arrays."""
    costs = {}
    for blocks, survey in surveys.items():
        compulsory = exp(min(survey.problem.log_bytes, HUGE))
        moved = max(survey.estimate_bytes(memory), compulsory)
        costs[blocks] = moved - compulsory, moved
    return costs


def _find_cheapest(
    all_operands: Positions,
    partitions: Mapping[Positions, Sequence[Blocks]],
    costs: Mapping[Blocks, Costs],
) -> tuple[Costs, tuple[Blocks, ...]]:
    """Find the cheapest steps for a product; of equals, the first choice."""

    @cache
    def find(positions: Positions) -> tuple[Costs, tuple[Blocks, ...]]:
        choices: list[tuple[Costs, int, tuple[Blocks, ...]]] = []
        for blocks in partitions[positions]:
            excess, moved = costs[blocks]
            steps: tuple[Blocks, ...] = ()
            for block in blocks:
                if len(block) > 1:
                    factor_costs, factor_steps = find(block)
                    excess, moved = excess + factor_costs[0], moved + factor_costs[1]
                    steps += factor_steps
            choices.append(((excess, moved), len(choices), (*steps, blocks)))
        # by excess first; in a large memory no order has any, and the one that stores
        # least is taken
        cost, _, chosen = min(choices)
        return cost, chosen

    return find(all_operands)


def _list_all_partitions(factors: Factors) -> dict[Positions, list[Blocks]]:
    """Return all ways to split each product into two or more factors."""
    all_operands = tuple(range(factors.einsum.n_operands))
    products = [
        chosen
        for n in range(2, len(all_operands) + 1)
        for chosen in combinations(all_operands, n)
        if chosen == all_operands or _has_sum(chosen, factors)
    ]
    factor = {(p,) for p in all_operands}.union(products)
    return {
        chosen: [
            blocks
            for blocks in list_partitions(chosen)
            if len(blocks) > 1 and factor.issuperset(blocks)
        ]
        for chosen in products
    }


def _has_sum(positions: Positions, factors: Factors) -> bool:
    """Return whether a product sums over an index."""
    before = frozenset[str]().union(*(factors.indices((p,)) for p in positions))
    return any(factors.extents[i] > 1 for i in before - factors.indices(positions))


def _list_partitions_of_trees(factors: Factors) -> dict[Positions, list[Blocks]]:
    """Return the factorizations of some good orders, with fusions of their steps."""
    children: dict[Positions, list[Blocks]] = {}
    einsum = factors.einsum
    for method in METHODS:
        blocks_left: list[Positions] = [(p,) for p in range(einsum.n_operands)]
        path = find_path(einsum.inputs, einsum.output, factors.extents, method=method)
        for step in path:
            blocks = tuple(sorted(blocks_left[position] for position in step))
            blocks_left = [
                block
                for position, block in enumerate(blocks_left)
                if position not in step
            ]
            blocks_left.append(tuple(sorted(p for block in blocks for p in block)))
            factorizations = children.setdefault(blocks_left[-1], [])
            if blocks not in factorizations:
                factorizations.append(blocks)
    products = {
        node: factorizations
        for node, factorizations in children.items()
        if len(node) == einsum.n_operands or _has_sum(node, factors)
    }
    return {node: _list_fusions(node, children, set(products)) for node in products}


def _list_fusions(
    node: Positions,
    children: Mapping[Positions, Sequence[Blocks]],
    products: set[Positions],
) -> list[Blocks]:
    """Return the factorizations of a node, in which any factors may be expanded.

    Factors without a sum are always expanded.
    """
    fusions: dict[Blocks, None] = {}
    seen = set(children[node])
    pending = list(children[node])
    while pending:
        blocks = pending.pop()
        # a factor that is not a product itself has to be expanded before others may
        unmade = [b for b in blocks if len(b) > 1 and b not in products]
        if not unmade:
            fusions[blocks] = None
            if len(blocks) >= MOST_FACTORS:
                continue
        for block in unmade[:1] or blocks:
            for inner in children.get(block, ()):
                kept_blocks = [factor for factor in blocks if factor != block]
                fused = tuple(sorted([*kept_blocks, *inner]))
                if fused not in seen:
                    seen.add(fused)
                    pending.append(fused)
    return [b for b in fusions if len(b) <= MOST_FACTORS] or list(fusions)
