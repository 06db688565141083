"""Fast reads for a server: plain statements, over connections that are kept.

:meth:`Reader.generation` says whether anything was committed since it was last
asked, whoever wrote it, and costs the writers nothing. With it a server may keep
answers. For SQLite it is ``PRAGMA data_version``. For PostgreSQL it is the
snapshot: as long as it is equal, the same transactions are visible.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError

from feinsum.db.server.patience import Patience
from feinsum.db.sql.failures import translated
from feinsum.db.sql.location import Location
from feinsum.db.sql.rows import DEVICE_COLUMNS, device_of
from feinsum.db.sql.statements import sound_records
from feinsum.errors import StoreUnavailableError
from feinsum.records import Device, TuningRecord

__all__ = ["Reader", "StoredFact"]

GENERATION = {
    "sqlite": "PRAGMA data_version",
    "postgresql": "SELECT pg_current_snapshot()::text",
}

TRUSTED = """
FROM records WHERE workload_key {among}
AND NOT EXISTS (SELECT 1 FROM quarantine WHERE quarantine.record_id = records.id)
"""

FACTS = "SELECT id, workload_key, device_id, document" + TRUSTED

IDS = "SELECT workload_key, id" + TRUSTED

DEVICES = f"SELECT id, {', '.join(DEVICE_COLUMNS)} FROM devices"  # noqa: S608

SET_UP = {
    "sqlite": "PRAGMA cache_size = -256",
    "postgresql": "SET plan_cache_mode = force_generic_plan",
}
"""For SQLite KiB of pages that a connection keeps, 2 MiB by default; the system has the
pages of the file once for all of them. PostgreSQL would read a table as a whole while
it has no statistics of it.
"""

CHUNK = 500
"""How many workloads are asked for in one statement."""


@dataclass(frozen=True)
class StoredFact:
    """A record with the JSON text that it is kept as."""

    record: TuningRecord
    document: str


class Row(NamedTuple):
    id: str
    workload_key: str
    device_id: str
    document: str


class Reader:
    """Reads of one database, from any thread; :meth:`close` ends all of them.

    There are as many connections as there were reads at once. The one that was used
    last is used next. One that its server ended is replaced before a read fails.
    """

    def __init__(self, engine: Engine, location: Location) -> None:
        self._engine = engine
        self._location = location
        self._dialect = engine.dialect.name
        self._open: list[PoolProxiedConnection] = []
        self._idle: list[PoolProxiedConnection] = []
        self._is_closed = False
        self._lock = threading.Lock()
        self._watch: PoolProxiedConnection | None = None
        self._n_watches = 0
        self._patience = Patience()

    def generation(self) -> object:
        """A value that differs from all before it once anything was committed."""
        return self._patience(self._generation)

    def _generation(self) -> object:
        with self._lock, translated(self._location):
            if self._watch is None:
                self._watch = self._connect()
                self._n_watches += 1
            try:
                row = self._run(self._watch, GENERATION[self._dialect], ())[0]
            except Exception:
                lost, self._watch = self._watch, None
                self._give_up(lost)
                raise
            return self._n_watches, row[0]

    def facts(self, workloads: Sequence[str]) -> dict[str, list[StoredFact]]:
        """The sound facts of workloads that are not in quarantine."""
        found: dict[str, list[StoredFact]] = {key: [] for key in workloads}
        for row in map(Row._make, self._rows_of(FACTS, workloads)):
            for record in sound_records([row]):
                found[row.workload_key].append(StoredFact(record, row.document))
        return found

    def ids(self, workloads: Sequence[str]) -> dict[str, frozenset[str]]:
        """The ids of the facts of workloads that are not in quarantine."""
        found: dict[str, set[str]] = {key: set() for key in workloads}
        for workload, record_id in self._rows_of(IDS, workloads):
            found[workload].add(record_id)
        return {workload: frozenset(ids) for workload, ids in found.items()}

    def devices(self) -> dict[str, Device]:
        """Every device by its id."""
        return {row[0]: device_of(row[1:]) for row in self._rows(DEVICES, ())}

    def close(self) -> None:
        """Give all connections back; only when no thread reads any more."""
        self._is_closed = True
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    def _rows_of(
        self, statement: str, workloads: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of workloads, some of them at a time."""
        distinct = list(dict.fromkeys(workloads))
        for start in range(0, len(distinct), CHUNK):
            part = distinct[start : start + CHUNK]
            if self._dialect == "postgresql":  # prepared once for any number of them
                yield from self._rows(statement.format(among="= ANY(%s)"), [part])
            else:
                marks = ", ".join("?" * len(part))
                yield from self._rows(statement.format(among=f"IN ({marks})"), part)

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            with translated(self._location), self._connection() as connection:
                return self._run(connection, statement, values)

        return self._patience(read)

    @contextmanager
    def _connection(self) -> Iterator[PoolProxiedConnection]:
        """A connection that nothing else uses meanwhile; dropped after a failure."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            self._give_up(connection)
            while self._idle:  # a server that ended one may have ended them all
                self._give_up(self._idle.pop())
            raise
        self._idle.append(connection)

    def _connect(self) -> PoolProxiedConnection:
        if self._is_closed:
            raise StoreUnavailableError(f"the reader of {self._location} was closed")
        connection = self._engine.raw_connection()
        connection.detach()  # it never goes back to the pool of other users
        self._open.append(connection)
        try:
            self._set_up(connection)
        except BaseException:
            self._give_up(connection)
            raise
        return connection

    def _set_up(self, connection: PoolProxiedConnection) -> None:
        """The settings of a connection that only reads."""
        if self._dialect == "postgresql":
            driver: Any = connection.dbapi_connection
            driver.autocommit = True
            driver.prepare_threshold = 0
        self._run(connection, SET_UP[self._dialect], ())

    def _give_up(self, connection: PoolProxiedConnection) -> None:
        """Drop a connection that failed."""
        self._open.remove(connection)
        connection.close()  # it is of no pool: this ends it

    def _run(
        self, connection: PoolProxiedConnection, statement: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        cursor = connection.cursor()
        try:
            cursor.execute(statement, tuple(values))
            return list(cursor.fetchall()) if cursor.description else []
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(statement, None, error) from error
        finally:
            cursor.close()
