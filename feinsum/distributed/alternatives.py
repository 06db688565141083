"""Other plans of the same einsums, to choose from by more than elements moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.candidates import grid_plans
from feinsum.distributed.levels import Levels
from feinsum.distributed.plan import Plan
from feinsum.distributed.search import best_of_machines

MOST_PRICED = 24
"""Plans of a search by cost whose elements are counted by level."""


def alternatives(made: Plan, most: int | None = 4) -> tuple[Plan, ...]:
    """Other plans with the same path that move few elements, best first.

    Plans that differ only in their names are the same.
    """
    others = [
        with_schedules(made, found.schedules, name="planned")
        for found in best_of_machines(made.groups, made.extents, made.processes)
    ]
    unique = {_unnamed(one): one for one in (*others, *grid_plans(made).values(), made)}
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
    moved = made.outline().moved
    found = [one for one in alternatives(made, None) if one.outline().moved <= moved]
    return _as_even(made, found, most_elements)


def priced(made: Plan, levels: Levels, most_elements: float = inf) -> tuple[Plan, ...]:
    """Other plans with low costs on these levels, with work as even.

    Args:
        most_elements: limit on the elements that a process holds.
    """
    found = best_of_machines(made.groups, made.extents, made.processes, levels)
    plans = [with_schedules(made, one.schedules) for one in found[:MOST_PRICED]]
    return _as_even(made, plans, most_elements)


def _as_even(
    made: Plan, others: Sequence[Plan], most_elements: float
) -> tuple[Plan, ...]:
    own = made.outline().most_points
    counts = [one.outline() for one in others]
    return tuple(
        one
        for one, other in zip(others, counts, strict=True)
        if other.most_points <= own and other.peak <= most_elements
    )
