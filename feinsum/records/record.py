"""Tuning records: facts, immutable and named by their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from constantdict import constantdict

from feinsum.canonical import WorkloadKey
from feinsum.records.document import Document
from feinsum.records.environment import Environment
from feinsum.records.measurement import Measurement
from feinsum.records.spec import FramedSpec, TransformSpec
from feinsum.words import brief


def utc_now() -> str:
    """Return the time now, UTC, ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class TuningRecord(Document):
    """A recipe and its performance on a workload in an environment.

    Attributes:
        workload: the key of the canonical einsum.
        workload_text: the canonical einsum as recorded; compared on every hit.
            :attr:`spec` refers to its names.
        provenance: who or what recorded it, as free text by topic.
        recorded_at: UTC, ISO 8601.
    """

    workload: WorkloadKey
    workload_text: str
    environment: Environment
    spec: TransformSpec
    measurement: Measurement
    provenance: Mapping[str, str] = field(default_factory=constantdict)
    recorded_at: str = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        object.__setattr__(self, "provenance", constantdict(self.provenance))

    def __repr__(self) -> str:
        return brief(self, f"{self.id[:12]}: {self.spec}, {self.measurement!r}")

    @property
    def recipe(self) -> FramedSpec:
        """The recipe, with the text to whose names it refers."""
        return FramedSpec(self.spec, self.workload_text)
