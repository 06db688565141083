"""The plan whose slowest process finishes first, of those that several searches give.

A search minimizes the total volume on one machine, with about even work. The slowest
process of another plan may finish sooner. So the plan competes with others by estimated
time; among about equal ones, the volume decides. For a product on 127 processes::

    search on 127           the prime 127 partitions one index only
    a grid for each group   blocks may be uneven
    more even work          rows of the last process are not much shorter
    fewer processes         126 = 2 x 3 x 3 x 7 partitions all three indices
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from feinsum.distributed.assembly import with_cyclic, with_schedules
from feinsum.distributed.counts import TIE, Estimate, Rates
from feinsum.distributed.grids import make_grid_plans
from feinsum.distributed.maps import MAX_EXCESS
from feinsum.distributed.plans import Plan
from feinsum.distributed.search import find_best_of_machines, find_best_schedules

MAX_FOR_PATHS = 64
"""Maximum number of processes for which several paths are tried, which takes longer."""

EVENNESS = (1.02, 1.1, MAX_EXCESS)
"""Limits on the work of the busiest process over the average, one search for each."""

FEW = 8
"""Number of machines, those that move the least, whose best plans are compared."""

MAX_TRIED, MIN_TRIED, MAX_TRIED_RANKS = 16, 4, 2048
"""Limits on how many smaller numbers of processes are tried.

At least ``MIN_TRIED``, at most ``MAX_TRIED``; in between, as many as keep the number of
processes times the number of tries below ``MAX_TRIED_RANKS``.
"""

MIN_ELEMENT_S = 1e-15
"""Seconds of an element on free links, so that the limit of a search stays finite."""


def search_plan(
    bare: Plan, processes: int | None = None, **limits: float
) -> Plan | None:
    """Return a plan with the schedules of a search; None if there is nothing.

    Args:
        bare: a plan, whose schedules are replaced.
        processes: number of processes that take part; all by default.
        limits: see :func:`feinsum.distributed.search.find_best_schedules`.
    """
    result = find_best_schedules(bare, processes, **limits)
    if result is None:
        return None
    if (term := bare.sparse_term) is None:
        return with_schedules(bare, result.schedules)
    # blocks of a sparse tensor may have very different numbers of entries; it starts
    # where the search was restricted to, except for the cycles
    others = tuple(name for name in bare.placed if name != term.tensor)
    plan = with_schedules(replace(bare, placed=others), result.schedules)
    return replace(with_cyclic(plan, term.indices), placed=bare.placed)


def choose_quickest(plan: Plan, rates: Rates, max_elements: float = inf) -> Plan:
    """Return the plan, or another whose slowest process takes less time.

    The search minimizes the total volume, with work that is about even. The slowest
    process may take less time with more even work; with a separate grid for each group,
    whose blocks may be uneven; or on fewer processes. For example, a product of
    matrices for 127 processes takes less time on 126 = 2 x 3 x 3 x 7 of them, since the
    prime 127 can partition one index only.

    Args:
        plan: the plan to compare with.
        rates: seconds of a multiply-add, a message and an element.
        max_elements: limit on the elements that a process holds.
    """
    candidates = _Candidates(plan, rates, max_elements)
    is_dense = not plan.density
    for grid_plan in make_grid_plans(plan).values() if is_dense else ():
        candidates.offer(grid_plan)
    if is_dense and max_elements == inf and plan.processes <= MAX_FOR_PATHS:
        results = find_best_of_machines(plan)
        for result in results[:FEW]:
            candidates.offer(with_schedules(plan, result.schedules))
    counts = candidates.plans[0][1].counts
    is_even = counts.most_points * plan.processes <= EVENNESS[0] * counts.points
    numbers = [] if is_even else [plan.processes]
    # a memory limit was given for this number of processes
    if max_elements == inf:
        numbers += list_fewer_processes(plan.processes, is_even=is_even)
    for processes in numbers:
        for excess in EVENNESS:
            candidates.search(processes, excess)
    # the best plan has less even work than the searches allowed: search once more, with
    # the same freedom
    best, (*_, counts) = candidates.best
    excess = counts.most_points * counts.busy / max(counts.points, 1)
    if excess <= MAX_EXCESS:
        return best
    candidates.search(counts.busy, excess)
    return candidates.best[0]


class _Candidates:
    """Collects plans, and finds the best of them.

    Args:
        plan: the first plan, on all processes.
        rates: seconds of a multiply-add, a message and an element.
        max_elements: limit on the elements that a process holds.
    """

    def __init__(self, plan: Plan, rates: Rates, max_elements: float) -> None:
        self.first, self.rates, self.max_elements = plan, rates, max_elements
        self.plans = [(plan, plan.estimate(rates))]

    def offer(self, plan: Plan) -> None:
        """Add a plan that fits the memory and leaves work to several processes."""
        estimate = plan.estimate(self.rates)
        counts = estimate.counts
        if counts.busy > 1 and counts.peak <= self.max_elements:
            self.plans.append((plan, estimate))

    def search(self, processes: int, excess: float) -> None:
        """Search for a better plan on some processes, with a limit on uneven work."""
        rates = self.rates
        # with even work, all processes compute and receive about equally much
        (_, estimate) = self.plans[0]
        work_s = rates.point_s * estimate.counts.points / processes
        element_s = max(rates.links.element_s, MIN_ELEMENT_S)
        limit = processes * (TIE * self.least_s - work_s) / element_s
        if limit <= 0:
            return
        candidate = search_plan(self.first, processes, max_excess=excess, limit=limit)
        if candidate is not None:
            self.offer(candidate)

    @property
    def least_s(self) -> float:
        return min(estimate.seconds for _, estimate in self.plans)

    @property
    def best(self) -> tuple[Plan, Estimate]:
        """The plan that moves the least among those with about the least time."""
        ties = [pair for pair in self.plans if pair[1].seconds <= TIE * self.least_s]
        return min(ties, key=lambda pair: (pair[1].moved, pair[1].seconds))


def list_fewer_processes(n: int, *, is_even: bool) -> list[int]:
    """Return smaller numbers of processes that may be faster, most divisible first.

    At most a third of the processes may be idle; with more, a plan would take at least
    1.5 times as long.

    Args:
        n: number of processes that are available.
        is_even: whether all processes have equal work; then only numbers with smaller
            prime factors can be faster.

    >>> list_fewer_processes(7, is_even=False), list_fewer_processes(24, is_even=True)
    ([6, 5], [16])
    """

    def find_largest_prime(remaining: int) -> int:
        factor = 2
        while remaining > 1:
            if remaining % factor:
                factor += 1
            else:
                remaining //= factor
        return factor

    by_prime: dict[int, list[int]] = {}
    for number in range(max(2, -(-2 * n // 3)), n):
        by_prime.setdefault(find_largest_prime(number), []).append(number)
    least = find_largest_prime(n) if is_even else n
    # of numbers with equal largest primes, the largest two leave the fewest idle
    few = [
        number
        for prime in sorted(by_prime)
        if prime < least
        for number in by_prime[prime][:-3:-1]
    ]
    return few[: max(MIN_TRIED, min(MAX_TRIED, MAX_TRIED_RANKS // n))]
