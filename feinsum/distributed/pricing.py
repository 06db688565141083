"""Prices: the estimated time of plans that move few elements.

Counts are exact; times are estimates from those given for links and leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from feinsum.distributed.alternatives import alternatives
from feinsum.distributed.leaves import LeafWork
from feinsum.distributed.levels import Levels, seconds_on
from feinsum.distributed.plan import Plan
from feinsum.distributed.planner import plan
from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum
from feinsum.records import Links


def best_plans(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    most: int = 5,
) -> tuple[Plan, ...]:
    """Distinct plans that move few elements, best first.

    These are the planner's choice, the best one for every machine of a quick search,
    and those with a grid of its own for every group.

    Raises:
        PlanError: as :func:`plan` does.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> found = best_plans(feinsum.einsum("ij,jk->ik", A, B), processes=8, most=3)
    >>> [(one.name, one.counts.moved) for one in found]
    [('planned', 1080000), ('eindecomp', 1080000), ('planned', 1440000)]
    """
    first = plan(einsum, sizes, processes=processes)
    return (first, *alternatives(first, most - 1))


def price(
    plan: Plan, links: Links | Levels, leaf_s: Callable[[LeafWork], float]
) -> float:
    """Estimated seconds of a process with the maximum of every count.

    Args:
        links: between any two processes, or of levels.
        leaf_s: returns the measured or predicted seconds of one call of a leaf.
    """
    leaves = sum(
        schedule.n_steps * leaf_s(leaf)
        for schedule, leaf in zip(plan.schedules, plan.leaves, strict=True)
    )
    if isinstance(links, Levels):
        return seconds_on(plan, links) + leaves
    counts = plan.counts
    elements_s = links.element_s * counts.most_received
    return links.message_s * counts.most_messages + elements_s + leaves


def cheapest(
    plans: Sequence[Plan], links: Links | Levels, leaf_s: Callable[[LeafWork], float]
) -> Plan:
    """The plan with the lowest price; ties go to the first.

    Each distinct leaf is priced once.
    """
    if not plans:
        raise PlanError("no plans to choose from", rules=("price",))
    works = {leaf.key: leaf for one in plans for leaf in one.leaves}
    known = {key: leaf_s(leaf) for key, leaf in works.items()}
    return min(plans, key=lambda one: price(one, links, lambda leaf: known[leaf.key]))
