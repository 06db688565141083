"""Measuring here what others claim, for facts in quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from feinsum.canonical import canonicalize
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.records import Device, FactStore, TuningRecord
from feinsum.tuning.tuning import record_facts


@dataclass(frozen=True)
class Confirmed:
    """A claim, and the measurement here.

    Attributes:
        claimed: a fact in quarantine.
        measured: the fact that was recorded here; None if the trial failed.
        problem: why it failed; usually empty.
    """

    claimed: TuningRecord
    measured: TuningRecord | None
    problem: str = ""


def winners(facts: Iterable[TuningRecord], device: Device) -> tuple[TuningRecord, ...]:
    """For each workload measured on a device, the fact that claims most; best first.

    Facts of other devices, which cannot be settled here, and facts that are no faster
    than the untransformed kernel, which would win nothing, are omitted.
    """
    best: dict[str, TuningRecord] = {}
    for fact in facts:
        there = fact.environment.device
        if not (there.is_surely(device) and fact.measurement.is_faster):
            continue
        known = best.setdefault(fact.workload, fact)
        if fact.measurement.speedup > known.measurement.speedup:
            best[fact.workload] = fact
    ordered = sorted(best.values(), key=lambda f: (-f.measurement.speedup, f.id))
    return tuple(ordered)


def measure_again(
    fact: TuningRecord,
    store: FactStore,
    *,
    device: str | None = None,
    trial_limit_s: float = 60.0,
) -> Confirmed:
    """Verify and time the recipe of a fact at its sizes, and record the measurement.

    The store of a service then releases facts that claim no more.
    """
    try:
        einsum = from_text(fact.workload_text)
        if canonicalize(einsum).text != fact.workload_text:
            return Confirmed(fact, None, "its text is not canonical here")
        measured = record_facts(
            einsum,
            fact.spec,
            sizes=fact.measurement.sizes,
            device=device,
            database=store,
            trial_limit_s=trial_limit_s,
        )
    except FeinsumError as error:
        return Confirmed(fact, None, f"[{error.code}] {error}")
    return Confirmed(fact, measured)
