"""Hierarchical machines: what passes between hosts, and what stays within them.

Ranks of a host are consecutive, so the last axes of a machine lie within hosts as far
as they fit. The order of the axes does not affect how many elements move, only how many
pass between hosts. Deeper hierarchies are counted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import prod

import numpy as np
from numpy.typing import NDArray

from feinsum.errors import PlanError
from feinsum.plans.assembly import with_schedules
from feinsum.plans.boxes import Boxes, Overlap
from feinsum.plans.distribution import Distribution
from feinsum.plans.groups import Group
from feinsum.plans.lowering import Input
from feinsum.plans.machine import Machine
from feinsum.plans.plan import Plan
from feinsum.plans.schedule import GroupSchedule

__all__ = ["arranged", "between_hosts", "check_ranks_per_host", "moved_by_level"]

Order = Sequence[int]
"""The old numbers of machine axes, in their new order."""


def check_ranks_per_host(number: object) -> None:
    """Refuse an invalid number of ranks.

    Raises:
        PlanError: with the rule ``processes``.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise PlanError(
            f"ranks_per_host={number!r}; expected an integer of at least 1",
            rules=("processes",),
        )


def between_hosts(plan: Plan, ranks_per_host: int) -> int:
    """The moved elements that pass between hosts.

    Args:
        ranks_per_host: number of consecutive ranks on each host; the last one may have
            fewer.

    Raises:
        PlanError: with the rule ``processes``, if it is not a positive integer.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> plan.counts.moved, between_hosts(plan, 4), between_hosts(plan, 8)
    (192, 64, 0)
    """
    return moved_by_level(plan, (ranks_per_host,))[0]


def moved_by_level(plan: Plan, units: Sequence[int]) -> tuple[int, ...]:
    """The moved elements, by the outermost level that they pass between.

    Args:
        units: number of consecutive ranks in a process of each level but the innermost,
            outermost first, such as the ranks of a host and then of a socket.

    Returns:
        For each of the units the elements that pass between two of them and stay in a
        larger one, and then those that stay within the smallest; their sum is
        ``plan.counts.moved``.

    Raises:
        PlanError: with the rule ``processes``, if a unit is not a positive integer.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> moved_by_level(plan, (4, 2))
    (64, 64, 64)
    """
    for unit in units:
        check_ranks_per_host(unit)
    passing = _Passing(units)
    plan.lower(passing)
    return tuple(passing.moved)


def arranged(plans: Sequence[Plan], ranks_per_host: int) -> Plan:
    """The best plan for these hosts, over all plans and orders of their machine axes.

    It moves the fewest elements and, among those, the fewest between hosts; ties go to
    the first. Its machines have two levels if no axis crosses a border of hosts. Plans
    whose groups have different machines keep the order of their axes.

    Raises:
        PlanError: see :func:`between_hosts`.
    """
    check_ranks_per_host(ranks_per_host)

    def cost(one: Plan) -> tuple[int, int]:
        between, within = moved_by_level(one, (ranks_per_host,))
        return between + within, between

    best = min((other for one in plans for other in _orders(one)), key=cost)
    return _leveled(best, ranks_per_host)


def _orders(plan: Plan) -> Iterator[Plan]:
    """The plan, and then the same with other orders of machine axes."""
    yield plan
    machines = {schedule.machine for schedule in plan.schedules}
    if len(machines) == 1:
        (machine,) = machines
        for order in permutations(range(machine.n_axes)):
            yield _reordered(plan, order)


def _leveled(plan: Plan, ranks_per_host: int) -> Plan:
    """The same plan, with levels in machines whose last axes are one host."""
    machines = {schedule.machine for schedule in plan.schedules}
    new = {machine: _with_levels(machine, ranks_per_host) for machine in machines}
    schedules = [
        replace(
            schedule,
            machine=new[schedule.machine],
            result=replace(schedule.result, machine=new[schedule.machine]),
        )
        for schedule in plan.schedules
    ]
    return with_schedules(plan, schedules)


def _with_levels(machine: Machine, ranks_per_host: int) -> Machine:
    for k in range(1, machine.n_axes):
        if prod(machine.sizes[k:]) == ranks_per_host:
            return replace(machine, levels=(k, machine.n_axes - k))
    return machine


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


class _Passing:
    """The sink that counts what passes between the processes of each level."""

    def __init__(self, units: Sequence[int]) -> None:
        self.units, self.moved = units, [0] * (len(units) + 1)

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        """Nothing passes."""

    def move(
        self, source: str, target: str, found: Overlap, tag: int, *, is_added: bool
    ) -> None:
        sizes, left = found.sizes(), found.source != found.target
        for level, unit in enumerate((*self.units, 1)):
            passes = left & (found.source // unit != found.target // unit)
            self.moved[level] += int(sizes[passes].sum())
            left &= ~passes

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        """Nothing passes."""

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        """Nothing passes."""
