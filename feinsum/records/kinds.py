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

__all__ = ["KINDS", "Document", "DocumentKind", "Kind", "kind_of"]

Document: TypeAlias = TuningRecord | DevicePeaks | Trial | Retraction | PlanRecord

DocumentKind: TypeAlias = Literal["record", "peaks", "trial", "retraction", "plan"]


@dataclass(frozen=True)
class Kind:
    """What all documents of a kind have in common.

    Attributes:
        cls: their class.
        summary: what such a document is, in the schema of lines.
        add: the method of a store that keeps one.
        time: the attribute with the time, ISO 8601.
        device: the device that it speaks of.
        has_recipe: whether it says what became of a recipe for a workload in an
            environment.
        is_judged: whether it may be implausible.
        judge: the function ``module:name`` that finds what else is wrong with a
            document that is plausible by its values. It is named and not imported, for
            it may need what stands above this package.
    """

    cls: type[Document]
    summary: str
    add: str
    time: str
    device: Callable[[Any], Device | None]
    has_recipe: bool = False
    is_judged: bool = True
    judge: str = ""


KINDS: dict[DocumentKind, Kind] = {
    "record": Kind(
        TuningRecord,
        "A fact.",
        "add",
        "recorded_at",
        lambda record: record.environment.device,
        has_recipe=True,
    ),
    "peaks": Kind(
        DevicePeaks,
        "Measured limits of a device.",
        "add_peaks",
        "measured_at",
        lambda peaks: peaks.device,
    ),
    "trial": Kind(
        Trial,
        "A trial.",
        "add_trial",
        "recorded_at",
        lambda trial: trial.environment.device,
        has_recipe=True,
        is_judged=False,
    ),
    "retraction": Kind(
        Retraction,
        "That a document is believed no more.",
        "add_retraction",
        "retracted_at",
        lambda _retraction: None,
    ),
    "plan": Kind(
        PlanRecord,
        "What a plan moved and took on a fleet.",
        "add_plan",
        "recorded_at",
        lambda record: record.fleet.device,
        judge="feinsum.programs.facts:findings",
    ),
}
"""Every kind. One more is an entry here, and its table in :mod:`feinsum.db.sql`."""


def kind_of(document: Document) -> DocumentKind:
    """The kind of a document."""
    return next(name for name, kind in KINDS.items() if isinstance(document, kind.cls))
