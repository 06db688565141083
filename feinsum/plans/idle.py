"""Plans that leave some processes idle, because those fetch nothing."""

from __future__ import annotations

from collections.abc import Iterator

from feinsum.plans.assembly import with_schedules
from feinsum.plans.maps import MOST_EXCESS
from feinsum.plans.plan import Plan
from feinsum.plans.search import best_schedules

MOST_UNEVEN = 1.5
"""Limit on the maximum work of a process over the average, with idle processes."""

FEW_PROCESSES = 16
"""Up to this number every smaller one is tried; beyond, those that divide an extent."""


def with_idle(made: Plan, most_work: float) -> Plan:
    """The plan of several statements, or one on fewer processes that moves less.

    Six processes can partition four heads only together with another index; four can do
    so alone. If all processes partition an index evenly, all of them are used: leaving
    some idle would nearly always move less, but take longer.

    Args:
        most_work: limit on the maximum work of a process over the average.
    """
    if made.statements is None:
        return made
    counts = made.outline()
    average = counts.points / made.processes
    is_even = counts.most_points <= MOST_EXCESS * average
    limit = max(counts.most_points, min(most_work, MOST_UNEVEN) * average)
    best, least = made, counts.moved
    for processes in fewer_processes(made, is_even=is_even):
        found = best_schedules(made.groups, made.extents, processes, limit=float(least))
        if found is None:
            continue
        other = with_schedules(made, found.schedules)
        theirs = other.outline()
        if theirs.moved < least and theirs.most_points <= limit:
            best, least = other, theirs.moved
    return best


def fewer_processes(made: Plan, *, is_even: bool) -> Iterator[int]:
    """Smaller numbers of processes that may do better, largest first.

    Args:
        is_even: whether all processes have about equal work; if not, the largest power
            of two may be more even.
    """
    n, extents = made.processes, set(made.extents.values())

    def divides(number: int) -> bool:
        return any(extent and extent % number == 0 for extent in extents)

    if is_even and divides(n):
        return
    power = 1 << max((n - 1).bit_length() - 1, 0)
    for few in range(n - 1, 1, -1):
        is_likely = n <= FEW_PROCESSES or divides(few)
        if (is_likely and few * MOST_UNEVEN >= n) or few == power:
            yield few
