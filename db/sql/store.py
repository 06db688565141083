"""The store of tuning records in an SQL database."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Select, delete

from feinsum.canonical import WorkloadKey
from feinsum.db.sql.engine import engine_of, writer
from feinsum.db.sql.failures import read_only, translated
from feinsum.db.sql.info import StoreInfo, count, describe
from feinsum.db.sql.location import BUSY_TIMEOUT_S, Location, locate
from feinsum.db.sql.retracting import Retracted, find_retractions, hidden, retract
from feinsum.db.sql.rows import Row, rows_of
from feinsum.db.sql.schema import NEWEST, prepare
from feinsum.db.sql.statements import (
    HAVE_TRUST,
    LIKE,
    OF_DEVICE,
    OF_WORKLOAD,
    PEAKS,
    PLANS,
    RECORDS,
    RETRACTED,
    SELECTS,
    TABLES,
    TRIALS,
    TRIED,
    WORKLOADS,
    copy_recorders,
    insert_all_missing,
    insert_missing_rows,
    sound,
    sound_peaks,
    sound_plans,
    sound_records,
    sound_trials,
    trusted,
)
from feinsum.db.sql.statistics import Statistics, summarize
from feinsum.db.sql.tables import (
    DevicePeaksRow,
    PlanRow,
    RecordingRow,
    RecordRow,
    TrialRow,
)
from feinsum.db.sql.workloads import WorkloadCount, list_workloads
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.records import (
    DevicePeaks,
    Document,
    DocumentKind,
    FactStore,
    PlanRecord,
    Retraction,
    RetractionQuery,
    Trial,
    TuningRecord,
    latest_peaks,
)

PAGE = 500
"""How many documents are read at once."""


def open_store(
    location: str | os.PathLike[str] | None = None,
    *,
    is_read_only: bool = False,
    is_immutable: bool = False,
    may_create: bool = True,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> SqlStore:
    """Open a database of tuning records, creating or migrating it if allowed.

    Args:
        location: path of an SQLite file, ``sqlite:///path`` or
            ``postgresql://user@host/database``; None for the user's database
            (:func:`feinsum.db.default_location`).
        is_read_only: do not write. A file or folder without write permission is always
            opened this way.
        is_immutable: do not create files beside an SQLite file, and acquire no locks:
            for a file on a network that is replaced as a whole. The contents of its log
            are not seen.
        may_create: create a missing database, and migrate one of an older feinsum.
            False for readers.
        busy_timeout_s: how long to wait for the locks of other processes.

    Raises:
        StoreUnavailableError: if it cannot be opened, is not a feinsum database, or is
            missing and must not be created.
        SchemaVersionError: if a newer version wrote it, or an older one and it must not
            be migrated.
    """
    only_read = is_read_only or is_immutable
    place = locate(location, is_read_only=only_read, busy_timeout_s=busy_timeout_s)
    place = replace(
        place,
        is_immutable=is_immutable and place.path is not None,
        may_create=may_create,
        may_migrate=may_create,
    )
    return SqlStore(prepared_engine(place), place)


@dataclass(frozen=True)
class Migration:
    """Result of :func:`migrate`: the versions of the schema before and after."""

    location: str
    before: str | None
    after: str


def migrate(location: str | os.PathLike[str] | None = None) -> Migration:
    """Upgrade an existing database to the newest schema; see :func:`open_store`.

    Raises:
        StoreUnavailableError: if it is missing, or is not a feinsum database.
        SchemaVersionError: if a newer version wrote it, or it is read-only.
    """
    place = replace(locate(location), may_create=False)
    engine = engine_of(place)
    try:
        with translated(place):
            return Migration(str(place), prepare(engine, place), NEWEST)
    finally:
        engine.dispose()


def prepared_engine(place: Location) -> Engine:
    """An engine for a database with the newest schema; see :func:`open_store`."""
    engine = engine_of(place)
    try:
        with translated(place):
            prepare(engine, place)
    except BaseException:
        engine.dispose()
        raise
    return engine


class SqlStore(FactStore):
    """A store of records and of trials in SQLite or PostgreSQL.

    When ``add`` returns, the fact is on disk. Rows that do not match their ids are
    skipped and logged, and never served. Retracted facts
    (:mod:`feinsum.db.sql.retracting`) can only be read by :meth:`stored`. Look-ups mark
    the records of untrusted recorders (:mod:`feinsum.db.server.trust`). Thread-safe;
    create one with :func:`open_store`.
    """

    def __init__(self, engine: Engine, location: Location) -> None:
        self._engine = engine
        self._location = location
        self._is_closed = False

    def add(self, record: TuningRecord) -> bool:
        return self._insert(rows_of(record))

    def add_rekeyed(self, record: TuningRecord, origin: str) -> bool:
        rows = rows_of(record)
        with self._writing() as connection:
            is_new = insert_missing_rows(connection, rows)
            if is_new:
                copy_recorders(connection, origin, record.id)
        return is_new

    def add_all(self, documents: Iterable[Document]) -> int:
        """Store documents of any kind, all or none; returns how many were new."""
        rows = [row for document in documents for row in rows_of(document)]
        with self._writing() as connection:
            return insert_all_missing(connection, rows)

    def get(self, record_id: str) -> TuningRecord:
        for retraction in self.retractions_of([record_id]):
            raise RecordNotFoundError(
                f"the record {record_id} was retracted by {retraction}"
            )
        return self.stored(record_id)

    def stored(self, record_id: str) -> TuningRecord:
        """The record with an id, retracted or not, or :class:`RecordNotFoundError`."""
        found = self._select(RECORDS.where(RecordRow.id == record_id))
        for record in sound_records(found):
            return record
        state = "stored but damaged" if found else "not stored"
        raise RecordNotFoundError(
            f"a record with the id {record_id!r} is {state} in {self._location}; "
            "list ids with 'feinsum query'"
        )

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        wanted = OF_WORKLOAD if device_id is None else OF_DEVICE
        values = {"workload": workload, "device": device_id}
        with self._reading() as connection:
            rows = connection.execute(wanted, values).all()
        return tuple(sound_records(rows, has_trust=True))

    def records(self) -> Iterator[TuningRecord]:
        """Every record, ordered by id; no lock is held while iterating."""
        for rows in self._pages("record"):
            yield from sound_records(rows, has_trust=True)

    def like(self, notation: str) -> Iterator[TuningRecord]:
        with self._reading() as connection:
            rows = connection.execute(LIKE, {"start": f"{notation} |"}).all()
        yield from sound_records(rows)

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """All ids, including those of damaged rows."""
        column = TABLES[kind].id
        ids = SELECTS[kind].with_only_columns(column).order_by(column)
        with self._reading() as connection:
            found = connection.scalars(ids).all()
        yield from found

    def lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        missing = frozenset(ids) - frozenset(self.ids(kind))
        return missing - {r.document for r in self.retractions_of(missing)}

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        """All documents; as in :meth:`records`, no lock is held."""
        for rows in self._pages(kind, among):
            yield from sound(kind, rows, has_trust=kind in HAVE_TRUST)

    def workloads(self) -> Iterator[WorkloadKey]:
        """The workload keys of all records, sorted."""
        with self._reading() as connection:
            found = sorted(connection.scalars(WORKLOADS))
        yield from map(WorkloadKey, found)

    def remove(self, record_ids: Collection[str]) -> int:
        """Delete records, and who sent them, all or none; returns their number.

        Nothing recorded should be lost: :func:`feinsum.db.exchange.collect_garbage`
        writes them to a file first.
        """
        ids, n_removed = sorted(record_ids), 0
        with self._writing() as connection:
            for first in range(0, len(ids), PAGE):
                part = ids[first : first + PAGE]
                sent = RecordingRow.record_id.in_(part)
                connection.execute(delete(RecordingRow).where(sent))
                chosen = RecordRow.id.in_(part)
                gone = delete(RecordRow).where(chosen).returning(RecordRow.id)
                n_removed += len(connection.execute(gone).all())
        return n_removed

    def __len__(self) -> int:
        with self._reading() as connection:
            return count(connection, RecordRow) - hidden(connection)

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return self._insert(rows_of(peaks))

    def peaks(self, device_id: str) -> DevicePeaks | None:
        wanted = PEAKS.where(DevicePeaksRow.device_id == device_id)
        # not only the latest: damaged and implausible ones are skipped
        latest = wanted.order_by(DevicePeaksRow.measured_at.desc()).limit(PAGE)
        is_trusted = trusted(DevicePeaksRow)
        for among in (latest.where(is_trusted), latest.where(~is_trusted)):
            if found := latest_peaks(sound_peaks(self._select(among))):
                return found
        return None

    def add_trial(self, trial: Trial) -> bool:
        return self._insert(rows_of(trial))

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        wanted = TRIALS.where(TrialRow.workload_key == workload)
        in_time = wanted.order_by(TrialRow.recorded_at, TrialRow.id)
        with self._reading() as connection:
            return tuple(sound_trials(connection.execute(in_time).all()))

    def tried(self) -> tuple[WorkloadKey, ...]:
        with self._reading() as connection:
            return tuple(map(WorkloadKey, sorted(connection.scalars(TRIED))))

    def add_plan(self, record: PlanRecord) -> bool:
        return self._insert(rows_of(record))

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        wanted = PLANS.where(PlanRow.workload_key == workload).order_by(PlanRow.id)
        return tuple(sound_plans(self._select(wanted), has_trust=True))

    def add_retraction(self, retraction: Retraction) -> bool:
        """Hide a document, now or when it arrives; returns whether that was new."""
        return self._insert(rows_of(retraction))

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        with self._reading() as connection:
            return find_retractions(connection, ids)

    def retract(
        self,
        query: RetractionQuery,
        *,
        reason: str = "",
        retracted_by: str = "",
        is_dry_run: bool = True,
    ) -> Retracted:
        """Retract facts, all or none (:func:`feinsum.db.sql.retracting.retract`)."""
        opened = self._reading() if is_dry_run else self._writing()
        with opened as connection:
            return retract(
                connection,
                query,
                reason=reason,
                retracted_by=retracted_by,
                is_dry_run=is_dry_run,
            )

    def retracted(self) -> Iterator[TuningRecord]:
        """The facts that are stored and retracted, ordered by id."""
        ids = RECORDS.where(RETRACTED).with_only_columns(RecordRow.id)
        with self._reading() as connection:
            found = sorted(connection.scalars(ids))
        for first in range(0, len(found), PAGE):
            chosen = RecordRow.id.in_(found[first : first + PAGE])
            yield from sound_records(
                self._select(RECORDS.where(chosen).order_by(RecordRow.id))
            )

    def check_writable(self) -> None:
        if self._location.is_read_only:
            raise StoreUnavailableError(
                f"the database {self._location} is read-only and cannot store the "
                "results of a tuning: ask for write permission on the file and its "
                "folder, or give another database"
            )

    def info(self) -> StoreInfo:
        """Location, version, totals and size, for operators."""
        with self._reading() as connection:
            return describe(connection, self._location)

    def statistics(self) -> Statistics:
        """Facts by device and driver, and by transform."""
        with self._reading() as connection:
            return summarize(connection)

    def listed_workloads(self) -> tuple[WorkloadCount, ...]:
        """Every workload with facts or trials; most facts first."""
        with self._reading() as connection:
            return list_workloads(connection)

    @property
    def path(self) -> Path | None:
        """The file of the database; None for a server."""
        return self._location.path

    def close(self) -> None:
        """Release all connections; the store cannot be used afterwards."""
        self._is_closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqlStore({str(self._location)!r})"

    def _insert(self, rows: Sequence[Row]) -> bool:
        """Insert the rows that are missing; whether the last one was."""
        with self._writing() as connection:
            return insert_missing_rows(connection, rows)

    def _pages(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Sequence[Any]]:
        """Rows of a kind in order of their ids, page by page."""
        column = TABLES[kind].id
        if among is not None:
            ids = sorted(among)
            for first in range(0, len(ids), PAGE):
                chosen = column.in_(ids[first : first + PAGE])
                yield self._select(SELECTS[kind].where(chosen).order_by(column))
            return
        page = SELECTS[kind].order_by(column).limit(PAGE)
        last = ""
        while rows := self._select(page.where(column > last)):
            yield rows
            last = rows[-1].id

    def _select(self, wanted: Select[*tuple[Any, ...]]) -> Sequence[Any]:
        with self._reading() as connection:
            return connection.execute(wanted).all()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._check_open()
        with translated(self._location), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        self._check_open()
        if self._location.is_read_only:
            raise read_only(self._location)
        with translated(self._location), writer(self._engine).begin() as connection:
            yield connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(
                f"the store {self._location} was closed; open it again with open_store"
            )
