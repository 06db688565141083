"""Facts of plans: what processes moved and took, immutable and named by content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from constantdict import constantdict

from feinsum.records.document import STRICT, Document
from feinsum.records.fleet import Fleet
from feinsum.records.record import utc_now
from feinsum.words import brief, counted


@dataclass(frozen=True)
class BlockCheck:
    """Blocks of results that were compared with a reference.

    Attributes:
        n_blocks: number of samples, each of one rank's part of one result.
        n_entries: number of entries in all of them.
        tolerance: maximum error, relative to the largest entry.
        largest_error: the largest error found.
    """

    __pydantic_config__ = STRICT

    n_blocks: int
    n_entries: int
    tolerance: float
    largest_error: float


@dataclass(frozen=True)
class PlanRecord(Document):
    """A plan with its traffic and run times on a fleet.

    Attributes:
        workload: the key of the einsum or program.
        plan: its document, as text.
        fleet: the fleet that ran it.
        predicted: the counts of the plan's steps, by name; see
            :class:`feinsum.distributed.Counts`.
        counted: elements received by all ranks.
        verification: of blocks of the results.
        samples_s: seconds of runs, each of the slowest rank; none if ranks shared cores
            (:attr:`Fleet.is_timed`).
        provenance: who or what recorded it, as free text by topic.
        recorded_at: UTC, ISO 8601.
    """

    workload: str
    plan: str  # as text: records of plans need no planner to be stored or compared
    fleet: Fleet
    predicted: Mapping[str, int]
    counted: int
    verification: BlockCheck
    samples_s: tuple[float, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=constantdict)
    recorded_at: str = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicted", constantdict(self.predicted))
        object.__setattr__(self, "provenance", constantdict(self.provenance))

    @cached_property
    def plan_id(self) -> str:
        """The content id of the plan."""
        return hashlib.sha256(self.plan.encode()).hexdigest()

    @property
    def median_s(self) -> float | None:
        """Seconds of a run; None if none were taken."""
        return median(self.samples_s) if self.samples_s else None

    def __str__(self) -> str:
        seconds = "" if self.median_s is None else f", {self.median_s * 1e3:.4g} ms"
        moved = f"{counted(self.counted, 'element', ',')} moved{seconds}"
        return f"plan {self.plan_id[:12]} on {self.fleet}: {moved}"

    def __repr__(self) -> str:
        return brief(self, str(self))
