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

Candidates = Mapping[WorkloadKey, tuple[TuningRecord, ...]]
"""The records of each workload, ordered by id."""


@dataclass(frozen=True)
class LookUp:
    """Workloads to look up together.

    Attributes:
        workloads: their canonical texts by key; a text may be empty.
        device: the device; None for any.
        policy: the worst acceptable match.
        counts: whether the look-up counts as demand; false if it seeks facts for other
            workloads.
    """

    workloads: Mapping[WorkloadKey, str]
    device: Device | None = None
    policy: Policy = "loose"
    counts: bool = True


class FactSource(ABC):
    """A source of facts for look-ups.

    A source that fails raises a :class:`feinsum.errors.StoreError`; one behind a
    service may also raise a :class:`feinsum.errors.ServiceError`. Anything that a
    source lacks (reading all records, limits of devices, trials, plans) is empty.
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
        """All trials of a workload, oldest first. Look-ups ignore them."""
        return ()

    def tried(self) -> tuple[WorkloadKey, ...]:
        """The workloads that have trials, ordered by key."""
        return ()

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        """The plan facts of an einsum or a program, ordered by id."""
        return ()

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        """The retractions of some documents, ordered by id, known here or not.

        Retracted documents are in no other answer, nor in one of another layer.
        """
        return ()

    def close(self) -> None:  # noqa: B027  (most have nothing to release)
        """Release resources; the source cannot be used any more."""


class FactStore(FactSource):
    """A source that also stores facts, measured limits of devices, and trials.

    It is append-only. Adding is idempotent: everything is identified by its content id.
    """

    @abstractmethod
    def add(self, record: TuningRecord) -> bool:
        """Store ``record``; returns whether it was new."""

    def add_rekeyed(self, record: TuningRecord, origin: str) -> bool:
        """Store a record again under another key; returns whether it was new.

        Args:
            origin: id of the record under its old key; both have the same senders.
        """
        return self.add(record)

    @abstractmethod
    def add_peaks(self, peaks: DevicePeaks) -> bool:
        """Store measured device limits; returns whether they were new."""

    @abstractmethod
    def add_trial(self, trial: Trial) -> bool:
        """Store ``trial``, apart from the facts; returns whether it was new.

        A store without trials drops it.
        """

    @abstractmethod
    def add_plan(self, record: PlanRecord) -> bool:
        """Store a plan fact; returns whether it was new."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    def check_writable(self) -> None:
        """Refuse early, before doing work whose results could not be stored.

        Raises:
            StoreUnavailableError: if the store is read-only, or does not respond.
            ServiceError: if it is a service that does not permit recording.
        """


class DocumentStore(Protocol):
    """A set of documents of all kinds, each identified by its content id.

    It can be exported, compared with another one, and merged with it.
    """

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """The ids of all documents of a kind, in order."""
        ...

    def lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        """The given ids of a kind that are neither stored nor retracted here."""
        ...

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        """All documents of a kind, or those with ids ``among``, ordered by id."""
        ...

    def add_all(self, documents: Iterable[Document]) -> int:
        """Store documents of any kind, all or none; returns how many were new."""
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
        """Hide a document, even if it arrives later; returns whether this is new."""
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
        """The documents of a kind that are not retracted."""
        known = self._known[kind]
        if not (retracted := self._retracted()):
            return known
        return {k: d for k, d in known.items() if k not in retracted}
