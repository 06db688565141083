"""The kinds of documents: facts, plans, limits of devices, trials, retractions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from feinsum.records.environment import Device, DevicePeaks
from feinsum.records.plan_record import PlanRecord
from feinsum.records.record import TuningRecord
from feinsum.records.retraction import Retraction
from feinsum.records.trial import Trial

Document: TypeAlias = TuningRecord | DevicePeaks | Trial | Retraction | PlanRecord

DocumentKind: TypeAlias = Literal["record", "peaks", "trial", "retraction", "plan"]


@dataclass(frozen=True)
class Kind:
    """The common properties of all documents of a kind.

    Attributes:
        cls: their class.
        summary: description of such a document in the schema of lines.
        time: the attribute with the time, ISO 8601.
        device: the device of a document.
        has_recipe: whether it has the outcome of a recipe for a workload in an
            environment.
        is_judged: whether it may be implausible.
    """

    cls: type[Document]
    summary: str
    time: str
    device: Callable[[Any], Device | None]
    has_recipe: bool = False
    is_judged: bool = True


KINDS: dict[DocumentKind, Kind] = {
    "record": Kind(
        TuningRecord,
        "A fact.",
        "recorded_at",
        lambda record: record.environment.device,
        has_recipe=True,
    ),
    "peaks": Kind(
        DevicePeaks,
        "Measured limits of a device.",
        "measured_at",
        lambda peaks: peaks.device,
    ),
    "trial": Kind(
        Trial,
        "A trial.",
        "recorded_at",
        lambda trial: trial.environment.device,
        has_recipe=True,
        is_judged=False,
    ),
    "retraction": Kind(
        Retraction,
        "The retraction of a document.",
        "retracted_at",
        lambda _retraction: None,
    ),
    "plan": Kind(
        PlanRecord,
        "The traffic and run times of a plan on a fleet.",
        "recorded_at",
        lambda record: record.fleet.device,
    ),
}
"""All kinds. A new one is an entry here, and a table in :mod:`feinsum.db.sql`."""

FACT_KINDS: tuple[DocumentKind, ...] = ("record", "peaks", "plan")
"""Kinds that answer look-ups: they have senders, and can be retracted."""


def kind_of(document: Document) -> DocumentKind:
    """Return the kind of a document."""
    # in the order of KINDS: most documents are records
    return next(name for name, kind in KINDS.items() if isinstance(document, kind.cls))
