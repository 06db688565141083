"""Choosing among the best plans by measured time.

Counts are exact and need no database. Where they tie or mislead, times measured on a
matching fleet decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median

from feinsum.canonical import canonicalize
from feinsum.distributed.alternatives import alternatives
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.fleets import fleet_here
from feinsum.distributed.plan import Plan
from feinsum.errors import FeinsumError
from feinsum.ir.workload import with_extents
from feinsum.records import Fleet, PlanRecord, Store, refusals
from feinsum.records.signature import trusted_signers, why_untrusted


def prefer_measured(
    made: Plan,
    source: Store,
    fleet: Fleet | None = None,
    *,
    most_bytes: float = float("inf"),
) -> Plan:
    """The plan, or another one with few elements that was measured to be faster.

    Only trusted facts count, for nobody can time a fleet here: those of recorders that
    their source trusts, and of trusted signers, if any are configured.

    Args:
        made: a plan of an einsum.
        source: the source of facts.
        fleet: the fleet to plan for; by default MPI ranks on this machine, with one
            thread each.
        most_bytes: memory limit of a process.

    Raises:
        StoreError: if the facts cannot be read.
        FeinsumError: if the setting of trusted signers is invalid.
    """
    where = fleet_here(made.processes) if fleet is None else fleet
    known = measured_s(_trusted(source.plans(made.key)), where)
    if identity(made) not in known:
        return made
    others = [one for one in alternatives(made) if one.peak_bytes <= most_bytes]
    return fastest_measured([made, *others], known)


def _trusted(records: Iterable[PlanRecord]) -> Iterable[PlanRecord]:
    signers = trusted_signers()
    known = (one for one in records if one.is_trusted)
    return [one for one in known if not (signers and why_untrusted(one, signers))]


def fastest_measured(plans: Sequence[Plan], known: Mapping[Hashable, float]) -> Plan:
    """The first plan, or a measured one that is faster; the first if it was not timed.

    A timing alone, without one of the first plan to compare with, decides nothing.

    Args:
        known: times in seconds, by :func:`identity`.
    """
    timed = [one for one in plans if identity(one) in known]
    if not timed or timed[0] is not plans[0]:
        return plans[0]
    return min(timed, key=lambda one: known[identity(one)])


def measured_s(records: Iterable[PlanRecord], fleet: Fleet) -> Mapping[Hashable, float]:
    """Times in seconds by :func:`identity`, from the facts that match a fleet.

    Facts of ranks that shared cores never count, nor do implausible ones.
    """
    found: dict[Hashable, list[float]] = defaultdict(list)
    for record in records:
        median_s = record.median_s
        if median_s is None or not (
            record.fleet.is_timed and record.fleet.is_like(fleet)
        ):
            continue
        plan = None if refusals(record) else _plan_of(record)
        if plan is not None:
            found[identity(plan)].append(median_s)
    return {one: median(seconds) for one, seconds in found.items()}


def _plan_of(record: PlanRecord) -> Plan | None:
    """The plan of an einsum; None for that of a program, which is chosen by counts."""
    try:
        return Plan.from_json(record.plan)
    except FeinsumError:
        return None


def identity(plan: Plan) -> Hashable:
    """Equal for plans that do the same, whatever the names in them.

    Plans that differ by a symmetry of their einsum may have different ones.
    """
    einsum = with_extents(plan.batched_einsum, plan.extents)
    form = canonicalize(einsum)
    indices, operands = form.relabeling.indices, form.relabeling.operands
    tensors = dict(operands)

    def held(where: Distribution, of: Sequence[str]) -> Hashable:
        cuts = zip([indices[i] for i in of], where.cuts, strict=True)
        return where.machine.sizes, tuple(sorted(cuts)), where.fixed, where.cyclic

    steps = []
    for k, (group, schedule) in enumerate(
        zip(plan.groups, plan.schedules, strict=True)
    ):
        loop = schedule.loop
        steps.append(
            (
                tuple(sorted(tensors[access.tensor] for access in group.inputs)),
                schedule.machine.sizes,
                tuple(None if i is None else indices[i] for i in schedule.axes),
                schedule.cyclic,
                loop and (indices[loop.index], loop.parts, loop.rotate, loop.is_cyclic),
                held(schedule.result, group.output.indices),
            )
        )
        tensors[group.output.tensor] = f"step {k}"
    terms = zip(einsum.rows[0], einsum.inputs, strict=True)
    first_use = {operand.name: term for operand, term in reversed([*terms])}
    starts = sorted(
        (operands[name], held(start, first_use[name]))
        for name, start in plan.starts.items()
    )
    return form.key, plan.processes, tuple(steps), tuple(starts)
