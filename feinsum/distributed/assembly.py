"""Building plans from schedules, and with the axes of machines in another order.

:func:`with_schedules` completes schedules with what follows from them: where operands
start, and the leaves. :func:`arrange_axes` reorders machine axes so that little passes
between hosts: ranks of a host are consecutive, so the last axes of a machine lie within
hosts. For a machine of 2 x 4 processes on hosts of two, with the axis that a tensor is
copied along::

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
from feinsum.distributed.groups import Group, get_extents, get_shape, groups_of
from feinsum.distributed.levels import Levels, moved_by_level
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import (
    GroupSchedule,
    choose_initial_distribution,
    list_leaves,
)
from feinsum.distributed.statement_graph import Statements
from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum, to_text

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
    # entries that are there already fix the machine and the order of its axes
    if plans[0].sparse_starts:
        return plans[0]

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
