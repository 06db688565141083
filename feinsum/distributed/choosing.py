"""Choosing among plans by more than communication volume: levels, prices, timings.

The planner minimizes the elements that move. Among plans that move about equally many,
other criteria decide: the levels of a machine (:func:`find_ties`,
:func:`find_cheap_plans`), estimated seconds (:func:`price`, :func:`cheapest`), or times
measured on such a fleet (:func:`prefer_measured`). Counts are exact and need no
database. Times are estimates from the given rates of links and leaves, or come from
facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from feinsum.canonical import canonicalize
from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.fleets import describe_fleet_here
from feinsum.distributed.grids import make_grid_plans
from feinsum.distributed.levels import Levels, estimate_seconds
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import LeafWork
from feinsum.distributed.search import find_best_of_machines
from feinsum.errors import FeinsumError, PlanError
from feinsum.ir.workload import with_extents
from feinsum.records import Fleet, Links, PlanRecord, Store, judge
from feinsum.records.signature import explain_untrusted, read_trusted_signers

MAX_PRICED = 24
"""Plans of a search by cost whose elements are counted by level."""


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
    return choose_measured_plan([plan, *candidates], seconds)


def _select_trusted(records: Iterable[PlanRecord]) -> Iterable[PlanRecord]:
    signers = read_trusted_signers()
    trusted = (record for record in records if record.is_trusted)
    return [r for r in trusted if not (signers and explain_untrusted(r, signers))]


def choose_measured_plan(
    plans: Sequence[Plan], seconds: Mapping[Hashable, float]
) -> Plan:
    """Return the first plan, or another one that was measured to be faster.

    If the first plan itself has no measured time, it is returned.

    Args:
        plans: plans, the default one first.
        seconds: measured times by :func:`compute_identity`.
    """
    timed = [plan for plan in plans if compute_identity(plan) in seconds]
    if not timed or timed[0] is not plans[0]:
        return plans[0]
    return min(timed, key=lambda plan: seconds[compute_identity(plan)])


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
    pairs = zip(plan.groups, plan.schedules, strict=True)
    for k, (group, schedule) in enumerate(pairs):
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
    terms = zip(einsum.rows[0], einsum.inputs, strict=True)
    first_use = {operand.name: term for operand, term in reversed([*terms])}
    starts = sorted(
        (operands[name], describe_placement(start, first_use[name]))
        for name, start in plan.starts.items()
    )
    ends = [
        describe_placement(end, plan.groups[-1].output.indices)
        for end in plan.ends.values()
    ]
    return form.key, plan.processes, tuple(steps), tuple(starts), tuple(ends)
