"""Plans in which every group has a grid of its own, for the planner to compare.

Such grids can move less than any mapping of one machine to all groups, because their
blocks may be uneven, and idle processes fetch nothing. A grid has a number of parts for
each index of a group, in order of first use. Three ways to choose one, for MTTKRP
``ijk,ja,ka->ia`` with i, j, k = 512, a = 24 on 8 processes:

============ =============== ===================================================
stationary   (2, 2, 2, 1)    the largest tensor stays, the others are copied
deinsum      (2, 2, 2, 1)    tiles of the shape that the I/O lower bound prefers
footprint    (2, 2, 2, 1)    the smallest blocks of a process
============ =============== ===================================================

EinDecomp's costs (join, aggregation, repartition) bound what moves between groups with
different grids; :func:`choose_eindecomp_grids` minimizes them over all groups. Plans
are chosen by counted elements; these grids are candidates.

Source: Deinsum, section IV (tiles of its bound, smallest blocks); EinDecomp (Bourgeois
et al.), costs of joins, aggregations and repartitions, and dynamic programming over
them. The paper prints the consumer's bound in the repartition where the producer's
belongs, and 256 for a join for which its formula has 512. Ballard et al. 2018 (MTTKRP
with a stationary tensor).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import exp, log, prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feinsum.bounds import compute_intensity, make_statement
from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.boxes import Ints
from feinsum.distributed.distribution import Machine, list_ordered_factors
from feinsum.distributed.elimination import Table, least_sum
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import (
    GroupSchedule,
    derive_distribution,
    without_copies,
)

Floats: TypeAlias = NDArray[np.float64]

Grid: TypeAlias = tuple[int, ...]
"""The number of parts of each index of a group, in order of first use."""

Choose: TypeAlias = Callable[
    [Sequence[Group], Mapping[str, int], int], list[Grid] | None
]
"""The grids for groups, extents and processes; None if it does not fit them."""


MAX_GRIDS = 150
"""Number of grids of a group in EinDecomp's search.

All that up to four indices on 128 processes have.
"""


def order_by_first_use(group: Group) -> tuple[str, ...]:
    """Return the indices of a group, in order of first use in its terms."""
    used = [i for access in group.accesses for i in access.indices]
    return tuple(dict.fromkeys(used))


def make_grid_plans(plan: Plan) -> dict[str, Plan]:
    """Return plans of the same einsums on the grids of :data:`GRIDS`, by name.

    A grid that does not apply to these groups is left out.
    """
    plans = {}
    for name, choose in GRIDS.items():
        grids = choose(plan.groups, plan.extents, plan.processes)
        if grids is not None:
            pairs = zip(plan.groups, grids, strict=True)
            schedules = [schedule_on_grid(group, grid) for group, grid in pairs]
            plans[name] = with_schedules(plan, schedules, name=name)
    return plans


def schedule_on_grid(group: Group, grid: Sequence[int]) -> GroupSchedule:
    """Schedule a group on its own grid, ranks in row-major order; sums on one rank.

    Args:
        group: the group to schedule.
        grid: the number of parts of each index, in order of first use.
    """
    # axes with a single process would only lengthen the text of the machine
    used = [
        (i, p) for i, p in zip(order_by_first_use(group), grid, strict=True) if p > 1
    ]
    axes, machine = tuple(i for i, _ in used), Machine(tuple(p for _, p in used))
    result = without_copies(derive_distribution(axes, group.output, machine))
    return GroupSchedule(machine, axes, result)


# ---- all grids of some processes


def list_grids(
    n: int, indices: Sequence[str], extents: Mapping[str, int]
) -> NDArray[np.int64]:
    """Return all grids of n processes that cut no index into more parts than values."""
    grids = list_ordered_factors(n, len(indices))
    lengths = np.array([max(1, extents[i]) for i in indices], np.int64)
    return grids[(grids <= lengths).all(axis=1)]


def find_largest_grids(
    n: int, indices: Sequence[str], extents: Mapping[str, int]
) -> NDArray[np.int64]:
    """Return the grids of n processes, or of the largest number below that has any."""
    # a prime may be larger than every extent
    for processes in range(n, 0, -1):
        grids = list_grids(processes, indices, extents)
        if len(grids):
            return grids
    raise AssertionError("one process always fits")


# ---- one group at a time


def choose_deinsum_grid(group: Group, extents: Mapping[str, int], n: int) -> Grid:
    """Return the grid of Deinsum, with indices in order of first use.

    The tile of a process has the shape that the I/O lower bound prefers, clipped to the
    extents. Of all grids, this one has blocks closest to the tile, by the squared
    differences of logarithms of lengths; ties go to the grid that moves the least, then
    to the first. Products of matrices get the grids that the paper names, (2, 2, 4) for
    16 processes and (2, 4, 4) for 32, and more partial sums at 4, 32 and 256, as it
    reports.

    Source: Ziogas et al., sections II and VI-B (8 processes; 16 and 32).

    >>> mttkrp = Group((Access("X", "ijk"), Access("B", "ja"), Access("C", "ka")),
    ...                Access("M", "ia"))
    >>> choose_deinsum_grid(mttkrp, {"i": 512, "j": 512, "k": 512, "a": 24}, 8)
    (2, 2, 2, 1)
    """
    indices = order_by_first_use(group)
    if min((extents[i] for i in indices), default=0) < 1:
        return (1,) * len(indices)
    tile = _compute_tile(group, indices, extents, n)
    grids = find_largest_grids(n, indices, extents)
    lengths = np.array([extents[i] for i in indices], float)
    distances = (np.log(lengths / grids / np.array(tile)) ** 2).sum(axis=1)
    # equal but for rounding
    closest = grids[distances <= distances.min() + 1e-9]
    moved = _count_moved(group, indices, closest, extents)
    return tuple(closest[int(moved.argmin())].tolist())


def format_in_letters(group: Group, letters: Mapping[str, str]) -> str:
    """Return the subscripts of a group with a letter for each index."""
    *terms, output = ("".join(letters[i] for i in a.indices) for a in group.accesses)
    return f"{','.join(terms)}->{output}"


def _compute_tile(
    group: Group, indices: Sequence[str], extents: Mapping[str, int], n: int
) -> list[float]:
    """Return the tile of one process that attains the bound, clipped to the extents.

    The bound gives the share of the elements that each access should have. In
    logarithms, sizes of accesses are linear in the lengths of the tile.
    """
    letters = {i: chr(ord("a") + k) for k, i in enumerate(indices)}
    text = format_in_letters(group, letters)
    lengths = {letters[i]: max(2, extents[i]) for i in indices}
    intensity = compute_intensity(make_statement(text, lengths))
    pairs = zip(map(float, intensity.exponents), intensity.cover.terms, strict=True)
    # accesses with exponent 0 do not limit the reuse of a tile
    active = [(exponent, term) for exponent, term in pairs if exponent]
    total = sum(exponent for exponent, _ in active)
    matrix = np.array(
        [[float(letters[i] in term) for i in indices] for _, term in active]
    )
    shares = np.log([exponent / total for exponent, _ in active])
    longest = np.log([extents[i] for i in indices])
    log_work = longest.sum() - log(n)
    clamped: dict[int, float] = {}
    while True:
        logs = _solve_tile(matrix, shares, log_work, clamped)
        too_long = [k for k in range(len(indices)) if logs[k] > longest[k] + 1e-12]
        too_long = [k for k in too_long if k not in clamped]
        if not too_long:
            return [max(1.0, exp(x)) for x in logs]
        clamped.update((k, longest[k]) for k in too_long)


def _solve_tile(
    matrix: Floats, shares: Floats, log_work: float, clamped: Mapping[int, float]
) -> list[float]:
    """Return logarithms of the tile of a volume whose accesses have given shares.

    Of all such tiles, the one closest to a cube is chosen.

    Args:
        matrix: which accesses (rows) have which indices (columns).
        shares: logarithm of the share of each access.
        log_work: logarithm of the volume.
        clamped: logarithms of the lengths that are fixed, by column.
    """
    n = matrix.shape[1]
    logs = np.array([clamped.get(k, 0.0) for k in range(n)])
    free = [k for k in range(n) if k not in clamped]
    if free:
        right_sides = np.stack([shares - matrix @ logs, np.ones(len(shares))], axis=1)
        # lstsq returns the solution of least norm, so lengths are similar
        (begin, growth) = np.linalg.lstsq(matrix[:, free], right_sides, rcond=None)[0].T
        total = growth.sum()
        size = (log_work - logs.sum() - begin.sum()) / total if total > 1e-9 else 0.0
        logs[free] = begin + size * growth
    return [float(x) for x in logs]


def choose_footprint_grid(group: Group, extents: Mapping[str, int], n: int) -> Grid:
    """Return the grid with the fewest elements in the blocks of a process.

    This measures what a process holds, not what it moves. Ties go to the first grid.
    """
    indices = order_by_first_use(group)
    grids = find_largest_grids(n, indices, extents)
    resident: Floats = sum(_compute_block_sizes(group, indices, grids, extents))
    # equal but for rounding, whatever the order of the products
    is_least = resident <= resident.min() * (1 + 1e-12)
    return tuple(grids[int(is_least.argmax())].tolist())


def _choose_stationary_grid(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> list[Grid] | None:
    """Return the grid that moves least while the largest tensor stays in place.

    It applies to a single group whose largest tensor has three axes or more, such as
    MTTKRP, TTM and TTV. Empty blocks do not count: 9 values in 8 parts fill 5 blocks.
    """
    tensor = max(
        (access for group in groups for access in group.inputs),
        key=lambda access: prod(extents[i] for i in access.indices),
    )
    if len(groups) != 1 or len(tensor.indices) < 3:
        return None
    (group,) = groups
    grids = list_grids(n, tensor.indices, extents)
    if not len(grids):
        return None
    moved = _count_moved(group, tensor.indices, grids, extents)
    best = grids[int(moved.argmin())].tolist()
    parts_by_index = dict(zip(tensor.indices, best, strict=True))
    return [tuple(parts_by_index.get(i, 1) for i in order_by_first_use(group))]


def _count_moved(
    group: Group,
    indices: Sequence[str],
    grids: NDArray[np.int64],
    extents: Mapping[str, int],
) -> Floats:
    """Count the elements that each grid over some indices moves within a group."""
    lengths = np.array([max(1, extents[i]) for i in indices], np.int64)
    # blocks are rounded up, so that the last parts may be empty
    blocks = -(-lengths // -(-lengths // grids))
    moved = np.zeros(len(grids))
    for access in group.accesses:
        absent = [k for k, i in enumerate(indices) if i not in access.indices]
        size = prod(extents[i] for i in access.indices)
        moved += size * (blocks[:, absent].prod(axis=1) - 1.0)
    return moved


# ---- EinDecomp's costs, and the grids of all groups that minimize them


def compute_join(grid: ArrayLike, blocks: Sequence[ArrayLike]) -> Floats:
    """Count the elements of the input blocks of all kernel calls.

    Args:
        grid: number of parts of every index, along the last axis.
        blocks: elements in a block of each input.

    >>> float(compute_join([4, 1, 4], [16, 16]))
    512.0
    """
    n_calls = np.prod(np.asarray(grid, float), axis=-1)
    cost: Floats = n_calls * sum(np.asarray(block, float) for block in blocks)
    return cost


def compute_aggregation(grid: ArrayLike, summed: ArrayLike, block: ArrayLike) -> Floats:
    """Count the elements of partial results that are sent to be added.

    Args:
        grid: parts of every index.
        summed: number of parts of every summed index.
        block: elements in a block of the output.

    >>> (float(compute_aggregation([2, 2, 4], [2], 16)),
    ...  float(compute_aggregation([4, 1, 4], [1], 4)))
    (128.0, 0.0)
    """
    n_calls = np.prod(np.asarray(grid, float), axis=-1)
    n_added = np.prod(np.asarray(summed, float), axis=-1)
    cost: Floats = n_calls / n_added * (n_added - 1) * np.asarray(block, float)
    return cost


def compute_repartition(
    consumer: ArrayLike, producer: ArrayLike, extents: Sequence[int]
) -> Floats:
    """Count the elements that move when a tensor is repartitioned.

    Args:
        consumer: required number of parts of every axis, along the last axis.
        producer: existing number of parts.
        extents: of the tensor.

    >>> float(compute_repartition([4, 1], [2, 4], [8, 8]))
    320.0
    """
    lengths = np.array(extents, float)
    blocks = [lengths / np.asarray(x, float) for x in (consumer, producer)]
    shared: Any = 1.0
    for axis in range(len(extents)):
        shared = shared * np.minimum(blocks[0][..., axis], blocks[1][..., axis])
    consumed, produced = (block.prod(axis=-1) for block in blocks)
    n_blocks = lengths.prod() / consumed
    # each required block is assembled from existing ones
    assembled = (consumed / shared - 1) * n_blocks * (consumed + produced)
    cost: Floats = assembled + np.where(produced != shared, produced * n_blocks, 0.0)
    return cost


def choose_eindecomp_grids(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> list[Grid]:
    """Return the grids of all groups that minimize EinDecomp's cost model.

    The sum over all groups is minimized exactly, by elimination, over the
    :data:`MAX_GRIDS` cheapest grids of each group. The paper does so for trees, and for
    other graphs one path after another.
    """
    # an index without values has no parts, and costs divide by the parts
    if not all(extents[i] for group in groups for i in group.indices):
        return [(1,) * len(order_by_first_use(group)) for group in groups]
    grids = {}
    for group in groups:
        indices = order_by_first_use(group)
        every = find_largest_grids(n, indices, extents)
        costs = compute_statement_costs(group, indices, every, extents)
        # stable, so that equal costs give the same plan on every machine
        cheapest = np.sort(np.argsort(costs, kind="stable")[:MAX_GRIDS])
        grids[group.output.tensor] = every[cheapest]
    _, choice = least_sum(build_cost_tables(groups, extents, grids))
    return [tuple(rows[choice[name]].tolist()) for name, rows in grids.items()]


def build_cost_tables(
    groups: Sequence[Group],
    extents: Mapping[str, int],
    grids: Mapping[str, Ints],
    producers: Mapping[str, Collection[str]] | None = None,
) -> list[Table]:
    """Return EinDecomp's costs for all choices of grids, for :func:`least_sum`.

    Args:
        groups: the groups, in order.
        extents: extent of each index.
        grids: for each result the grids of its group, whose variable has its name; the
            columns are parts of the indices in the order of :func:`order_by_first_use`.
        producers: for each result, the results whose repartitions count; by default
            all that its group reads.
    """
    by_result = {group.output.tensor: group for group in groups}
    tables = []
    for name, group in by_result.items():
        indices = order_by_first_use(group)
        costs = compute_statement_costs(group, indices, grids[name], extents)
        tables.append(Table((name,), costs))
        for access in group.inputs:
            producer = by_result.get(access.tensor)
            if producer and (producers is None or access.tensor in producers[name]):
                tables += _build_repartition_tables(
                    producer, group, access, extents, grids
                )
    return tables


def compute_statement_costs(
    group: Group, indices: Sequence[str], grids: Ints, extents: Mapping[str, int]
) -> Floats:
    """Compute join plus aggregation of a group for each of several grids.

    Args:
        group: the group.
        indices: the index of each column of ``grids``.
        grids: number of parts of each index, shape (n_grids, n_indices).
        extents: extent of each index.
    """
    *inputs, output = _compute_block_sizes(group, indices, grids, extents)
    summed = grids[:, [indices.index(i) for i in group.summed]]
    return compute_join(grids, inputs) + compute_aggregation(grids, summed, output)


def _compute_block_sizes(
    group: Group, indices: Sequence[str], grids: Ints, extents: Mapping[str, int]
) -> list[Any]:
    """Return the elements in a block of each access, for each of several grids."""
    lengths = np.array([extents[i] for i in indices], float) / grids
    columns = ([indices.index(i) for i in a.indices] for a in group.accesses)
    return [lengths[:, of_access].prod(axis=1) for of_access in columns]


def _build_repartition_tables(
    producer: Group,
    consumer: Group,
    access: Access,
    extents: Mapping[str, int],
    grids: Mapping[str, Ints],
) -> list[Table]:
    """Return the tables of elements that pass between two groups, by their grids.

    Many grids cut the tensor alike. An extra variable for the distinct partitions keeps
    the tables small: one table links the producer's grids to it, the other links it to
    the consumer's grids.
    """
    source, target = producer.output.tensor, consumer.output.tensor
    produced = _select_columns(producer, producer.output.indices, grids[source])
    consumed = _select_columns(consumer, access.indices, grids[target])
    distinct, number_of = np.unique(produced, axis=0, return_inverse=True)
    required, required_number_of = np.unique(consumed, axis=0, return_inverse=True)
    lengths = [extents[i] for i in access.indices]
    costs = compute_repartition(required[None, :, :], distinct[:, None, :], lengths)
    link = np.full((len(produced), len(distinct)), np.inf)
    link[np.arange(len(produced)), number_of.reshape(-1)] = 0.0
    variable = f"{source} in {target}"
    return [
        Table((source, variable), link),
        Table((variable, target), costs[:, required_number_of.reshape(-1)]),
    ]


def _select_columns(group: Group, indices: Sequence[str], grids: Ints) -> Ints:
    """Return the numbers of parts of some indices of a group, for each grid."""
    order = order_by_first_use(group)
    return grids[:, [order.index(i) for i in indices]]


def _choose_each(
    choose: Callable[[Group, Mapping[str, int], int], Grid],
    groups: Sequence[Group],
    extents: Mapping[str, int],
    n: int,
) -> list[Grid]:
    """Choose a grid for each group independently."""
    return [choose(group, extents, n) for group in groups]


GRIDS: Mapping[str, Choose] = {
    "stationary": _choose_stationary_grid,
    "deinsum": partial(_choose_each, choose_deinsum_grid),
    "footprint": partial(_choose_each, choose_footprint_grid),
    "eindecomp": choose_eindecomp_grids,
}
"""The ways to choose a grid for every group."""
