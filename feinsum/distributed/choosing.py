"""Choosing among plans by more than communication volume: times, levels, prices.

A search minimizes the total volume on one machine, with about even work. The slowest
process of another plan may finish sooner. So the plan competes with others by estimated
time (:func:`choose_quickest`); among about equal ones, the volume decides. For a
product on 127 processes::

    search on 127           the prime 127 partitions one index only
    a grid for each group   blocks may be uneven
    more even work          rows of the last process are not much shorter
    fewer processes         126 = 2 x 3 x 3 x 7 partitions all three indices

Among plans that move about equally many elements, other criteria decide: the levels of
a machine (:func:`find_ties`, :func:`find_cheap_plans`), estimated seconds
(:func:`price`, :func:`cheapest`), or times measured on such a fleet
(:func:`prefer_measured`). Counts are exact and need no database. Times are estimates
from the given rates of links and leaves, or come from facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from feinsum.canonical import canonicalize
from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.counts import TIE, Estimate, Rates
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.fleets import describe_fleet_here
from feinsum.distributed.grids import make_grid_plans
from feinsum.distributed.levels import Levels, estimate_seconds
from feinsum.distributed.maps import MAX_EXCESS
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import LeafWork
from feinsum.distributed.search import find_best_of_machines, find_best_schedules
from feinsum.distributed.variations import with_cyclic
from feinsum.errors import FeinsumError, PlanError
from feinsum.ir.workload import with_extents
from feinsum.records import Fleet, Links, PlanRecord, Store, judge
from feinsum.records.signature import explain_untrusted, read_trusted_signers

MAX_PRICED = 24
"""Plans of a search by cost whose elements are counted by level."""

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
    if not bare.density:
        return with_schedules(bare, result.schedules)
    # blocks of a sparse tensor may have very different numbers of entries; it starts
    # where the search was restricted to, except for the cycles
    fixed = bare.sparse_starts
    others = tuple(name for name in bare.placed if name not in fixed)
    blocked = with_schedules(replace(bare, placed=others), result.schedules)
    plan = with_cyclic(blocked, _list_dealt_indices(bare))
    if any(plan.starts[name] != start for name, start in fixed.items()):
        return None
    return replace(plan, placed=bare.placed)


def _list_dealt_indices(bare: Plan) -> set[str]:
    """Return the indices of sparse operands, except those requested in blocks."""
    dealt = set()
    for access in bare.problem.walked:
        if access is None:
            continue
        start = bare.sparse_starts.get(access.tensor)
        for axis, index in enumerate(access.indices):
            cuts = () if start is None else start.cuts[axis]
            if start is None or not cuts or {*cuts} & {*start.cyclic}:
                dealt.add(index)
    return dealt


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


# ---- alternatives, and levels


def find_alternatives(plan: Plan, max_plans: int | None = 4) -> tuple[Plan, ...]:
    """Return other plans with the same path that move few elements, best first.

    Plans that differ only in their names are the same. A plan with a sparse operand has
    no alternatives: the entries fix where the other operands are needed.
    """
    if plan.density:
        return ()
    candidates = [
        with_schedules(plan, result.schedules, name="planned")
        for result in find_best_of_machines(plan)
    ]
    unique = {
        _compute_unnamed_id(p): p
        for p in (*candidates, *make_grid_plans(plan).values(), plan)
    }
    # the plan itself came last into the dictionary, and is no alternative
    del unique[_compute_unnamed_id(plan)]
    # a single process moves nothing, and would always be best
    parallel = [
        candidate for candidate in unique.values() if candidate.outline().busy > 1
    ]
    return tuple(sorted(parallel, key=lambda other: other.outline().moved)[:max_plans])


def _compute_unnamed_id(plan: Plan) -> str:
    """Return the content id of a plan without its name."""
    return replace(plan, name="").id


def find_ties(plan: Plan, max_elements: float = inf) -> tuple[Plan, ...]:
    """Return other plans that move as few elements, with work as even.

    Args:
        plan: the plan to compare with.
        max_elements: limit on the elements that a process holds.
    """
    moved = plan.outline().moved
    candidates = find_alternatives(plan, None)
    tied = [candidate for candidate in candidates if candidate.outline().moved <= moved]
    return _select_as_even(plan, tied, max_elements)


def find_cheap_plans(
    plan: Plan, levels: Levels, max_elements: float = inf
) -> tuple[Plan, ...]:
    """Return other plans with low costs on these levels, with work as even.

    Args:
        plan: the plan to compare with.
        levels: the units of the hardware and the costs of their links.
        max_elements: limit on the elements that a process holds.
    """
    if plan.density:
        return ()
    results = find_best_of_machines(plan, levels)
    candidates = [
        with_schedules(plan, result.schedules) for result in results[:MAX_PRICED]
    ]
    return _select_as_even(plan, candidates, max_elements)


def _select_as_even(
    plan: Plan, candidates: Sequence[Plan], max_elements: float
) -> tuple[Plan, ...]:
    # a plan that communicates less but computes longer is no tie
    max_points = plan.outline().most_points
    outlines = [candidate.outline() for candidate in candidates]
    return tuple(
        candidate
        for candidate, counts in zip(candidates, outlines, strict=True)
        if counts.most_points <= max_points and counts.peak <= max_elements
    )


# ---- prices


def price(
    plan: Plan, links: Links | Levels, leaf_s: Callable[[LeafWork], float]
) -> float:
    """Estimate the seconds of a process with the maximum of every count.

    Args:
        plan: the plan to price.
        links: between any two processes, or of levels.
        leaf_s: returns the measured or predicted seconds of one call of a leaf.
    """
    leaves = sum(
        schedule.n_steps * leaf_s(leaf)
        for schedule, leaf in zip(plan.schedules, plan.leaves, strict=True)
    )
    if isinstance(links, Levels):
        return estimate_seconds(plan, links) + leaves
    # an upper bound: the maxima may be of different processes
    counts = plan.counts
    elements_s = links.element_s * counts.most_received
    return links.message_s * counts.most_messages + elements_s + leaves


def cheapest(
    plans: Sequence[Plan], links: Links | Levels, leaf_s: Callable[[LeafWork], float]
) -> Plan:
    """Return the plan with the lowest price; ties go to the first.

    Each distinct leaf is priced once.
    """
    if not plans:
        raise PlanError("no plans to choose from", rules=("price",))
    # a price may be a measurement or a prediction, neither of which is free
    leaves = {leaf.key: leaf for plan in plans for leaf in plan.leaves}
    seconds = {key: leaf_s(leaf) for key, leaf in leaves.items()}
    return min(
        plans, key=lambda plan: price(plan, links, lambda leaf: seconds[leaf.key])
    )


# ---- measured times


def prefer_measured(
    plan: Plan,
    source: Store,
    fleet: Fleet | None = None,
    *,
    max_bytes: float = float("inf"),
) -> Plan:
    """Return the plan, or an alternative that was measured to be faster.

    Only trusted facts count, because their times cannot be verified on this machine:
    facts of recorders that their source trusts, and of trusted signers, if any are
    configured.

    Args:
        plan: a plan of an einsum.
        source: the source of facts.
        fleet: the fleet to plan for; by default MPI ranks on this machine, with one
            thread each.
        max_bytes: memory limit of a process.

    Raises:
        StoreError: if the facts cannot be read.
        FeinsumError: if the setting of trusted signers is invalid.
    """
    fleet = describe_fleet_here(plan.processes) if fleet is None else fleet
    seconds = collect_measured_s(_select_trusted(source.plans(plan.key)), fleet)
    # nothing to compare others with
    if compute_identity(plan) not in seconds:
        return plan
    candidates = [p for p in find_alternatives(plan) if p.peak_bytes <= max_bytes]
    timed = [p for p in (plan, *candidates) if compute_identity(p) in seconds]
    return min(timed, key=lambda p: seconds[compute_identity(p)])


def _select_trusted(records: Iterable[PlanRecord]) -> Iterable[PlanRecord]:
    signers = read_trusted_signers()
    trusted = (record for record in records if record.is_trusted)
    return [r for r in trusted if not (signers and explain_untrusted(r, signers))]


def collect_measured_s(
    records: Iterable[PlanRecord], fleet: Fleet
) -> Mapping[Hashable, float]:
    """Return times in seconds by :func:`compute_identity`, from facts of a fleet.

    Facts of ranks that shared cores never count, nor do implausible ones.
    """
    times: dict[Hashable, list[float]] = defaultdict(list)
    for record in records:
        median_s, recorded = record.median_s, record.fleet
        if median_s is None or not (recorded.is_timed and recorded.is_like(fleet)):
            continue
        # a store may contain facts that later rules refuse
        plan = None if judge(record) else _read_einsum_plan(record)
        if plan is not None:
            times[compute_identity(plan)].append(median_s)
    return {plan: median(seconds) for plan, seconds in times.items()}


def _read_einsum_plan(record: PlanRecord) -> Plan | None:
    """Return the plan of an einsum; None for a program, which is chosen by counts."""
    try:
        return Plan.from_json(record.plan)
    except FeinsumError:
        return None


def compute_identity(plan: Plan) -> Hashable:
    """Return a value that is equal for plans that differ only in names.

    Indices and operands are renamed to those of the canonical form. Plans that differ
    by a symmetry of their einsum may have different identities.
    """
    einsum = with_extents(plan.batched_einsum, plan.extents)
    form = canonicalize(einsum)
    indices, operands = form.relabeling.indices, form.relabeling.operands

    def describe_placement(
        distribution: Distribution, names: Sequence[str]
    ) -> Hashable:
        cuts = zip([indices[i] for i in names], distribution.cuts, strict=True)
        return (
            distribution.machine.sizes,
            tuple(sorted(cuts)),
            distribution.fixed,
            distribution.cyclic,
        )

    tensors, steps = dict(operands), []
    for k, (group, schedule) in enumerate(plan.scheduled):
        loop = schedule.loop
        steps.append(
            (
                tuple(sorted(tensors[access.tensor] for access in group.inputs)),
                schedule.machine.sizes,
                tuple(None if i is None else indices[i] for i in schedule.axes),
                schedule.cyclic,
                loop and (indices[loop.index], loop.parts, loop.rotate, loop.is_cyclic),
                describe_placement(schedule.result, group.output.indices),
            )
        )
        # results have names of their own in every plan
        tensors[group.output.tensor] = f"step {k}"
    starts = sorted(
        (operands[name], describe_placement(start, plan.first_accesses[name].indices))
        for name, start in plan.starts.items()
    )
    ends = [
        describe_placement(end, plan.groups[-1].output.indices)
        for end in plan.ends.values()
    ]
    return form.key, plan.processes, tuple(steps), tuple(starts), tuple(ends)
