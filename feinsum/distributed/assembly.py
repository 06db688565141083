"""Building plans: from schedules, and from other plans with other distributions.

:func:`with_schedules` completes schedules with what follows from them: where operands
start, and the leaves. :func:`with_sizes` changes extents, :func:`with_cyclic`
distributes indices cyclically, and :func:`arrange_axes` reorders machine axes so that
little passes between hosts: ranks of a host are consecutive, so the last axes of a
machine lie within hosts. For a machine of 2 x 4 processes on hosts of two, with the
axis that a tensor is copied along::

    x=2 y=4: hosts are pairs along y       x=4 y=2: each host is a row
    rank  0 1 | 2 3                        rank  0 1
          4 5 | 6 7                              2 3
          copies along y: between hosts          4 5
                                                 6 7   copies along y: within hosts
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from math import prod
from typing import Literal, TypeAlias

from feinsum.contraction.paths import Path
from feinsum.distributed.checks import find_request_violations
from feinsum.distributed.distribution import Distribution, Machine
from feinsum.distributed.groups import (
    Access,
    Group,
    Statements,
    get_extents,
    get_shape,
    groups_of,
)
from feinsum.distributed.levels import Levels, moved_by_level
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import (
    GroupSchedule,
    choose_initial_distribution,
    list_leaves,
)
from feinsum.errors import InvalidEinsumError, PlanError
from feinsum.ir import BatchedEinsum, Operand, SizeParam, to_text

Starts = Mapping[str, Distribution]

Placement: TypeAlias = Distribution | Literal["replicated"]
"""The distribution of an array; or a copy on each process."""


def assemble(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    processes: int,
    path: Path,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Starts | None = None,
    name: str = "planned",
    nonzeros: int | None = None,
) -> Plan:
    """Build a checked plan; operands start where they are first needed.

    Args:
        einsum: the computation.
        sizes: values of the size parameters.
        processes: number of processes.
        path: the contraction order, whose steps are the groups.
        schedules: the schedule of each group.
        starts: other initial distributions, by operand.
        name: name of the plan.
        nonzeros: entries of a sparse operand.

    Raises:
        PlanError: naming every rule that is broken.
    """
    # a plan with a wrong path would report less specific errors
    groups_of(einsum, path, get_extents(einsum, sizes))
    text = to_text(einsum)
    bare = Plan(text, sizes, processes, path, (), {}, (), name, nonzeros=nonzeros)
    return with_schedules(bare, schedules, starts=starts)


def assemble_statements(
    statements: Statements,
    processes: int,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Starts | None = None,
    name: str = "planned",
) -> Plan:
    """Build and check a plan of statements from a schedule for each of them.

    Raises:
        PlanError: naming every rule that is broken.
    """
    bare = Plan("", {}, processes, (), (), {}, (), name, statements=statements.check())
    return with_schedules(bare, schedules, starts=starts)


def with_schedules(
    plan: Plan,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Starts | None = None,
    name: str | None = None,
) -> Plan:
    """Return a checked plan of the same einsums with other schedules.

    Operands start where they are first needed, unless the plan has a requested start.
    """
    first_starts = place_operands(plan.operands, plan.groups, schedules, plan.extents)
    assembled = replace(
        plan,
        schedules=tuple(schedules),
        starts=first_starts | dict(plan.requested_starts) | dict(starts or {}),
        leaves=(),
        name=plan.name if name is None else name,
    )
    # leaves are computed from blocks, which only a plan without other violations has
    if any(v.rule != "leaf" for v in assembled.violations()):
        assembled.check()
    return replace(assembled, leaves=list_leaves(assembled))


def with_requested(
    bare: Plan, starts: Mapping[str, Placement], ends: Mapping[str, Placement]
) -> Plan:
    """Return a plan without schedules that requests distributions.

    Args:
        bare: the plan without them.
        starts: initial distributions, by operand.
        ends: final distributions, by result.

    Raises:
        PlanError: with the broken rule, if one does not fit.
    """

    def convert(rule: str, name: str, placement: Placement) -> Distribution:
        if isinstance(placement, Distribution):
            return placement
        if placement != "replicated":
            raise PlanError(
                f"the distribution of {name} is {placement!r:.80}; expected a "
                "feinsum.distributed.Distribution or 'replicated'",
                rules=(rule,),
            )
        indices = bare.shape(name) if name in {*bare.operands, *bare.outputs} else ()
        return Distribution(Machine((bare.processes,)), ((),) * len(indices))

    if not isinstance(starts, Mapping):
        raise PlanError(
            f"starts={starts!r:.80}; expected distributions by operand, such as "
            "{'A': 'replicated'}",
            rules=("starts",),
        )
    requested = replace(
        bare,
        starts={name: convert("starts", name, d) for name, d in starts.items()},
        placed=tuple(starts),
        ends={name: convert("result", name, d) for name, d in ends.items()},
    )
    for violation in find_request_violations(requested):
        raise PlanError(violation.message, rules=(violation.rule,))
    return requested


def place_operands(
    operands: Collection[str],
    groups: Sequence[Group],
    schedules: Sequence[GroupSchedule],
    extents: Mapping[str, int],
) -> dict[str, Distribution]:
    """Place one copy of every operand, in blocks, on ranks that read it first."""
    starts: dict[str, Distribution] = {}
    # not strict: a wrong number of schedules is reported by the checker
    for group, schedule in zip(groups, schedules, strict=False):
        for access in group.inputs:
            if access.tensor in operands and access.tensor not in starts:
                shape = get_shape(access, extents)
                need = schedule.needs(access)
                starts[access.tensor] = choose_initial_distribution(need, shape)
    return starts


def with_cyclic(plan: Plan, indices: Collection[str]) -> Plan:
    """Return the same plan with some indices distributed cyclically.

    Along a machine axis of P processes that partitions such an index, process p has the
    values ``x`` with ``x % P == p`` instead of a block. If P divides the extent,
    the same number of elements moves as before.

    Source: Blackford et al., *ScaLAPACK Users' Guide*, section 4.3.

    Raises:
        PlanError: with the rule ``cyclic``, for a name that is not an index of the
            plan.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (7, 4)), feinsum.array("B", (4, 4))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=2)
    >>> cyclic = with_cyclic(plan, ["i"])
    >>> cyclic.starts["A"].notation("ij"), cyclic.start_box("A", 1)
    ('ij->i%', (range(1, 7, 2), range(0, 4)))
    """
    if unknown := sorted(set(indices) - set(plan.extents)):
        raise PlanError(
            f"no index {unknown[0]}; there are {', '.join(plan.extents)}",
            rules=("cyclic",),
        )

    def distribute(distribution: Distribution, access: Access) -> Distribution:
        pairs = zip(access.indices, distribution.cuts, strict=True)
        cyclic = tuple(k for index, cuts in pairs if index in indices for k in cuts)
        return replace(distribution, cyclic=cyclic)

    def schedule_cyclic(group: Group, schedule: GroupSchedule) -> GroupSchedule:
        cyclic = tuple(k for k, index in enumerate(schedule.axes) if index in indices)
        result = distribute(schedule.result, group.output)
        loop = schedule.loop and replace(
            schedule.loop, is_cyclic=schedule.loop.index in indices
        )
        return replace(schedule, cyclic=cyclic, result=result, loop=loop)

    starts = {
        name: distribute(start, plan.first_accesses[name])
        for name, start in plan.starts.items()
        if name not in plan.placed
    }
    schedules = [schedule_cyclic(*pair) for pair in plan.scheduled]
    return with_schedules(plan, schedules, starts=starts)


def with_sizes(
    plan: Plan, extents: Mapping[str, int], *, nonzeros: int | None = None
) -> Plan:
    """Return the same plan for other extents, without a search.

    Machines, the indices that their axes partition, and all distributions stay, so that
    arrays of one family of problems are distributed alike. Blocks, leaves and counts
    are those of the new extents. Whether another plan would now finish sooner, a search
    (:func:`feinsum.distributed.plan`) finds out.

    Args:
        plan: a plan of one einsum or of statements.
        extents: the new extent of some indices, by name; others keep theirs.
        nonzeros: entries of a sparse operand; by default its density stays.

    Raises:
        PlanError: with the rule ``sizes``, for an unknown index or a wrong extent, or
            with one that the plan breaks at these extents.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> square = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> longer = with_sizes(square, {"i": 1000})
    >>> longer.shape("A"), longer.result == square.result, longer.counts.moved
    ((1000, 600), True, 1560000)
    """
    if unknown := sorted(set(extents) - set(plan.extents)):
        raise PlanError(
            f"no index {unknown[0]}; there are {', '.join(plan.extents)}",
            rules=("sizes",),
        )
    for index, extent in extents.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise PlanError(
                f"extent {index}={extent!r}; expected an integer from 0",
                rules=("sizes",),
            )
    if plan.statements is not None:
        all_extents = {**plan.extents, **extents}
        statements = replace(plan.statements, extents=all_extents)
        resized = replace(plan, statements=statements)
        return with_schedules(resized, plan.schedules, starts=plan.starts)
    einsum, sizes = _resize_einsum(plan.batched_einsum, plan.sizes, extents)
    if nonzeros is None and plan.sparse_term is not None:
        size = prod(get_shape(plan.sparse_term, {**plan.extents, **extents}))
        nonzeros = round(plan.density[plan.sparse_term.tensor] * size)
    resized = replace(plan, einsum=to_text(einsum), sizes=sizes, nonzeros=nonzeros)
    return with_schedules(resized, plan.schedules, starts=plan.starts)


def _resize_einsum(
    einsum: BatchedEinsum, sizes: Mapping[str, int], extents: Mapping[str, int]
) -> tuple[BatchedEinsum, dict[str, int]]:
    """Return an einsum with new extents, and the values of its size parameters."""
    new_sizes = dict(sizes)
    for term, operand in zip(einsum.inputs, einsum.rows[0], strict=True):
        for index, extent in zip(term, operand.shape, strict=True):
            if index in extents and isinstance(extent, SizeParam):
                new_sizes[extent.name] = extents[index]

    def resize(operand: Operand, term: Sequence[str]) -> Operand:
        shape = tuple(
            extent if isinstance(extent, SizeParam) else extents.get(index, extent)
            for index, extent in zip(term, operand.shape, strict=True)
        )
        return replace(operand, shape=shape)

    (row,) = einsum.rows
    try:
        resized = replace(einsum, rows=(tuple(map(resize, row, einsum.inputs)),))
    except InvalidEinsumError as error:  # an array that is read by several indices
        raise PlanError(f"wrong extents: {error}", rules=("sizes",)) from None
    actual = get_extents(resized, new_sizes)
    if differing := sorted(i for i, extent in extents.items() if actual[i] != extent):
        raise PlanError(
            f"extents of {', '.join(differing)} are one size parameter; expected one "
            "value for all of its indices",
            rules=("sizes",),
        )
    return resized, new_sizes


# ---- the order of machine axes on hosts and smaller units


def arrange_axes(
    plans: Sequence[Plan], levels: Levels, others: Sequence[Plan] = ()
) -> Plan:
    """Return the plan with the least cost over all orders of axes.

    Ties go to the first. The order of axes does not change how many elements move, only
    the level at which they pass. Machines get levels if no axis crosses the border of
    a unit. Plans whose groups have different machines keep the order of their axes.

    Args:
        plans: plans whose machine axes are tried in all orders.
        levels: the units of the hardware and the costs of their links.
        others: plans whose machine axes keep their order.
    """

    def compute_cost(plan: Plan) -> tuple[float, ...]:
        return levels.cost(moved_by_level(plan, levels.units))

    # the plan itself comes first, so that ties change nothing
    ordered = (reordered for plan in plans for reordered in _reorder_axes(plan))
    return _add_levels(min((*ordered, *others), key=compute_cost), levels.units)


def _reorder_axes(plan: Plan) -> Iterator[Plan]:
    """Yield the plan, and then the same with other orders of machine axes."""
    yield plan
    machines = {schedule.machine for schedule in plan.schedules}
    # with several machines, every order of each would have to be combined
    if len(machines) == 1:
        (machine,) = machines
        for order in permutations(range(machine.n_axes)):
            schedules = [_permute_axes(*pair, order) for pair in plan.scheduled]
            yield with_schedules(plan, schedules)


def _permute_axes(
    group: Group, schedule: GroupSchedule, order: Sequence[int]
) -> GroupSchedule:
    """Return a schedule on the same machine with its axes in another order.

    Args:
        group: the group of the schedule.
        schedule: its schedule.
        order: the present numbers of the axes, in their new order.
    """
    machine = Machine(tuple(schedule.machine.sizes[k] for k in order))
    position = {axis: number for number, axis in enumerate(order)}
    cuts = []
    for index, term in zip(group.output.indices, schedule.result.cuts, strict=True):
        # axes that partition an index come first, in the order in which blocks have
        # them; then those of partial sums, which subdivide the blocks
        partition = sorted(position[k] for k in term if schedule.axes[k] == index)
        subdivide = [position[k] for k in term if schedule.axes[k] != index]
        cuts.append((*partition, *subdivide))
    fixed = tuple((position[k], coordinate) for k, coordinate in schedule.result.fixed)
    cyclic = tuple(position[k] for k in schedule.result.cyclic)
    loop = schedule.loop
    return GroupSchedule(
        machine,
        tuple(schedule.axes[k] for k in order),
        Distribution(machine, tuple(cuts), fixed, cyclic),
        loop and replace(loop, rotate=tuple(position[k] for k in loop.rotate)),
        tuple(position[k] for k in schedule.cyclic),
    )


def _add_levels(plan: Plan, units: Sequence[int]) -> Plan:
    """Return the plan with levels in machines whose last axes make up the units."""

    def add_levels(machine: Machine) -> Machine:
        # consecutive ranks of the last axes, for each number of axes
        inner = [prod(machine.sizes[k:]) for k in range(1, machine.n_axes)]
        if not set(units) <= set(inner):
            return machine
        bounds = [0, *(1 + inner.index(unit) for unit in units), machine.n_axes]
        return replace(machine, levels=tuple(b - a for a, b in pairwise(bounds)))

    machines = {schedule.machine for schedule in plan.schedules}
    with_levels = {machine: add_levels(machine) for machine in machines}
    if len({machine.units for machine in with_levels.values()}) > 1:
        return plan  # a plan has one kind of hosts
    schedules = [
        replace(
            schedule,
            machine=with_levels[schedule.machine],
            result=replace(schedule.result, machine=with_levels[schedule.machine]),
        )
        for schedule in plan.schedules
    ]
    return with_schedules(plan, schedules)
