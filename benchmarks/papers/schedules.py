"""Named schedules of the literature, for comparison with the planner.

Schedules of a matrix product differ in which process has which block when. On 3 x 3
processes with blocks of A and B in a grid, the part of the sum that each process
multiplies at its first step::

    SUMMA            PUMMA            Cannon
    0 0 0            0 0 0            0 1 2      all the same: a broadcast of one block
    0 0 0            1 1 1            1 2 0      rotated by x: rows differ
    0 0 0            2 2 2            2 0 1      rotated by x and y: each tile has one
                                                 reader at a time

Source: DISTAL, tables 1 and 2 (Cannon 1969; PUMMA, Choi et al. 1994; SUMMA, van de
Geijn and Watts 1997; Johnson, Agarwal et al. 1995; 2.5D, Solomonik and Demmel 2011;
MTTKRP, Ballard et al. 2018); COSMA (Kwasniewski et al. 2019: the smallest surface of
the block of a process).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isqrt, prod

from feinsum.contraction.paths import Path
from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.distribution import Distribution, Machine
from feinsum.distributed.grids import GRIDS, list_grids, make_grid_plans
from feinsum.distributed.groups import (
    Group,
    find_default_path,
    get_extents,
    groups_of,
)
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import (
    GroupSchedule,
    Loop,
    choose_initial_distribution,
    spread_result,
    without_copies,
)
from feinsum.ir import BatchedEinsum, to_text


def make_named_plans(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    path: Path | None = None,
) -> dict[str, Plan]:
    """Return all named schedules that fit an einsum and a number of processes."""
    return replan_by_name(_make_problem(einsum, sizes, processes, path))


def make_named_plan(
    name: str,
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    path: Path | None = None,
) -> Plan:
    """Return the schedule with a name of :data:`NAMES`.

    Raises:
        ValueError: if there is no such schedule, or if it does not fit the einsum or
            number of processes.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (576, 576)), feinsum.array("B", (576, 576))
    >>> product = feinsum.einsum("ij,jk->ik", A, B)
    >>> cannon = make_named_plan("cannon", product, processes=9)
    >>> cannon.counts.moved, cannon.counts.most_requests
    (1327104, 1)
    """
    if name not in NAMES:
        raise ValueError(
            f"there is no schedule {name!r}; expected one of {', '.join(NAMES)}"
        )
    plans = make_named_plans(einsum, sizes, processes=processes, path=path)
    if name not in plans:
        raise ValueError(
            f"{name} is not a schedule for {einsum.subscripts} on {processes} processes"
        )
    return plans[name]


def _make_problem(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None,
    processes: int,
    path: Path | None,
) -> Plan:
    """Return the problem to plan, without schedules."""
    extents = get_extents(einsum, sizes or {})
    groups_of(einsum, path, extents)
    chosen = find_default_path(einsum, extents) if path is None else path
    return Plan(to_text(einsum), sizes or {}, processes, chosen, (), {}, ())


def replan_by_name(plan: Plan) -> dict[str, Plan]:
    """Return all named schedules that fit the einsum and processes of a plan."""
    plans = {}
    for name, make in SCHEDULES.items():
        proposal = make(plan.groups, plan.extents, plan.processes)
        if proposal is not None:
            schedules, starts = proposal
            plans[name] = with_schedules(plan, schedules, starts=starts, name=name)
    return plans | make_grid_plans(plan)


Proposal = tuple[list[GroupSchedule], dict[str, Distribution]] | None
Maker = Callable[[Sequence[Group], Mapping[str, int], int], Proposal]


def _match_matrix_product(
    groups: Sequence[Group],
) -> tuple[str, str, str, Group] | None:
    """Return the indices of rows, columns and the sum, if it is a matrix product."""
    if len(groups) != 1 or len(groups[0].inputs) != 2:
        return None
    (group,) = groups
    first, second, output = (set(a.indices) for a in (*group.inputs, group.output))
    rows, columns, summed = first & output, second & output, first & second
    # one index each, and no batch index in all three
    sizes = {len(rows), len(columns), len(summed)}
    if sizes != {1} or len(group.indices) != 3 or first & second & output:
        return None
    return rows.pop(), columns.pop(), summed.pop(), group


def _make_square(rotate: tuple[int, ...]) -> Maker:
    """Make a maker of schedules on a square grid, with a step for each of its rows."""

    def make(groups: Sequence[Group], extents: Mapping[str, int], n: int) -> Proposal:
        product, q = _match_matrix_product(groups), isqrt(n)
        if product is None or q * q != n or q < 2:
            return None
        rows, columns, summed, group = product
        machine = Machine((q, q))
        axes_of = [{rows: 0, summed: 1}, {summed: 0, columns: 1}]
        # blocks of both operands in a grid, each stored once
        starts = {
            access.tensor: _cut_by_index(machine, access.indices, axes)
            for access, axes in zip(group.inputs, axes_of, strict=True)
        }
        result = _cut_by_index(machine, group.output.indices, {rows: 0, columns: 1})
        loop = Loop(summed, q, rotate)
        return [GroupSchedule(machine, (rows, columns), result, loop)], starts

    return make


def _schedule_johnson(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> Proposal:
    product, q = _match_matrix_product(groups), round(n ** (1 / 3))
    if product is None or q**3 != n or q < 2:
        return None
    rows, columns, summed, group = product
    machine = Machine((q, q, q))
    axes = {rows: 0, columns: 1, summed: 2}
    starts = {a.tensor: _cut_on_face(machine, a.indices, axes) for a in group.inputs}
    result = _cut_on_face(machine, group.output.indices, axes)
    return [GroupSchedule(machine, (rows, columns, summed), result)], starts


def _schedule_solomonik(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> Proposal:
    """Schedule 2.5D with the most layers that divide the rows of the grid."""
    product = _match_matrix_product(groups)
    if product is None:
        return None
    rows, columns, summed, group = product
    # c layers of q x q processes, each of which computes q / c of the steps
    layers = [
        c for c in range(2, n) if n % c == 0 and isqrt(n // c) ** 2 == n // c
        and isqrt(n // c) % c == 0
    ]  # fmt: skip
    if not layers:
        return None
    c = layers[-1]
    q = isqrt(n // c)
    machine = Machine((q, q, c))
    axes_of = [{rows: 0, summed: 1}, {summed: 0, columns: 1}]
    starts = {
        a.tensor: _cut_on_face(machine, a.indices, axes)
        for a, axes in zip(group.inputs, axes_of, strict=True)
    }
    result = _cut_on_face(machine, group.output.indices, {rows: 0, columns: 1})
    loop = Loop(summed, q // c, (0, 1)) if q > c else None
    return [GroupSchedule(machine, (rows, columns, summed), result, loop)], starts


def _schedule_cosma(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> Proposal:
    """Schedule a matrix product on the grid whose blocks have the smallest surface."""
    product = _match_matrix_product(groups)
    if product is None or n < 2:
        return None
    rows, columns, summed, group = product
    grid = choose_cosma_grid(extents[rows], extents[columns], extents[summed], n)
    machine, axes = Machine(grid), {rows: 0, columns: 1, summed: 2}
    result = spread_result(group, (rows, columns, summed), machine, extents)
    starts = {
        a.tensor: choose_initial_distribution(
            _cut_by_index(machine, a.indices, axes), [extents[i] for i in a.indices]
        )
        for a in group.inputs
    }
    return [GroupSchedule(machine, (rows, columns, summed), result)], starts


MOST_IDLE = 0.03
"""Share of processes that COSMA leaves idle for a better grid."""


def choose_cosma_grid(
    rows: int, columns: int, summed: int, n: int
) -> tuple[int, int, int]:
    """Return the grid of a matrix product whose largest block has the least surface.

    A few processes may be idle; ties go to the grid with the most processes.

    >>> choose_cosma_grid(4096, 4096, 4096, 64), choose_cosma_grid(64, 64, 65536, 8)
    ((4, 4, 4), (1, 1, 8))
    """

    def compute_surface(grid: tuple[int, int, int]) -> tuple[int, int]:
        a, b, c = (
            -(-x // p) for x, p in zip((rows, columns, summed), grid, strict=True)
        )
        return a * b + b * c + a * c, -prod(grid)

    # COSMA may leave a few processes idle for a squarer block
    least = ceil((1 - MOST_IDLE) * n)
    # one dimension follows from the other two: as many parts as are left
    fitting = [
        (a, b, c)
        for a in range(1, min(n, rows) + 1)
        for b in range(1, min(n // a, columns) + 1)
        for c in {max(1, min(n // (a * b), summed))}
        if a * b * c >= least
    ]
    return min(fitting, key=compute_surface, default=(1, 1, 1))


def _schedule_ballard(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> Proposal:
    """Schedule MTTKRP: the tensor stays, matrices are fetched and the result is
    reduced.

    Of all grids over the axes of the tensor, take the one that moves the least.
    """
    if len(groups) != 1 or len(groups[0].inputs) < 3:
        return None
    (group,) = groups
    tensor = max(group.inputs, key=lambda a: len(a.indices))
    # MTTKRP: every matrix has one index of its own, the rank
    rank_index = set(group.indices) - set(tensor.indices)
    matrices = [a for a in (*group.inputs, group.output) if a is not tensor]
    is_mttkrp = len(rank_index) == 1 and len(matrices) == len(tensor.indices)
    if not is_mttkrp or not all(rank_index < set(a.indices) for a in matrices):
        return None

    def count_moved(grid: tuple[int, ...]) -> float:
        parts = dict(zip(tensor.indices, grid, strict=True))
        return sum(
            prod(extents[i] for i in a.indices)
            * (n // prod(parts.get(i, 1) for i in a.indices) - 1)
            for a in matrices
        )

    grids = list_grids(n, tensor.indices, extents)
    if not len(grids):
        return None
    grid = min(map(tuple, grids.tolist()), key=count_moved)
    machine = Machine(grid)
    axes = {i: k for k, i in enumerate(tensor.indices)}
    starts = {a.tensor: _cut_on_face(machine, a.indices, axes) for a in group.inputs}
    result = _cut_on_face(machine, group.output.indices, axes)
    return [GroupSchedule(machine, tensor.indices, result)], starts


def _schedule_by_rows(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> Proposal:
    """Schedule TTM and TTV of DISTAL: the largest tensor stays in blocks, all else is
    copied.

    The blocks are along its longest axis that is in the result.
    """
    if len(groups) != 1 or len(groups[0].inputs) != 2:
        return None
    (group,) = groups
    tensor = max(group.inputs, key=lambda a: prod(extents[i] for i in a.indices))
    output_indices = [i for i in tensor.indices if i in group.output.indices]
    if len(tensor.indices) < 3 or not output_indices:
        return None
    # the longest axis gives the thinnest slices, so idle processes are rare
    index = max(output_indices, key=lambda i: extents[i])
    if extents[index] < n:
        return None
    machine = Machine((n,))
    result = _cut_by_index(machine, group.output.indices, {index: 0})
    return [GroupSchedule(machine, (index,), result)], {}


def _cut_by_index(
    machine: Machine, indices: Sequence[str], axes: Mapping[str, int]
) -> Distribution:
    cuts = tuple((axes[i],) if i in axes else () for i in indices)
    return Distribution(machine, cuts)


def _cut_on_face(
    machine: Machine, indices: Sequence[str], axes: Mapping[str, int]
) -> Distribution:
    """Cut along the tensor's axes, at coordinate 0 of all other axes."""
    return without_copies(_cut_by_index(machine, indices, axes))


SCHEDULES: dict[str, Maker] = {
    "summa": _make_square(()),
    "pumma": _make_square((0,)),
    "cannon": _make_square((0, 1)),
    "johnson": _schedule_johnson,
    "2.5d": _schedule_solomonik,
    "ballard": _schedule_ballard,
    "rows": _schedule_by_rows,
    "cosma": _schedule_cosma,
}
"""Schedules by name; each returns None for groups, extents and processes it does not
fit.
"""
NAMES = (*SCHEDULES, *GRIDS)
"""All names: schedules, and grids that the planner considers."""
