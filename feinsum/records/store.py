"""The protocols of stores: of facts, of trials, of all documents; one in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError
from feinsum.records.environment import DevicePeaks
from feinsum.records.kinds import Document, DocumentKind
from feinsum.records.record import TuningRecord
from feinsum.records.trial import Trial

__all__ = ["DocumentStore", "InMemoryStore", "RecordStore", "TrialStore"]


@runtime_checkable
class RecordStore(Protocol):
    """An append-only set of tuning records, and of measured device peaks.

    Adding is idempotent: a record is known by its content id. A store that
    fails raises a :class:`feinsum.errors.StoreError`; one behind a service also what
    that says, a :class:`feinsum.errors.ServiceError`.
    """

    def add(self, record: TuningRecord) -> bool:
        """Keep ``record``; whether it was new."""
        ...

    def get(self, record_id: str) -> TuningRecord:
        """The record of that id, or :class:`RecordNotFoundError`."""
        ...

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """All records of a workload, ordered by id."""
        ...

    def records(self) -> Iterator[TuningRecord]:
        """Every record, ordered by id."""
        ...

    def __len__(self) -> int: ...

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        """Keep measured device limits; whether they were new."""
        ...

    def peaks(self, device_id: str) -> DevicePeaks | None:
        """The latest measured limits of a device."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class TrialStore(Protocol):
    """An append-only set of trials, apart from the facts: no look-up sees them."""

    def add_trial(self, trial: Trial) -> bool:
        """Keep ``trial``; whether it was new."""
        ...

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        """All trials of a workload, the oldest first."""
        ...

    def tried(self) -> tuple[WorkloadKey, ...]:
        """The workloads that have trials, ordered by key."""
        ...


@runtime_checkable
class DocumentStore(Protocol):
    """A set of documents of all kinds, each known by its content id.

    It can be written out, compared with another one, and united with it.
    """

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """The ids of all documents of a kind, in order."""
        ...

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        """All documents of a kind, or those with ids ``among``, ordered by id."""
        ...

    def add_all(self, documents: Iterable[Document]) -> int:
        """Keep documents of any kind, all or none of them; how many were new."""
        ...


class InMemoryStore:
    """A store that lives as long as the process."""

    def __init__(self) -> None:
        self._records: dict[str, TuningRecord] = {}
        self._peaks: dict[str, DevicePeaks] = {}
        self._trials: dict[str, Trial] = {}

    def add(self, record: TuningRecord) -> bool:
        is_new = record.id not in self._records
        self._records.setdefault(record.id, record)
        return is_new

    def get(self, record_id: str) -> TuningRecord:
        try:
            return self._records[record_id]
        except KeyError:
            raise RecordNotFoundError(
                f"no record has the id {record_id!r}; list ids with 'feinsum query'"
            ) from None

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
        for record_id in sorted(self._records):
            yield self._records[record_id]

    def __len__(self) -> int:
        return len(self._records)

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        is_new = peaks.id not in self._peaks
        self._peaks.setdefault(peaks.id, peaks)
        return is_new

    def peaks(self, device_id: str) -> DevicePeaks | None:
        known = [p for p in self._peaks.values() if p.device.id == device_id]
        return max(known, key=lambda p: (p.measured_at, p.id), default=None)

    def add_trial(self, trial: Trial) -> bool:
        is_new = trial.id not in self._trials
        self._trials.setdefault(trial.id, trial)
        return is_new

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        known = [t for t in self._trials.values() if t.workload == workload]
        return tuple(sorted(known, key=lambda t: (t.recorded_at, t.id)))

    def tried(self) -> tuple[WorkloadKey, ...]:
        return tuple(sorted({t.workload for t in self._trials.values()}))

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        yield from sorted(self._of_kind(kind))

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        known = self._of_kind(kind)
        wanted = known if among is None else known.keys() & set(among)
        for document_id in sorted(wanted):
            yield known[document_id]

    def add_all(self, documents: Iterable[Document]) -> int:
        return sum([self._add(document) for document in documents])

    def _add(self, document: Document) -> bool:
        if isinstance(document, Trial):
            return self.add_trial(document)
        if isinstance(document, DevicePeaks):
            return self.add_peaks(document)
        return self.add(document)

    def _of_kind(self, kind: DocumentKind) -> Mapping[str, Document]:
        tables: dict[DocumentKind, Mapping[str, Document]] = {
            "record": self._records,
            "peaks": self._peaks,
            "trial": self._trials,
        }
        return tables[kind]

    def close(self) -> None:
        """Nothing to release."""
