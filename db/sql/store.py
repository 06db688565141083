"""The store of documents in an SQL database.

Every read and write is a function of a connection, which the store runs in one
transaction, again if the server dropped the connection::

    store.query(key)
      -> documents(...)           which statement, with which values
      -> read(select, ...)        one connection of SQLAlchemy's pool; retries
      -> read_documents(rows)     parse, check ids, skip damaged rows
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from sqlalchemy import Connection, Engine, Executable, select

from feinsum.canonical import WorkloadKey
from feinsum.db.address import BUSY_TIMEOUT_S, Location, locate
from feinsum.db.sql.engine import SqlDatabase, make_engine, read_only, translate_errors
from feinsum.db.sql.retracting import (
    Retracted,
    count_records,
    find_retractions,
    retract,
)
from feinsum.db.sql.rows import (
    RECORDS,
    RETRACTED,
    TABLES,
    filter_documents,
    make_rows,
    read_documents,
    select_documents,
    select_trusted,
    split_ids,
)
from feinsum.db.sql.schema import NEWEST, prepare_schema
from feinsum.db.sql.statistics import Statistics, list_workloads, summarize
from feinsum.db.sql.tables import DevicePeaksRow, RecordRow, TrialRow
from feinsum.db.sql.trust import delete_records, insert_owned, insert_rekeyed
from feinsum.errors import RecordNotFoundError
from feinsum.records import (
    FACT_KINDS,
    DevicePeaks,
    Document,
    DocumentKind,
    Filters,
    Retraction,
    RetractionQuery,
    Store,
    TuningRecord,
    find_latest_peaks,
    get_kind,
)

T = TypeVar("T")
P = ParamSpec("P")

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
            (:func:`feinsum.db.get_default_location`).
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
    target = locate(location, is_read_only=only_read, busy_timeout_s=busy_timeout_s)
    target = replace(
        target,
        is_immutable=is_immutable and target.path is not None,
        may_create=may_create,
        may_migrate=may_create,
    )
    return SqlStore(prepare_engine(target)[0], target)


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
    target = replace(locate(location), may_create=False)
    engine, before = prepare_engine(target)
    engine.dispose()
    return Migration(str(target), before, NEWEST)


def prepare_engine(target: Location) -> tuple[Engine, str | None]:
    """Open a database with the newest schema; see :func:`open_store`.

    Returns:
        Its connections, and the version of its schema before.
    """
    engine = make_engine(target)
    try:
        with translate_errors(target):
            return engine, prepare_schema(engine, target)
    except BaseException:
        engine.dispose()
        raise


def reads(
    query: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[SqlStore, P], T]:
    """Make a method of a store from a function that reads from a connection."""

    @wraps(query)
    def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.read(query, *args, **kwargs)

    return method


def writes(
    change: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[SqlStore, P], T]:
    """Make a method of a store from a function that writes through a connection."""

    @wraps(change)
    def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.write(change, *args, **kwargs)

    return method


class SqlStore(SqlDatabase, Store):
    """A store of documents in SQLite or PostgreSQL.

    When ``add`` returns, the document is on disk. Rows that do not match their ids are
    skipped and logged, and never served. Retracted facts
    (:mod:`feinsum.db.sql.retracting`) can only be read by :meth:`stored`. Look-ups mark
    the facts of untrusted recorders (:mod:`feinsum.db.sql.trust`). Thread-safe;
    create one with :func:`open_store`.
    """

    max_wait_s = 0.0

    def add_all(self, documents: Iterable[Document]) -> int:
        added = list(documents)
        # Before the transaction: an invalid document takes no lock.
        rows = [row for document in added for row in make_rows(document)]
        facts = [d.id for d in added if get_kind(d) in FACT_KINDS]
        return self.write(insert_owned, facts, rows)

    def add_rekeyed(self, record: TuningRecord, origin: str) -> bool:
        """Store a record again under another key; returns whether it was new.

        Args:
            record: the record, under its new key.
            origin: id of the record under its old key; both have the same senders.
        """
        return self.write(insert_rekeyed, record.id, make_rows(record), origin)

    def stored(self, record_id: str) -> TuningRecord:
        rows = self._rows(RECORDS.where(RecordRow.id == record_id))
        for record in read_documents("record", rows):
            return cast(TuningRecord, record)
        # A damaged row is an error of the disk, not a wrong id.
        state = "stored but damaged" if rows else "not stored"
        raise RecordNotFoundError(
            f"a record with the id {record_id!r} is {state} in {self.location}; "
            "list ids with 'feinsum query'"
        )

    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        notation = filters.notation
        conditions: dict[str, Any] = {
            "workload": filters.workload,
            "device_id": filters.device_id,
            "notation": None if notation is None else f"{notation} |",
        }
        values = {k: value for k, value in conditions.items() if value is not None}
        for rows in self._read_pages(kind, values, filters.among):
            yield from read_documents(kind, rows)

    def _read_pages(
        self, kind: DocumentKind, values: dict[str, Any], among: Collection[str] | None
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows that match the filters, in order of their ids, in parts."""
        names = frozenset(values) | ({"among"} if among is not None else set())
        statement = filter_documents(kind, names)
        if statement is None:
            return
        if among is not None:
            for chunk in split_ids(among):
                yield self._rows(statement, values | {"among": chunk})
        elif values:
            yield self._rows(statement, values)
        else:
            last_id, n_rows = "", PAGE
            while n_rows == PAGE:
                page = {"after": last_id, "limit": PAGE}
                if rows := self._rows(statement, page):
                    yield rows
                    last_id = rows[-1].id
                n_rows = len(rows)

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """Yield all ids, including those of damaged rows."""
        column = TABLES[kind].id
        ids = select_documents(kind).with_only_columns(column).order_by(column)
        yield from self._values(ids)

    def workloads(self) -> tuple[WorkloadKey, ...]:
        """Return the workload keys of all records, sorted."""
        return tuple(sorted(self._values(select(RecordRow.workload_key).distinct())))

    def tried(self) -> tuple[WorkloadKey, ...]:
        return tuple(sorted(self._values(select(TrialRow.workload_key).distinct())))

    def remove(self, record_ids: Collection[str]) -> int:
        """Delete records, and who sent them, all or none; returns their number.

        Nothing recorded should be lost:
        :func:`feinsum.db.exchange.garbage.collect_garbage` writes them to a file first.
        """
        return self.write(delete_records, record_ids)

    def __len__(self) -> int:
        return self.read(count_records)

    def peaks(self, device_id: str) -> DevicePeaks | None:
        of_device = DevicePeaksRow.device_id == device_id
        statement = select_documents("peaks").where(of_device)
        # More than the latest, because damaged and implausible ones are skipped; a
        # bound, because anybody may send limits; trusted ones first, so that those of
        # others never hide them.
        latest = statement.order_by(DevicePeaksRow.measured_at.desc()).limit(PAGE)
        is_trusted = select_trusted(DevicePeaksRow)
        for condition in (is_trusted, ~is_trusted):
            rows = self._rows(latest.where(condition))
            peaks = cast(Iterator[DevicePeaks], read_documents("peaks", rows))
            if plausible := find_latest_peaks(peaks):
                return plausible
        return None

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        return self.read(find_retractions, ids)

    def retract(
        self,
        query: RetractionQuery,
        *,
        reason: str = "",
        retracted_by: str = "",
        is_dry_run: bool = True,
    ) -> Retracted:
        """Retract facts, all or none (:func:`feinsum.db.sql.retracting.retract`)."""
        run = self.read if is_dry_run else self.write
        return run(
            retract,
            query,
            reason=reason,
            retracted_by=retracted_by,
            is_dry_run=is_dry_run,
        )

    def retracted(self) -> Iterator[TuningRecord]:
        """Yield the facts that are stored and retracted, ordered by id."""
        for chunk in split_ids(self._values(select(RecordRow.id).where(RETRACTED))):
            among = RECORDS.where(RecordRow.id.in_(chunk)).order_by(RecordRow.id)
            rows = self._rows(among)
            yield from cast(Iterator[TuningRecord], read_documents("record", rows))

    def check_writable(self) -> None:
        if self.location.is_read_only:
            raise read_only(self.location)

    def stats(self) -> Statistics:
        """Return location, version, totals and size, for operators."""
        return self.read(summarize, self.location)

    listed_workloads = reads(list_workloads)

    @property
    def path(self) -> Path | None:
        """The file of the database; None for a server."""
        return self.location.path

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
        return f"SqlStore({str(self.location)!r})"

    def _rows(
        self, statement: Executable, values: dict[str, Any] | None = None
    ) -> Sequence[Any]:
        return self.read(lambda c: c.execute(statement, values or {}).all())

    def _values(self, statement: Executable) -> Sequence[Any]:
        """Return the only column of a statement."""
        return self.read(lambda c: c.execute(statement).scalars().all())
