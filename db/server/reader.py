"""Fast reads for a server: plain statements over pooled connections.

:meth:`Reader.generation` tells whether anyone committed anything since the last call,
at no cost to writers, so that a server can cache answers. For SQLite it is
``PRAGMA data_version``. For PostgreSQL it is the snapshot: while it is equal, the same
transactions are visible.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
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

GENERATION = {
    "sqlite": "PRAGMA data_version",
    "postgresql": "SELECT pg_current_snapshot()::text",
}

VALID = """
FROM records WHERE workload_key {among}
AND NOT EXISTS (SELECT 1 FROM retractions WHERE retractions.document_id = records.id)
"""

RECORDER = """
(SELECT recorder FROM recordings WHERE recordings.record_id = records.id
 ORDER BY received_at, recorder LIMIT 1)
"""
"""Who sent a record first; NULL if it was recorded into the database itself."""

IS_TRUSTED = """
(SELECT coalesce(max(CASE WHEN is_trusted THEN 1 ELSE 0 END), 1)
 FROM recordings WHERE recordings.record_id = records.id)
"""
"""1 or 0; a record without a recorder is of the database itself."""

FACTS = (
    f"SELECT id, workload_key, device_id, document, {RECORDER}, {IS_TRUSTED}" + VALID
)

SIZES = "SELECT workload_key, count(*), sum({length})" + VALID + "GROUP BY 1"

LENGTH = {"sqlite": "length(document)", "postgresql": "octet_length(document)"}

FEW = 8
"""How many facts of one transform, recorder and device are looked at, the fastest."""

MOST_OF_RECORDER = 200
"""How many facts of one recorder are looked at."""

SUMMARIES = f"""
SELECT id, device_id, transform_name, transform_version, speedup, recorder, n_bytes,
  is_trusted
FROM (
  SELECT *, row_number() OVER (
    PARTITION BY recorder, is_trusted ORDER BY speedup <= 1, place, speedup DESC, id
  ) AS turn
  FROM (
    SELECT *, row_number() OVER (
      PARTITION BY recorder, is_trusted, device_id, transform_name, transform_version,
        speedup <= 1
      ORDER BY speedup DESC, id
    ) AS place
    FROM (
      SELECT id, device_id, transform_name, transform_version, speedup,
        {{length}} AS n_bytes, coalesce({RECORDER}, '') AS recorder,
        {IS_TRUSTED} AS is_trusted
      {VALID}
    ) AS every
  ) AS placed
  WHERE place <= {FEW}
) AS taken
WHERE turn <= {MOST_OF_RECORDER}
ORDER BY recorder, turn
"""  # noqa: S608
"""The facts of a workload without their documents: a part from each recorder, so that
no number of facts of one hides those of another.
"""

DOCUMENTS = FACTS.replace("workload_key {among}", "id {among}")

STATES = f"SELECT workload_key, id, {IS_TRUSTED}" + VALID

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
    """A record with its stored JSON text; see :mod:`feinsum.db.server.trust`.

    Attributes:
        recorder: who sent it first; empty if nobody did.
    """

    record: TuningRecord
    document: str
    recorder: str = ""

    @property
    def state(self) -> str:
        """Equal as long as answers with the fact are."""
        return state_of(self.record.id, is_trusted=self.record.is_trusted)


def state_of(record_id: str, *, is_trusted: bool) -> str:
    """What may change of a fact: whether it is trusted."""
    return record_id if is_trusted else f"{record_id}?"


class Summary(NamedTuple):
    """A fact without its document; see :data:`SUMMARIES`."""

    id: str
    device_id: str
    transform_name: str
    transform_version: int
    speedup: float
    recorder: str
    n_bytes: int
    is_trusted: int = 1


class Size(NamedTuple):
    """The number of facts of a workload, and the length of their documents."""

    n_facts: int
    n_bytes: int


class Row(NamedTuple):
    id: str
    workload_key: str
    device_id: str
    document: str
    recorder: str | None
    is_trusted: int


class Reader:
    """Reads of one database, from any thread; :meth:`close` ends all of them.

    There are as many connections as concurrent reads so far; the most recently used one
    is used next. One dropped by its server is replaced before a read fails.
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
        """A value that differs from all earlier ones once anything is committed."""
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
            # values of data_version are comparable within one connection only
            return self._n_watches, row[0]

    def facts(self, workloads: Sequence[str]) -> dict[str, list[StoredFact]]:
        """The valid facts of workloads, as look-ups see them."""
        found: dict[str, list[StoredFact]] = {key: [] for key in workloads}
        for workload, fact in _sound(self._rows_of(FACTS, workloads)):
            found[workload].append(fact)
        return found

    def sizes(self, workloads: Sequence[str]) -> dict[str, Size]:
        """How much :meth:`facts` would read of each workload."""
        found = dict.fromkeys(workloads, Size(0, 0))
        statement = SIZES.replace("{length}", LENGTH[self._dialect])
        for workload, n_facts, n_bytes in self._rows_of(statement, workloads):
            found[workload] = Size(n_facts, int(n_bytes))
        return found

    def summaries(self, workload: str) -> list[Summary]:
        """The facts of a workload that has too many to read them all.

        Those faster than the untransformed kernel come first, by recorder.
        """
        statement = SUMMARIES.replace("{length}", LENGTH[self._dialect])
        return list(map(Summary._make, self._rows_of(statement, [workload])))

    def documents(self, record_ids: Sequence[str]) -> list[StoredFact]:
        """The valid facts with some ids."""
        return [fact for _, fact in _sound(self._rows_of(DOCUMENTS, record_ids))]

    def states(self, workloads: Sequence[str]) -> dict[str, frozenset[str]]:
        """The states of the facts of workloads that look-ups see."""
        found: dict[str, set[str]] = {key: set() for key in workloads}
        for workload, record_id, is_trusted in self._rows_of(STATES, workloads):
            found[workload].add(state_of(record_id, is_trusted=bool(is_trusted)))
        return {workload: frozenset(states) for workload, states in found.items()}

    def devices(self) -> dict[str, Device]:
        """Every device by its id."""
        return {row[0]: device_of(row[1:]) for row in self._rows(DEVICES, ())}

    def close(self) -> None:
        """Close all connections; only when no thread reads any more."""
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
        with self._wrapped("connect"):
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
            # a read is one statement, which needs neither BEGIN nor COMMIT
            driver.autocommit = True
            # statements are few and each runs often: prepared at its first use
            driver.prepare_threshold = 0
        self._run(connection, SET_UP[self._dialect], ())

    def _give_up(self, connection: PoolProxiedConnection) -> None:
        """Drop a connection that failed."""
        self._open.remove(connection)
        connection.close()  # it is of no pool: this ends it

    def _run(
        self, connection: PoolProxiedConnection, statement: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        with self._wrapped(statement), closing(connection.cursor()) as cursor:
            cursor.execute(statement, tuple(values))
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def _wrapped(self, statement: str) -> Iterator[None]:
        """Errors of the driver, as SQLAlchemy raises them where it is asked."""
        try:
            yield
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(statement, None, error) from error


def _sound(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, StoredFact]]:
    """The facts of rows with their workloads; damaged ones are logged and left out."""
    for row in map(Row._make, rows):
        for record in sound_records([row], has_trust=True):
            yield row.workload_key, StoredFact(record, row.document, row.recorder or "")
