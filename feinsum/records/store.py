"""The protocol of all stores of documents, and the store in memory.

A store is a set of documents that grows: each document is identified by the digest of
its content, so adding is idempotent and merging is a set union. One class describes
them all; an implementation provides :meth:`Store.select` and, if it can be written,
:meth:`Store.add_all`. The other methods follow from these two and are overridden only
where a source answers faster, such as a database with an index::

                         Store: select, add_all, candidates, get, ...
                           |
      +-----------+--------+------+-------------+---------------+
    memory    packaged text   SQL database   HTTP service   layers of the others

>>> from feinsum.records import DevicePeaks, Device
>>> device = Device("OpenCL", "cpu", "vendor", "cpu", "x86_64", 8)
>>> peaks = DevicePeaks(device, 4e10, {"<f8": 2e11}, "2025-01-31T12:00:00+00:00")
>>> store = InMemoryStore()
>>> store.add(peaks), store.add(peaks)
(True, False)
>>> store.peaks(device.id) == peaks
True
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.records.environment import Device, DevicePeaks
from feinsum.records.kinds import (
    FACT_KINDS,
    KINDS,
    Document,
    DocumentKind,
    PlanRecord,
    Retraction,
    get_kind,
)
from feinsum.records.match import Policy
from feinsum.records.plausibility import find_latest_peaks
from feinsum.records.record import Trial, TuningRecord

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


@dataclass(frozen=True)
class Filters:
    """Conditions on documents; None for any.

    Attributes:
        among: the ids to choose from.
        workload: the key of the workload.
        device_id: the id of the device.
        notation: the subscripts, before the first bar of the canonical text.
    """

    among: Collection[str] | None = None
    workload: str | None = None
    device_id: str | None = None
    notation: str | None = None

    def admit(self, document: Document) -> bool:
        """Return whether a document matches all conditions.

        Kinds without a workload or a device match no condition on it.
        """
        if self.among is not None and document.id not in self.among:
            return False
        if self.workload not in (None, getattr(document, "workload", None)):
            return False
        if self.device_id is not None:
            device = KINDS[get_kind(document)].device(document)
            if device is None or device.id != self.device_id:
                return False
        return self.notation in (None, _get_notation(document))


class Store(ABC):
    """A set of documents of all kinds: facts, limits, plans, trials, retractions.

    A retracted fact is in no answer. A store that fails raises a
    :class:`feinsum.errors.StoreError`; one behind a service may also raise a
    :class:`feinsum.errors.ServiceError`. Kinds that a store lacks are empty.
    """

    @abstractmethod
    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        """Yield the valid documents of a kind that match all filters, ordered by id."""

    def documents(
        self,
        kind: DocumentKind,
        among: Collection[str] | None = None,
        *,
        workload: str | None = None,
        device_id: str | None = None,
        notation: str | None = None,
    ) -> Iterator[Document]:
        """Select documents, with the fields of :class:`Filters` as arguments."""
        return self.select(kind, Filters(among, workload, device_id, notation))

    def add_all(self, documents: Iterable[Document]) -> int:
        """Store documents of any kind, all or none; returns how many were new.

        A store without trials drops them.

        Raises:
            StoreUnavailableError: if the store is read-only, or does not respond.
        """
        raise StoreUnavailableError(
            "the source of facts is read-only; give the path of a database"
        )

    def add(self, document: Document) -> bool:
        """Store a document of any kind; returns whether it was new."""
        return self.add_all([document]) == 1

    def check_writable(self) -> None:
        """Refuse early, before doing work whose results could not be stored.

        Raises:
            StoreUnavailableError: if the store is read-only, or does not respond.
            ServiceError: if it is a service that does not permit recording.
        """
        if type(self).add_all is Store.add_all:  # add_all was not overridden: it raises
            self.add_all(())

    def candidates(self, look_up: LookUp) -> Candidates:
        """Return all records that :func:`feinsum.records.find_best_match` may choose.

        Those that the policy refuses on that device may be left out.
        """
        return {workload: self.query(workload) for workload in look_up.workloads}

    def get(self, record_id: str) -> TuningRecord:
        """Return the record with an id.

        Raises:
            RecordNotFoundError: if it is not stored, or was retracted.
        """
        # Retractions first: the record may still be stored here, or in another layer.
        for retraction in self.retractions_of([record_id]):
            raise RecordNotFoundError(
                f"the record {record_id} was retracted by {retraction}"
            )
        return self.stored(record_id)

    def stored(self, record_id: str) -> TuningRecord:
        """Return the record with an id; of a database, even if it was retracted.

        Raises:
            RecordNotFoundError: if it is not stored.
        """
        for record in self.documents("record", [record_id]):
            return cast(TuningRecord, record)
        raise RecordNotFoundError(
            f"no record has the id {record_id!r}; list ids with 'feinsum query'"
        )

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """Return all records of a workload, ordered by id."""
        records = self.documents("record", workload=workload, device_id=device_id)
        return cast(tuple[TuningRecord, ...], tuple(records))

    def records(self) -> Iterator[TuningRecord]:
        """Yield every record, ordered by id."""
        return cast(Iterator[TuningRecord], self.documents("record"))

    def like(self, notation: str) -> Iterator[TuningRecord]:
        """Yield the records whose canonical text begins with ``notation + " |"``."""
        records = self.documents("record", notation=notation)
        return cast(Iterator[TuningRecord], records)

    def peaks(self, device_id: str) -> DevicePeaks | None:
        """Return the latest plausible limits of a device."""
        peaks = self.documents("peaks", device_id=device_id)
        return find_latest_peaks(cast(Iterator[DevicePeaks], peaks))

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        """Return all trials of a workload, oldest first. Look-ups ignore them."""
        trials = cast(Iterator[Trial], self.documents("trial", workload=workload))
        return tuple(sorted(trials, key=lambda trial: (trial.recorded_at, trial.id)))

    def tried(self) -> tuple[WorkloadKey, ...]:
        """Return the workloads that have trials, ordered by key."""
        trials = cast(Iterator[Trial], self.documents("trial"))
        return tuple(sorted({trial.workload for trial in trials}))

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        """Return the plan facts of an einsum or a program, ordered by id."""
        plans = self.documents("plan", workload=workload)
        return cast(tuple[PlanRecord, ...], tuple(plans))

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        """Return the retractions of some documents, ordered by id.

        The documents need not be stored here: a retraction also hides copies in other
        layers.
        """
        retractions = cast(Iterator[Retraction], self.documents("retraction"))
        return tuple(r for r in retractions if r.document in ids)

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """Yield the ids of all documents of a kind, in order."""
        return (document.id for document in self.documents(kind))

    def find_lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        """Return those ids of a kind that are neither stored nor retracted here."""
        missing = frozenset(ids) - frozenset(self.ids(kind))
        if kind not in FACT_KINDS:  # other kinds are not hidden by retractions
            return missing
        return missing - {r.document for r in self.retractions_of(missing)}

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(1 for _ in self.ids("record"))

    def __bool__(self) -> bool:
        return True  # a store without records is still a store

    def close(self) -> None:  # noqa: B027  (most have nothing to release)
        """Release resources; the store cannot be used any more."""


class InMemoryStore(Store):
    """A store that lives as long as the process."""

    def __init__(self) -> None:
        self._documents: dict[DocumentKind, dict[str, Any]] = {k: {} for k in KINDS}

    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        stored = self._documents[kind]
        retracted = self._list_retracted() if kind in FACT_KINDS else frozenset[str]()
        among = filters.among
        ids = stored.keys() if among is None else stored.keys() & set(among)
        # sorted makes a copy, so documents may be added while iterating
        for document_id in sorted(ids - retracted):
            if filters.admit(stored[document_id]):
                yield stored[document_id]

    def add_all(self, documents: Iterable[Document]) -> int:
        n_new = 0
        for document in documents:
            stored = self._documents[get_kind(document)]
            n_new += document.id not in stored
            stored.setdefault(document.id, document)
        return n_new

    def _list_retracted(self) -> frozenset[str]:
        return frozenset(r.document for r in self._documents["retraction"].values())


def _get_notation(document: Document) -> str:
    """Return the subscripts of a document's einsum, the text before the first bar."""
    return str(getattr(document, "workload_text", "")).partition(" | ")[0]
