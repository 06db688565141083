"""Hierarchical machines: what passes between hosts, and what stays within them.

Ranks of a host follow each other, so the last axes of a machine lie within hosts as far
as they fit. Every order of the axes moves the same elements; how many of them pass
between hosts depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

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

__all__ = ["arranged", "between_hosts", "check_ranks_per_host"]

Order = Sequence[int]
"""The old numbers of machine axes, in their new order."""


def check_ranks_per_host(number: object) -> None:
    """Refuse what is no number of ranks.

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
    check_ranks_per_host(ranks_per_host)
    passing = _Passing(ranks_per_host)
    plan.lower(passing)
    return passing.n_elements


def arranged(plan: Plan, ranks_per_host: int) -> Plan:
    """The same plan with the order of machine axes that suits its hosts best.

    Of all orders that move no more elements, that with which the fewest pass between
    hosts. Plans whose groups have different machines stay as they are.

    Raises:
        PlanError: see :func:`between_hosts`.
    """
    check_ranks_per_host(ranks_per_host)
    machines = {schedule.machine for schedule in plan.schedules}
    if len(machines) != 1:
        return plan
    (machine,) = machines
    best, least = plan, (plan.outline().moved, between_hosts(plan, ranks_per_host))
    for order in permutations(range(machine.n_axes)):
        other = _reordered(plan, order)
        found = (other.outline().moved, between_hosts(other, ranks_per_host))
        if found < least:
            best, least = other, found
    return best


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
    return Distribution(machine, tuple(cuts), fixed)


class _Passing:
    """The sink that counts what passes between hosts."""

    def __init__(self, ranks_per_host: int) -> None:
        self.ranks_per_host, self.n_elements = ranks_per_host, 0

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        """Nothing passes."""

    def move(
        self, source: str, target: str, found: Overlap, tag: int, *, is_added: bool
    ) -> None:
        of, to = (side // self.ranks_per_host for side in (found.source, found.target))
        self.n_elements += int(found.sizes()[of != to].sum())

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        """Nothing passes."""

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        """Nothing passes."""
