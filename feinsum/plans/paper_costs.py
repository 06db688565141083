"""Costs of the papers: what they take for what is moved, and the grids of the least.

Counted elements are what plans are chosen by. These are here for fidelity, and to
compare with: the first is what a process holds, the second bounds what moves.

Source: Deinsum, section IV (footprint); EinDecomp (Bourgeois et al.), costs of joins,
aggregations and repartitions, and dynamic programming over them. The paper prints the
consumer's bound in the repartition where the producer's belongs, and 256 for a join for
which its formula has 512.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        grid: parts of every index; the last axis is that of indices.
        blocks: elements in a block of each input.

    >>> float(join([4, 1, 4], [16, 16]))
    512.0
    """
    n_calls = np.prod(np.asarray(grid, float), axis=-1)
    found: Floats = n_calls * sum(np.asarray(block, float) for block in blocks)
    return found


def aggregation(grid: ArrayLike, summed: ArrayLike, block: ArrayLike) -> Floats:
    """Elements of partial results that are passed on to be added.

    Args:
        grid: parts of every index.
        summed: parts of every index that is summed.
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
    """Elements that pass if a tensor in parts is wanted in other parts.

    Args:
        consumer: wanted parts of every axis; the last axis is that of axes.
        producer: given parts.
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
    """The grids of all groups whose costs are the least by EinDecomp's model.

    The sum over all groups is minimized exactly, by elimination. The paper does so for
    trees, and takes one path after the other in other graphs.
    """
    indices = [by_first_use(group) for group in groups]
    grids = [most_within(n, of, extents) for of in indices]
    if not all(extents[i] for of in indices for i in of):
        return [(1,) * len(of) for of in indices]
    tables = [
        Table((f"m{at}",), statement_costs(group, indices[at], grids[at], extents))
        for at, group in enumerate(groups)
    ]
    makers = {group.output.tensor: at for at, group in enumerate(groups)}
    for at, group in enumerate(groups):
        for access in group.inputs:
            maker = makers.get(access.tensor)
            if maker is not None:
                output = groups[maker].output
                given = grids[maker][
                    :, [indices[maker].index(i) for i in output.indices]
                ]
                wanted = grids[at][:, [indices[at].index(i) for i in access.indices]]
                lengths = [extents[i] for i in access.indices]
                tables += _edge(maker, at, given, wanted, lengths)
    _, choice = least_sum(tables)
    return [tuple(grids[at][choice[f"m{at}"]].tolist()) for at in range(len(groups))]


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
    maker: int,
    user: int,
    given: NDArray[np.int64],
    wanted: NDArray[np.int64],
    extents: Sequence[int],
) -> list[Table]:
    """What two groups pass, by the different ways to cut the tensor between them."""
    unique, which = np.unique(given, axis=0, return_inverse=True)
    needs, of = np.unique(wanted, axis=0, return_inverse=True)
    costs = repartition(needs[None, :, :], unique[:, None, :], extents)
    link = np.full((len(given), len(unique)), np.inf)
    link[np.arange(len(given)), which.reshape(-1)] = 0.0
    parts = f"z{maker}.{user}"
    return [
        Table((f"m{maker}", parts), link),
        Table((parts, f"m{user}"), costs[:, of.reshape(-1)]),
    ]


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
    """What a paper takes for the cost of a plan, in elements.

    Args:
        name: of :data:`PAPER_COSTS`.

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
            f"no cost is named {name!r}; there are {', '.join(PAPER_COSTS)}",
            rules=("named",),
        )
    return PAPER_COSTS[name](plan)
