"""Placing the axes of machines on the levels of a hierarchy, such as hosts and ranks.

Ranks of a unit are consecutive, so the last axes of a machine lie within units as far
as they fit. The order of the axes does not affect how many elements move, only at which
level they pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from math import prod

from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Group
from feinsum.distributed.levels import Levels, moved_by_level
from feinsum.distributed.machine import Machine
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import GroupSchedule

Order = Sequence[int]
"""The old numbers of machine axes, in their new order."""


def arranged(
    plans: Sequence[Plan], levels: Levels, others: Sequence[Plan] = ()
) -> Plan:
    """The plan with the least cost, over all orders of axes; ties go to the first.

    Its machines have levels if no axis crosses the border of a unit. Plans whose groups
    have different machines keep the order of their axes.

    Args:
        others: plans whose axes are in order.
    """

    def cost(one: Plan) -> tuple[float, ...]:
        return levels.cost(moved_by_level(one, levels.units))

    ordered = (other for one in plans for other in _orders(one))
    return _leveled(min((*ordered, *others), key=cost), levels.units)


def _orders(plan: Plan) -> Iterator[Plan]:
    """The plan, and then the same with other orders of machine axes."""
    yield plan
    machines = {schedule.machine for schedule in plan.schedules}
    if len(machines) == 1:
        (machine,) = machines
        for order in permutations(range(machine.n_axes)):
            yield _reordered(plan, order)


def _leveled(plan: Plan, units: Sequence[int]) -> Plan:
    """The same plan, with levels in machines in which each unit is the last axes."""
    machines = {schedule.machine for schedule in plan.schedules}
    new = {machine: _with_levels(machine, units) for machine in machines}
    if len({machine.units for machine in new.values()}) > 1:
        return plan
    schedules = [
        replace(
            schedule,
            machine=new[schedule.machine],
            result=replace(schedule.result, machine=new[schedule.machine]),
        )
        for schedule in plan.schedules
    ]
    return with_schedules(plan, schedules)


def _with_levels(machine: Machine, units: Sequence[int]) -> Machine:
    inner = [prod(machine.sizes[k:]) for k in range(1, machine.n_axes)]
    if not set(units) <= set(inner):
        return machine
    bounds = [0, *(1 + inner.index(unit) for unit in units), machine.n_axes]
    return replace(machine, levels=tuple(b - a for a, b in pairwise(bounds)))


def _reordered(plan: Plan, order: Order) -> Plan:
    pairs = zip(plan.groups, plan.schedules, strict=True)
    return with_schedules(plan, [_schedule(*pair, order) for pair in pairs])


def _schedule(group: Group, schedule: GroupSchedule, order: Order) -> GroupSchedule:
    machine = Machine(tuple(schedule.machine.sizes[k] for k in order))
    loop, new = schedule.loop, _inverse(order)
    return GroupSchedule(
        machine,
        tuple(schedule.axes[k] for k in order),
        _result(group, schedule, machine, new),
        loop and replace(loop, rotate=tuple(new[k] for k in loop.rotate)),
        tuple(new[k] for k in schedule.cyclic),
    )


def _inverse(order: Order) -> dict[int, int]:
    """The new number of each machine axis."""
    return {old: new for new, old in enumerate(order)}


def _result(
    group: Group, schedule: GroupSchedule, machine: Machine, new: Mapping[int, int]
) -> Distribution:
    """Axes that partition an index come first, in the order in which blocks have them;
    then those of partial sums.
    """
    cuts = []
    for index, term in zip(group.output.indices, schedule.result.cuts, strict=True):
        own = sorted(new[k] for k in term if schedule.axes[k] == index)
        added = [new[k] for k in term if schedule.axes[k] != index]
        cuts.append((*own, *added))
    fixed = tuple((new[k], place) for k, place in schedule.result.fixed)
    cyclic = tuple(new[k] for k in schedule.result.cyclic)
    return Distribution(machine, tuple(cuts), fixed, cyclic)
