"""The kinds of documents: facts, limits of devices, trials, retractions."""

from __future__ import annotations

from typing import Literal, TypeAlias

from feinsum.records.environment import DevicePeaks
from feinsum.records.record import TuningRecord
from feinsum.records.retraction import Retraction
from feinsum.records.trial import Trial

__all__ = ["KINDS", "Document", "DocumentKind", "kind_of"]

Document: TypeAlias = TuningRecord | DevicePeaks | Trial | Retraction

DocumentKind: TypeAlias = Literal["record", "peaks", "trial", "retraction"]

KINDS: dict[DocumentKind, type[Document]] = {
    "record": TuningRecord,
    "peaks": DevicePeaks,
    "trial": Trial,
    "retraction": Retraction,
}


def kind_of(document: Document) -> DocumentKind:
    """The kind of a document."""
    return next(kind for kind, cls in KINDS.items() if isinstance(document, cls))
