"""Other plans of the same einsums, to choose from by more than elements moved."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from feinsum.plans.assembly import with_schedules
from feinsum.plans.named import named_like
from feinsum.plans.plan import Plan
from feinsum.plans.search import best_of_machines

__all__ = ["alternatives", "ties"]


def alternatives(made: Plan, most: int | None = 4) -> tuple[Plan, ...]:
    """Other plans with the same path that move few elements, best first.

    Plans that differ only in their names are the same.
    """
    others = [
        with_schedules(made, found.schedules, name="planned")
        for found in best_of_machines(made.groups, made.extents, made.processes)
    ]
    unique = {_unnamed(one): one for one in (*others, *named_like(made).values(), made)}
    del unique[_unnamed(made)]
    shared = [one for one in unique.values() if one.outline().busy > 1]
    return tuple(sorted(shared, key=lambda one: one.outline().moved)[:most])


def _unnamed(plan: Plan) -> str:
    """The content id that all names of a plan share."""
    return replace(plan, name="").id


def ties(made: Plan, most_elements: float = inf) -> tuple[Plan, ...]:
    """Other plans that move as few elements, with work as even.

    Args:
        most_elements: limit on the elements that a process holds.
    """
    own, found = made.outline(), []
    for other in alternatives(made, None):
        counts = other.outline()
        is_even = counts.most_points <= own.most_points
        if is_even and counts.moved <= own.moved and counts.peak <= most_elements:
            found.append(other)
    return tuple(found)
