"""Prices: the estimated time of plans that move few elements.

Counts are exact; times are estimates from those given for links and leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum
from feinsum.plans.assembly import with_schedules
from feinsum.plans.named import named_like
from feinsum.plans.plan import LeafWork, Plan
from feinsum.plans.planner import plan
from feinsum.plans.search import best_of_machines
from feinsum.records import Links

__all__ = ["Links", "alternatives", "best_plans", "cheapest", "price"]


def best_plans(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    most: int = 5,
) -> tuple[Plan, ...]:
    """Distinct plans that move few elements, best first.

    These are the planner's choice, the best one for every machine of a quick search,
    and those of named schedules.

    Raises:
        PlanError: as :func:`plan` does.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> found = best_plans(feinsum.einsum("ij,jk->ik", A, B), processes=8, most=3)
    >>> [(one.name, one.counts.moved) for one in found]
    [('planned', 1080000), ('johnson', 1080000), ('eindecomp', 1080000)]
    """
    first = plan(einsum, sizes, processes=processes)
    return (first, *alternatives(first, most - 1))


def alternatives(made: Plan, most: int = 4) -> tuple[Plan, ...]:
    """Other plans with the same path that move few elements, best first.

    A plan that differs in its name alone is the same.
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


def price(plan: Plan, links: Links, leaf_s: Callable[[LeafWork], float]) -> float:
    """Estimated seconds of a process with the maximum of every count.

    Args:
        leaf_s: returns the measured or predicted seconds of one call of a leaf.
    """
    counts = plan.counts
    passing = (
        links.message_s * counts.most_messages + links.element_s * counts.most_received
    )
    leaves = sum(
        schedule.n_steps * leaf_s(leaf)
        for schedule, leaf in zip(plan.schedules, plan.leaves, strict=True)
    )
    return passing + leaves


def cheapest(
    plans: Sequence[Plan], links: Links, leaf_s: Callable[[LeafWork], float]
) -> Plan:
    """The plan with the lowest price; ties go to the first.

    Each distinct leaf is priced once.
    """
    if not plans:
        raise PlanError("no plans to choose from", rules=("price",))
    works = {leaf.key: leaf for one in plans for leaf in one.leaves}
    known = {key: leaf_s(leaf) for key, leaf in works.items()}
    return min(plans, key=lambda one: price(one, links, lambda leaf: known[leaf.key]))
