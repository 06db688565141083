"""Fast reads for a server: plain statements on a connection of their own.

Look-ups are most of the load of a service, so their statements are written out as SQL,
each one statement and one transaction, on a connection with automatic commit that needs
neither BEGIN nor COMMIT.

:meth:`Reader.generation` tells whether anyone committed anything since the last call,
at no cost to writers, so that a server can cache answers. For SQLite it is
``PRAGMA data_version``. For PostgreSQL it is the snapshot: while it is equal, the same
transactions are visible.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from sqlalchemy import Connection

from feinsum.db.address import Location
from feinsum.db.sql.engine import (
    SqlDatabase,
    fetch_rows,
    make_engine,
    translate_errors,
)
from feinsum.db.sql.rows import (
    DEVICE_COLUMNS,
    parse_device_row,
    read_document,
    split_into_batches,
)
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

MAX_OF_TRANSFORM = 8
"""Facts of one transform, recorder and device to consider: the fastest ones."""

MAX_OF_RECORDER = 200
"""Facts of one recorder to consider."""

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
  WHERE place <= {MAX_OF_TRANSFORM}
) AS taken
WHERE turn <= {MAX_OF_RECORDER}
ORDER BY recorder, turn
"""  # noqa: S608
"""The facts of a workload without their documents: some of each recorder, so that one
recorder cannot hide the facts of another.
"""

DOCUMENTS = FACTS.replace("workload_key {among}", "id {among}")

STATES = f"SELECT workload_key, id, {IS_TRUSTED}" + VALID

DEVICES = f"SELECT id, {', '.join(DEVICE_COLUMNS)} FROM devices"  # noqa: S608

CHUNK = 500
"""Workloads in one statement."""


States: TypeAlias = frozenset[tuple[str, bool]]
"""The ids of facts, and whether they are trusted, which may change."""


class StoredFact(NamedTuple):
    """A record with its stored JSON text; see :mod:`feinsum.db.sql.trust`.

    Attributes:
        recorder: who sent it first; empty if it was recorded into the database itself.
    """

    record: TuningRecord
    document: str
    recorder: str = ""


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


class FactRow(NamedTuple):
    """A row of :data:`FACTS`."""

    id: str
    workload_key: str
    device_id: str
    document: str
    recorder: str | None
    is_trusted: int


class Reader(SqlDatabase):
    """Reads of one database, from any thread, one at a time.

    All use one connection, which is kept: to take one from the pool costs more than
    many a read. When a server drops it, the read is retried on another one.
    """

    def __init__(self, location: Location) -> None:
        super().__init__(make_engine(location, is_reader=True), location)
        self._dialect = self.engine.dialect.name
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._n_connections = 0

    def generation(self) -> object:
        """Return a value that differs from all earlier ones after any commit."""
        # Values of data_version are comparable within one connection only, so that
        # each new connection has a number of its own.
        n_connections, ((version,),) = self._execute(GENERATION[self._dialect])
        return n_connections, version

    def facts(self, workloads: Sequence[str]) -> dict[str, list[StoredFact]]:
        """Return the valid facts of workloads, as look-ups see them."""
        facts: dict[str, list[StoredFact]] = {key: [] for key in workloads}
        for fact in _read_facts(self._read_rows_in_parts(FACTS, workloads)):
            facts[fact.record.workload].append(fact)
        return facts

    def sizes(self, workloads: Sequence[str]) -> dict[str, Size]:
        """Count what :meth:`facts` would read of each workload."""
        sizes = dict.fromkeys(workloads, Size(0, 0))
        statement = SIZES.replace("{length}", LENGTH[self._dialect])
        for workload, n_facts, n_bytes in self._read_rows_in_parts(
            statement, workloads
        ):
            sizes[workload] = Size(n_facts, int(n_bytes))
        return sizes

    def summaries(self, workload: str) -> list[Summary]:
        """Return the facts of a workload that has too many to read them all.

        Those faster than the untransformed kernel come first, by recorder.
        """
        statement = SUMMARIES.replace("{length}", LENGTH[self._dialect])
        return list(map(Summary._make, self._read_rows_in_parts(statement, [workload])))

    def documents(self, record_ids: Sequence[str]) -> list[StoredFact]:
        """Return the valid facts with some ids."""
        return list(_read_facts(self._read_rows_in_parts(DOCUMENTS, record_ids)))

    def states(self, workloads: Sequence[str]) -> dict[str, States]:
        """Return the states of the facts of workloads that look-ups see."""
        states: dict[str, set[tuple[str, bool]]] = {key: set() for key in workloads}
        for workload, record_id, is_trusted in self._read_rows_in_parts(
            STATES, workloads
        ):
            states[workload].add((record_id, bool(is_trusted)))
        return {workload: frozenset(ids) for workload, ids in states.items()}

    def devices(self) -> dict[str, Device]:
        """Return every device by its id."""
        return {row[0]: parse_device_row(row[1:]) for row in self._read_rows(DEVICES)}

    def close(self) -> None:
        """Close the connection; only when no thread reads any more."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        super().close()

    def _read_rows_in_parts(
        self, statement: str, keys: Sequence[str]
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows of some keys, a part of the keys at a time."""
        for chunk in split_into_batches(dict.fromkeys(keys), CHUNK):
            among = f"IN ({', '.join('?' * len(chunk))})"
            values: tuple[Any, ...] = tuple(chunk)
            if self._dialect == "postgresql":
                # an array: one prepared statement for any number of keys
                among, values = "= ANY(%s)", (chunk,)
            yield from self._read_rows(statement.format(among=among), values)

    def _read_rows(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> Sequence[Sequence[Any]]:
        return self._execute(statement, values)[1]

    def _execute(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> tuple[int, Sequence[Sequence[Any]]]:
        """Return the number of the connection that was used, and the rows."""

        def run() -> tuple[int, Sequence[Sequence[Any]]]:
            with self._lock, translate_errors(self.location):
                if self._connection is None:
                    self._connection = self.connect()
                    self._n_connections += 1
                try:
                    rows = fetch_rows(self._connection, statement, values)
                except BaseException:
                    self._connection.close()
                    self._connection = None
                    raise
                return self._n_connections, rows

        return self.retry(run)


def _read_facts(rows: Iterable[Sequence[Any]]) -> Iterator[StoredFact]:
    """Parse the facts of rows; damaged ones are logged and left out."""
    for row in map(FactRow._make, rows):
        if record := read_document("record", row):
            yield StoredFact(
                cast(TuningRecord, record), row.document, row.recorder or ""
            )
