"""Sources of facts, stores that also take them, sets of documents; one in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError
from feinsum.records.environment import Device, DevicePeaks
from feinsum.records.kinds import KINDS, Document, DocumentKind, kind_of
from feinsum.records.match import Policy
from feinsum.records.plan_record import PlanRecord
from feinsum.records.plausibility import latest_peaks
from feinsum.records.record import TuningRecord
from feinsum.records.retraction import Retraction
from feinsum.records.trial import Trial

__all__ = [
    "Candidates",
    "DocumentStore",
    "FactSource",
    "FactStore",
    "InMemoryStore",
    "LookUp",
]

Candidates = Mapping[WorkloadKey, tuple[TuningRecord, ...]]
"""For each workload its records, ordered by id."""


@dataclass(frozen=True)
class LookUp:
    """Workloads that are looked up together.

    Attributes:
        workloads: their canonical texts by key; a text may be empty.
        device: for which; None for any.
        policy: the worst match that is accepted there.
        counts: whether somebody wants these workloads, and not only facts that may
            serve for others.
    """

    workloads: Mapping[WorkloadKey, str]
    device: Device | None = None
    policy: Policy = "loose"
    counts: bool = True


class FactSource(ABC):
    """Where facts are looked up.

    A source that fails raises a :class:`feinsum.errors.StoreError`; one behind a
    service also what that says, a :class:`feinsum.errors.ServiceError`. Sources that
    are not read as a whole, keep no limits of devices, no trials or no plans, have
    none.
    """

    @abstractmethod
    def get(self, record_id: str) -> TuningRecord:
        """The record of that id, or :class:`RecordNotFoundError`."""

    @abstractmethod
    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """All records of a workload, ordered by id."""

    def candidates(self, look_up: LookUp) -> Candidates:
        """All records that :func:`feinsum.records.best_match` may choose or needs.

        Those that the policy refuses on that device may be left out.
        """
        return {workload: self.query(workload) for workload in look_up.workloads}

    def records(self) -> Iterator[TuningRecord]:
        """Every record, ordered by id."""
        yield from ()

    def like(self, notation: str) -> Iterator[TuningRecord]:
        """The records whose canonical text begins with ``notation + " |"``."""
        for record in self.records():
            if record.workload_text.partition(" | ")[0] == notation:
                yield record

    def peaks(self, device_id: str) -> DevicePeaks | None:
        """The latest plausible limits of a device."""
        return None

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        """All trials of a workload, the oldest first. No look-up sees them."""
        return ()

    def tried(self) -> tuple[WorkloadKey, ...]:
        """The workloads that have trials, ordered by key."""
        return ()

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        """What plans of an einsum or a program moved and took, ordered by id."""
        return ()

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        """The retractions of some documents, ordered by id, known here or not.

        What is retracted here is in no other answer, nor in that of a layer beside it.
        """
        return ()

    def close(self) -> None:  # noqa: B027  (most have nothing to release)
        """Release what is held; the source cannot be used any more."""


class FactStore(FactSource):
    """A source that also takes facts, measured limits of devices, and trials.

    It only grows. Adding is idempotent: everything is known by its content id.
    """

    @abstractmethod
    def add(self, record: TuningRecord) -> bool:
        """Keep ``record``; whether it was new."""

    @abstractmethod
    def add_peaks(self, peaks: DevicePeaks) -> bool:
        """Keep measured device limits; whether they were new."""

    @abstractmethod
    def add_trial(self, trial: Trial) -> bool:
        """Keep ``trial``, apart from the facts; whether it was new.

        A store that keeps no trials forgets it.
        """

    @abstractmethod
    def add_plan(self, record: PlanRecord) -> bool:
        """Keep what a plan moved and took; whether it was new."""

    @abstractmethod
    def __len__(self) -> int:
        """How many records there are."""

    def check_writable(self) -> None:
        """Refuse before work is done whose results could not be kept.

        Raises:
            StoreUnavailableError: if the store is only read, or does not answer.
            ServiceError: if it is a service that does not let one record.
        """


class DocumentStore(Protocol):
    """A set of documents of all kinds, each known by its content id.

    It can be written out, compared with another one, and united with it.
    """

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """The ids of all documents of a kind, in order."""
        ...

    def lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        """Those of some ids of a kind that are neither here nor retracted here."""
        ...

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        """All documents of a kind, or those with ids ``among``, ordered by id."""
        ...

    def add_all(self, documents: Iterable[Document]) -> int:
        """Keep documents of any kind, all or none of them; how many were new."""
        ...


class InMemoryStore(FactStore):
    """A store that lives as long as the process."""

    def __init__(self) -> None:
        self._known: dict[DocumentKind, dict[str, Any]] = {kind: {} for kind in KINDS}

    def add(self, record: TuningRecord) -> bool:
        return self._keep(record)

    def get(self, record_id: str) -> TuningRecord:
        for retraction in self.retractions_of([record_id]):
            raise RecordNotFoundError(
                f"the record {record_id} was retracted by {retraction}"
            )
        try:
            found: TuningRecord = self._known["record"][record_id]
        except KeyError:
            raise RecordNotFoundError(
                f"no record has the id {record_id!r}; list ids with 'feinsum query'"
            ) from None
        return found

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        return tuple(
            record
            for record in self.records()
            if record.workload == workload
            and device_id in (None, record.environment.device.id)
        )

    def records(self) -> Iterator[TuningRecord]:
        for record_id in sorted(self._of_kind("record")):
            yield self._known["record"][record_id]

    def __len__(self) -> int:
        return len(self._of_kind("record"))

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return self._keep(peaks)

    def peaks(self, device_id: str) -> DevicePeaks | None:
        retracted = self._retracted()
        return latest_peaks(
            p
            for p in self._known["peaks"].values()
            if p.device.id == device_id and p.id not in retracted
        )

    def add_trial(self, trial: Trial) -> bool:
        return self._keep(trial)

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        every: Iterable[Trial] = self._known["trial"].values()
        known = [trial for trial in every if trial.workload == workload]
        return tuple(sorted(known, key=lambda t: (t.recorded_at, t.id)))

    def tried(self) -> tuple[WorkloadKey, ...]:
        return tuple(sorted({t.workload for t in self._known["trial"].values()}))

    def add_plan(self, record: PlanRecord) -> bool:
        return self._keep(record)

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        known = self._of_kind("plan")
        found = [known[one] for one in sorted(known)]
        return tuple(
            one
            for one in found
            if isinstance(one, PlanRecord) and one.workload == workload
        )

    def add_retraction(self, retraction: Retraction) -> bool:
        """Hide what it retracts, now and whenever it comes; whether it was new."""
        return self._keep(retraction)

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        wanted = frozenset(ids)
        every: Iterable[Retraction] = self._known["retraction"].values()
        known = [retraction for retraction in every if retraction.document in wanted]
        return tuple(sorted(known, key=lambda retraction: retraction.id))

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        yield from sorted(self._of_kind(kind))

    def lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        return frozenset(ids) - self._of_kind(kind).keys() - self._retracted()

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        known = self._of_kind(kind)
        wanted = known if among is None else known.keys() & set(among)
        for document_id in sorted(wanted):
            yield known[document_id]

    def add_all(self, documents: Iterable[Document]) -> int:
        return sum([self._keep(document) for document in documents])

    def _keep(self, document: Document) -> bool:
        known = self._known[kind_of(document)]
        is_new = document.id not in known
        known.setdefault(document.id, document)
        return is_new

    def _retracted(self) -> frozenset[str]:
        return frozenset(r.document for r in self._known["retraction"].values())

    def _of_kind(self, kind: DocumentKind) -> Mapping[str, Document]:
        """What is there of a kind, but for what is retracted."""
        known = self._known[kind]
        if not (retracted := self._retracted()):
            return known
        return {k: d for k, d in known.items() if k not in retracted}
