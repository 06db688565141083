"""The papers' cost models for traffic, and the grids that minimize them.

Plans are chosen by counted elements. These costs are here for fidelity and comparison:
the first measures what a process holds, the second bounds what moves.

Source: Deinsum, section IV (footprint); EinDecomp (Bourgeois et al.), costs of joins,
aggregations and repartitions, and dynamic programming over them. The paper prints the
consumer's bound in the repartition where the producer's belongs, and 256 for a join for
which its formula has 512.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feinsum.errors import PlanError
from feinsum.plans.elimination import Table, least_sum
from feinsum.plans.grids import by_first_use, most_within
from feinsum.plans.groups import Access, Group
from feinsum.plans.plan import Plan

__all__ = [
    "PAPER_COSTS",
    "aggregation",
    "cost_tables",
    "eindecomp_grids",
    "join",
    "paper_cost",
    "repartition",
    "statement_costs",
]

Floats = NDArray[np.float64]


def join(grid: ArrayLike, blocks: Sequence[ArrayLike]) -> Floats:
    """Elements of all inputs of all kernel calls: each call gets blocks of its own.

    Args:
        grid: number of parts of every index, along the last axis.
        blocks: elements in a block of each input.

    >>> float(join([4, 1, 4], [16, 16]))
    512.0
    """
    n_calls = np.prod(np.asarray(grid, float), axis=-1)
    found: Floats = n_calls * sum(np.asarray(block, float) for block in blocks)
    return found


def aggregation(grid: ArrayLike, summed: ArrayLike, block: ArrayLike) -> Floats:
    """Elements of partial results that are sent to be added.

    Args:
        grid: parts of every index.
        summed: number of parts of every summed index.
        block: elements in a block of the output.

    >>> float(aggregation([2, 2, 4], [2], 16)), float(aggregation([4, 1, 4], [1], 4))
    (128.0, 0.0)
    """
    n_calls = np.prod(np.asarray(grid, float), axis=-1)
    n_added = np.prod(np.asarray(summed, float), axis=-1)
    found: Floats = n_calls / n_added * (n_added - 1) * np.asarray(block, float)
    return found


def repartition(
    consumer: ArrayLike, producer: ArrayLike, extents: Sequence[int]
) -> Floats:
    """Elements that move if a tensor is repartitioned.

    Args:
        consumer: required number of parts of every axis, along the last axis.
        producer: existing number of parts.
        extents: of the tensor.

    >>> float(repartition([4, 1], [2, 4], [8, 8]))
    320.0
    """
    lengths = np.array(extents, float)
    blocks = [lengths / np.asarray(x, float) for x in (consumer, producer)]
    shared: Any = 1.0
    for axis in range(len(extents)):
        shared = shared * np.minimum(blocks[0][..., axis], blocks[1][..., axis])
    wanted, given = (block.prod(axis=-1) for block in blocks)
    n_blocks = lengths.prod() / wanted
    built = (wanted / shared - 1) * n_blocks * (wanted + given)
    found: Floats = built + np.where(given != shared, given * n_blocks, 0.0)
    return found


def eindecomp_grids(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> list[tuple[int, ...]]:
    """The grids of all groups that minimize EinDecomp's cost model.

    The sum over all groups is minimized exactly, by elimination. The paper does so for
    trees, and for other graphs one path after another.
    """
    if not all(extents[i] for group in groups for i in group.indices):
        return [(1,) * len(by_first_use(group)) for group in groups]
    grids = {
        group.output.tensor: most_within(n, by_first_use(group), extents)
        for group in groups
    }
    _, choice = least_sum(cost_tables(groups, extents, grids))
    return [tuple(of[choice[name]].tolist()) for name, of in grids.items()]


def cost_tables(
    groups: Sequence[Group],
    extents: Mapping[str, int],
    grids: Mapping[str, NDArray[np.int64]],
    makers: Mapping[str, Collection[str]] | None = None,
) -> list[Table]:
    """EinDecomp's costs for all choices of grids, for :func:`least_sum`.

    Args:
        grids: for each result the grids of its group, whose variable has its name; the
            columns are parts of the indices in the order of :func:`by_first_use`.
        makers: for each result those of the others whose repartitions count; by default
            all that it reads.
    """
    by_result = {group.output.tensor: group for group in groups}
    tables = []
    for name, group in by_result.items():
        indices = by_first_use(group)
        costs = statement_costs(group, indices, grids[name], extents)
        tables.append(Table((name,), costs))
        for access in group.inputs:
            maker = by_result.get(access.tensor)
            if maker and (makers is None or access.tensor in makers[name]):
                tables += _edge(maker, group, access, extents, grids)
    return tables


def statement_costs(
    group: Group,
    indices: Sequence[str],
    grids: NDArray[np.int64],
    extents: Mapping[str, int],
) -> Floats:
    """Join and aggregation of a group for each of several grids.

    Args:
        indices: what the columns of ``grids`` are parts of.
    """
    lengths = np.array([extents[i] for i in indices], float) / grids

    def block(access: Access) -> Floats:
        found: Floats = lengths[:, [indices.index(i) for i in access.indices]].prod(
            axis=1
        )
        return found

    summed = grids[:, [indices.index(i) for i in group.summed]]
    joined = join(grids, [block(access) for access in group.inputs])
    return joined + aggregation(grids, summed, block(group.output))


def _edge(
    maker: Group,
    user: Group,
    access: Access,
    extents: Mapping[str, int],
    grids: Mapping[str, NDArray[np.int64]],
) -> list[Table]:
    """Elements that pass between two groups, by the ways to cut their tensor."""
    made, used = maker.output.tensor, user.output.tensor
    given = _columns(maker, maker.output.indices, grids[made])
    wanted = _columns(user, access.indices, grids[used])
    unique, which = np.unique(given, axis=0, return_inverse=True)
    needs, of = np.unique(wanted, axis=0, return_inverse=True)
    lengths = [extents[i] for i in access.indices]
    costs = repartition(needs[None, :, :], unique[:, None, :], lengths)
    link = np.full((len(given), len(unique)), np.inf)
    link[np.arange(len(given)), which.reshape(-1)] = 0.0
    parts = f"{made} in {used}"
    return [
        Table((made, parts), link),
        Table((parts, used), costs[:, of.reshape(-1)]),
    ]


def _columns(
    group: Group, indices: Sequence[str], grids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The parts of some indices of a group."""
    order = by_first_use(group)
    return grids[:, [order.index(i) for i in indices]]


def footprint(plan: Plan) -> float:
    """Elements in the blocks of a process, summed over groups."""
    return float(sum(
        prod(plan.extents[i] / schedule.parts(i) for i in access.indices)
        for group, schedule in zip(plan.groups, plan.schedules, strict=True)
        for access in (*group.inputs, group.output)
    ))  # fmt: skip


def eindecomp(plan: Plan) -> float:
    """Join, aggregation and repartition of all groups, by parts of their indices."""
    given: dict[str, list[int]] = {}
    total = 0.0
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        indices = by_first_use(group)
        grid = np.array([[schedule.parts(i) for i in indices]], np.int64)
        total += float(statement_costs(group, indices, grid, plan.extents)[0])
        for access in group.inputs:
            wanted = [schedule.parts(i) for i in access.indices]
            if access.tensor in given:
                lengths = [plan.extents[i] for i in access.indices]
                total += float(repartition(wanted, given[access.tensor], lengths))
        given[group.output.tensor] = [schedule.parts(i) for i in group.output.indices]
    return total


PAPER_COSTS = {"footprint": footprint, "eindecomp": eindecomp}
"""Costs by name; each is a number of elements."""


def paper_cost(name: str, plan: Plan) -> float:
    """The cost of a plan by a paper's model, in elements.

    Args:
        name: one of :data:`PAPER_COSTS`.

    Raises:
        PlanError: with the rule ``named`` if there is no such cost.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> made = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> made.counts.moved, paper_cost("footprint", made), paper_cost("eindecomp", made)
    (128, 80.0, 256.0)
    """
    if name not in PAPER_COSTS:
        raise PlanError(
            f"there is no cost {name!r}; expected one of {', '.join(PAPER_COSTS)}",
            rules=("named",),
        )
    return PAPER_COSTS[name](plan)
