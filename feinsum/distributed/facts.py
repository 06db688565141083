"""Plan facts: reading, keying and judging their documents.

The checks of :mod:`feinsum.records.plausibility` call this module by name, because it
is in a higher layer: it counts the steps of the plan again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from feinsum.distributed.plan import Plan
from feinsum.distributed.program_plan import ProgramPlan
from feinsum.errors import FeinsumError, PlanError
from feinsum.ir import from_text
from feinsum.programs.key import program_key
from feinsum.records import BlockCheck, Finding, Fleet, PlanRecord
from feinsum.records.capability import capability_of, least_work
from feinsum.records.plausibility import finding

AnyPlan: TypeAlias = Plan | ProgramPlan

MOST_EXTENT = 2**40
"""Largest extent of an index in a plan from others."""

MOST_STEPS = 2**18
"""Most steps of all ranks in sequential loops; recounting more takes too long."""


def read_plan(text: str | bytes) -> AnyPlan:
    """Read a plan of an einsum, or of a program together with its statements.

    Raises:
        PlanError: if it is not a plan, or breaks a rule.
        ProgramError: if its program is ill-formed.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and "program" in document:
        return ProgramPlan.from_json(text)
    return Plan.from_json(text)


def plan_in(made: AnyPlan) -> Plan:
    """The plan itself, or the plan of a program plan."""
    return made.plan if isinstance(made, ProgramPlan) else made


def key_of(made: AnyPlan) -> str:
    """The key of a plan's einsum or program, as used by ``feinsum query``.

    Raises:
        PlanError: for bare statements, which have no key.

    >>> import feinsum
    >>> A, x = feinsum.array("A", (4, 4)), feinsum.array("x", 4)
    >>> e = feinsum.einsum("ij,j->i", A, x)
    >>> from feinsum.canonical import canonicalize
    >>> key_of(feinsum.plan(e, processes=2)) == canonicalize(e).key
    True
    """
    if isinstance(made, ProgramPlan):
        return program_key(made.program)
    if made.statements is not None:
        raise PlanError(
            "a plan of bare statements has no key; plan a program, which has one",
            rules=("einsum",),
        )
    return made.key


def fact_of(
    made: AnyPlan,
    fleet: Fleet,
    counted: int,
    verification: BlockCheck,
    samples_s: Sequence[float] = (),
    recorded_by: str = "feinsum",
) -> PlanRecord:
    """The fact of a run of a plan; with seconds only if they are meaningful."""
    return PlanRecord(
        key_of(made),
        made.to_json(),
        fleet,
        made.counts.document(),
        counted,
        verification,
        tuple(samples_s) if fleet.is_timed else (),
        {"recorded_by": recorded_by},
    )


def findings(record: PlanRecord) -> Iterator[Finding]:
    """Implausible findings in a fact whose single values are plausible."""
    try:
        made = _read(record.plan)
        key = key_of(made)
    except FeinsumError as error:
        yield finding("plan", str(error)[:200])
        return
    plan, fleet = plan_in(made), record.fleet
    if made.to_json() != record.plan:
        yield finding("plan", "its text is not in the canonical form")
    if key != record.workload:
        yield finding("key-of-another-plan", f"{record.workload[:80]}, not {key}")
    if fleet.ranks != plan.processes:
        yield finding("fleet", f"{fleet.ranks} ranks of {plan.processes}")
    expected = plan.counts.document()
    if dict(record.predicted) != expected or record.counted != expected["moved"]:
        given = f"{record.counted} received, {record.predicted.get('moved')} predicted"
        yield finding("counts", f"{given}; the steps move {expected['moved']}")
    least_s = _least_s(plan, fleet)
    if min(record.samples_s, default=least_s) < least_s:
        given = f"{min(record.samples_s):g} s, but {least_s:.3g} s at least"
        yield finding("faster-than-possible", given)


@lru_cache(64)
def _read(text: str) -> AnyPlan:
    made = read_plan(text)
    plan = plan_in(made)
    if max(plan.extents.values(), default=0) > MOST_EXTENT:
        raise PlanError(f"an extent is larger than {MOST_EXTENT}", rules=("sizes",))
    n_steps = plan.processes * sum(one.n_steps for one in plan.schedules)
    if n_steps > MOST_STEPS:
        raise PlanError(
            f"{n_steps} steps over all ranks; at most {MOST_STEPS} can be counted "
            "again",
            rules=("loop",),
        )
    return made


def _least_s(plan: Plan, fleet: Fleet) -> float:
    """Least time of the rank with the largest leaf, computed with its threads."""
    rank = capability_of(replace(fleet.device, compute_units=fleet.threads))
    works = (least_work(from_text(leaf.text), {}) for leaf in plan.leaves)
    return max((rank.seconds(work) for work in works), default=0.0)
