"""EinDecomp's costs of grids, and the grids of all groups that minimize them.

The costs bound what moves between groups with different grids. Plans are chosen by
counted elements; these grids are candidates.

Source: EinDecomp (Bourgeois et al.), costs of joins, aggregations and repartitions, and
dynamic programming over them. The paper prints the consumer's bound in the repartition
where the producer's belongs, and 256 for a join for which its formula has 512.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feinsum.distributed.elimination import Table, least_sum
from feinsum.distributed.grids import by_first_use, most_within
from feinsum.distributed.groups import Access, Group

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
