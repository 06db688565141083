"""Connections of a database that are safe for many processes, and its failures.

SQLite: write-ahead log, foreign keys checked, a busy timeout, and writers that acquire
the write lock at the start (``BEGIN IMMEDIATE``). So writers queue, and none fails
half-way because of another.

No other module catches errors of database libraries. A PostgreSQL server that restarts
drops all connections and is away for seconds; the service waits for it
(:meth:`SqlDatabase.retry`), so that a restart is a delay, not an outage.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from feinsum.db.address import Location
from feinsum.errors import StoreUnavailableError
from feinsum.extras import require_extra

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

IS_WRITER = "feinsum_is_writer"

CONNECT = {"connect_timeout": 5}
"""Seconds for a new connection to a server, unless its URL has a limit."""

SET_UP = {
    "sqlite": "PRAGMA cache_size = -256",
    "postgresql": "SET plan_cache_mode = force_generic_plan",
}
"""Settings of a connection that only reads.

For SQLite KiB of pages that a connection keeps, 2 MiB by default; the system has the
pages of the file once for all of them. PostgreSQL would scan a whole table while it has
no statistics of it.
"""

MAX_WAL_WAIT_S = 2.0
"""How long to wait until the journal mode can be changed."""

RESTORE = "restore a backup, or move the file away to start a new one"

EXPLANATIONS = {
    "SQLITE_BUSY": (
        "has been locked by another process for over {timeout:g} s",
        "wait for that process, or end it, and try again",
    ),
    "SQLITE_CANTOPEN": (
        "cannot be opened",
        "check that its folder exists and is readable and writable",
    ),
    "SQLITE_CORRUPT": ("is damaged", RESTORE),
    "SQLITE_FULL": ("cannot grow: the disk is full", "free some space"),
    "SQLITE_IOERR": (
        "cannot be read or written: I/O error",
        "check the disk, then try again",
    ),
    "SQLITE_NOTADB": ("is not an SQLite database", RESTORE),
    "SQLITE_READONLY": (
        "cannot be written",
        "check the permissions of the file and its folder",
    ),
}
"""Meaning of SQLite error codes, and their remedies."""

LOST_CODES = ("08", "57P")
"""Prefixes of PostgreSQL codes for connections, and for a server that ends or starts.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

MAX_WAIT_S = 10.0
"""How long the service waits for a server that was there before."""

# The first retry comes at once: often only the connections of the pool are stale.
PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Pauses between attempts, in seconds; the last one repeats."""

_inherited: list[Any] = []
"""Connections of the parent process, which must not be closed here."""


class LostConnectionError(StoreUnavailableError):
    """A database server dropped a connection, or accepts none at the moment.

    Retrying may help, since a restarting server is away for seconds.
    """


class SqlDatabase:
    """A database whose reads and writes are transactions that may be repeated.

    Attributes:
        has_failed: whether the last change was not committed.
    """

    max_wait_s: float = MAX_WAIT_S
    """How long a call waits for a server that dropped the connection; 0 for no retry.
    """

    def __init__(self, engine: Engine, location: Location) -> None:
        self.engine, self.location = engine, location
        self.has_failed = False
        self._is_closed = self._is_away = False

    def read(
        self,
        query: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query on a connection of its own; it may run several times."""

        def run() -> T:
            with translate_errors(self.location), self.connect() as connection:
                return query(connection, *args, **kwargs)

        return self.retry(run)

    def write(
        self,
        change: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a change in a transaction of its own; it may run several times."""

        def run() -> T:
            self._check_open()
            # SQLite would report this only at the first write, in its own words.
            if self.location.is_read_only:
                raise read_only(self.location)
            # this stays true if anything is raised before the commit is complete
            self.has_failed = True
            with (
                translate_errors(self.location),
                make_writer(self.engine).begin() as connection,
            ):
                result = change(connection, *args, **kwargs)
            self.has_failed = False
            return result

        return self.retry(run)

    def retry(self, work: Callable[[], T]) -> T:
        """Return the result of a transaction, run again while a server is away.

        Once a server was away for the whole time, calls fail at once until one
        succeeds: otherwise every thread of a service would wait for a server that is
        gone.

        Raises:
            LostConnectionError: if the server did not come back.
        """
        start_s, n_retries = time.monotonic(), 0
        while True:
            try:
                result = work()
            except LostConnectionError:
                waited_s = time.monotonic() - start_s
                if self._is_away or waited_s >= self.max_wait_s:
                    self._is_away = True
                    raise
                time.sleep(PAUSES_S[min(n_retries, len(PAUSES_S) - 1)])
                n_retries += 1
            else:
                self._is_away = False
                return result

    def connect(self) -> Connection:
        """Return a connection of the pool.

        Raises:
            StoreUnavailableError: after :meth:`close`.
        """
        self._check_open()
        return self.engine.connect()

    def close(self) -> None:
        """Release all connections; it cannot be used afterwards."""
        self._is_closed = True
        self.engine.dispose()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(
                f"the store {self.location} was closed; open it again with open_store"
            )


@contextmanager
def translate_errors(location: Location) -> Iterator[None]:
    """Raise :class:`StoreUnavailableError` for every failure of the database."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        logger.debug("the database %s failed", location, exc_info=True)
        # SQLAlchemy wraps the error of the driver, which has the code.
        cause = error.orig if isinstance(error, DBAPIError) else error
        problem, advice = EXPLANATIONS.get(
            get_result_code(cause),
            ("failed", "check that it can be reached, and that nobody changed it"),
        )
        # only the first line: PostgreSQL adds the statement, SQLAlchemy a link
        detail = next(iter(str(cause).splitlines()), type(cause).__name__)
        is_lost = _is_lost(location, error)
        kind = LostConnectionError if is_lost else StoreUnavailableError
        raise kind(
            f"the database {location} "
            f"{problem.format(timeout=location.busy_timeout_s)} ({detail}); {advice}"
        ) from None


def fetch_rows(
    connection: Connection, statement: str, values: Sequence[Any]
) -> Sequence[Sequence[Any]]:
    """Run a statement of the driver, and return its rows.

    SQLAlchemy would take longer to describe the rows of a look-up than SQLite to find
    them.
    """
    driver = connection.dialect.loaded_dbapi
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()
    except driver.Error as error:
        raise DBAPIError.instance(statement, values, error, driver.Error) from error


def _is_lost(location: Location, error: Exception) -> bool:
    """Return whether the connection to a server failed, rather than a statement.

    A socket that fails has no code; errors other than operational ones are about a
    statement.
    """
    if location.path is not None or not isinstance(error, OperationalError):
        return False
    state: str = getattr(error.orig, "sqlstate", None) or "08"
    return state.startswith(LOST_CODES)


def read_only(location: Location) -> StoreUnavailableError:
    """Return the error of a write to a read-only database."""
    return StoreUnavailableError(
        f"the database {location} is read-only: ask for write permission on the file "
        "and its folder, or name a database of your own with --database or "
        "FEINSUM_DATABASE"
    )


def get_result_code(error: BaseException | None) -> str:
    """Return SQLite's primary result code, such as ``SQLITE_BUSY``; empty if none."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return "_".join(name.split("_")[:2])


def make_engine(location: Location, *, is_reader: bool = False) -> Engine:
    """Return an engine for a location, without opening it.

    The connections of a reader only read, each statement in no transaction.

    Raises:
        StoreUnavailableError: if the driver is not installed.
    """
    if location.path is None:
        engine = _make_server_engine(location, is_reader)
    elif location.is_read_only:
        connect = partial(connect_for_reading, location.path, location)
        engine = create_engine(location.url, creator=connect, poolclass=NullPool)
    else:
        engine = create_engine(
            location.url,
            creator=partial(_connect, str(location.path), location.busy_timeout_s),
            poolclass=QueuePool,
            pool_size=5,
            max_overflow=40,  # one for each thread of a service
            pool_use_lifo=True,  # few connections are used, each has a cache of pages
        )
    if is_reader:
        event.listen(engine, "connect", partial(_set_up, SET_UP[engine.dialect.name]))
    else:
        event.listen(engine, "begin", _begin)
    event.listen(engine, "connect", _remember_process)
    event.listen(engine, "checkout", _refuse_inherited)
    return engine


def make_writer(engine: Engine) -> Engine:
    """Return the engine with transactions that hold the write lock from the start."""
    return engine.execution_options(**{IS_WRITER: True})


def _make_server_engine(location: Location, is_reader: bool) -> Engine:
    arguments: dict[str, Any] = (
        {} if "connect_timeout" in location.url.query else dict(CONNECT)
    )
    # A restarted server has ended the connections of the pool.
    options: dict[str, Any] = {"pool_pre_ping": True}
    if is_reader:
        # Statements are few, and each runs often: prepared at its first use. No ping
        # before each of them: a read that meets a lost connection is simply repeated.
        arguments["prepare_threshold"] = 0
        options = {"isolation_level": "AUTOCOMMIT", "pool_use_lifo": True}
    try:
        with require_extra(
            "psycopg", "postgresql", "PostgreSQL", StoreUnavailableError
        ):
            return create_engine(location.url, connect_args=arguments, **options)
    except SQLAlchemyError as error:
        raise StoreUnavailableError(
            f"the URL of a database of kind {location.url.drivername!r} is not usable: "
            f"{error}"
        ) from None


def _connect(target: str, busy_timeout_s: float, uri: bool = False) -> Any:
    connection = sqlite3.connect(
        target,
        timeout=busy_timeout_s,
        isolation_level=None,  # transactions begin in _begin, nowhere else
        check_same_thread=False,  # a connection may move to another thread
        uri=uri,
    )
    # damaged text is decoded, too: its content id reveals the damage
    connection.text_factory = lambda content: content.decode(errors="replace")
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        # with a write-ahead log, NORMAL may lose the last facts at a power failure
        connection.execute("PRAGMA synchronous=FULL")
        # SQLite opens the file at the first statement: its errors are raised here
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect_for_reading(path: Path, location: Location) -> Any:
    """Connect to a file that is only read, without writing beside it if necessary.

    SQLite creates the files of the write-ahead log even to read. Where that is not
    possible and no log is left, the file alone is the database, and it is opened as
    immutable.
    """
    if not location.is_immutable:
        try:
            uri = f"{path.as_uri()}?mode=ro"
            return _connect(uri, location.busy_timeout_s, uri=True)
        except sqlite3.OperationalError as error:
            is_refused = get_result_code(error) in (
                "SQLITE_CANTOPEN",
                "SQLITE_READONLY",
            )
            # with a log, the file alone would lack the latest facts
            if not is_refused or has_log(path):
                raise
    immutable_uri = f"{path.as_uri()}?immutable=1"
    return _connect(immutable_uri, location.busy_timeout_s, uri=True)


def has_log(path: Path) -> bool:
    """Return whether a log or journal beside the file holds part of the database."""
    for suffix in ("-wal", "-journal"):
        try:
            if path.with_name(path.name + suffix).stat().st_size > 0:
                return True
        except FileNotFoundError:
            continue
    return False


def use_write_ahead_log(path: Path, max_wait_s: float = MAX_WAL_WAIT_S) -> bool:
    """Turn on the write-ahead log; returns whether it is on.

    With it, readers do not wait for writers. A file system without shared memory, or a
    file in constant use, keeps the rollback journal: slower, but equally safe.
    """
    deadline = time.monotonic() + max_wait_s
    # The journal mode is a property of the file: set once, kept by all processes.
    with closing(sqlite3.connect(path, timeout=max_wait_s)) as connection:
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
                return bool(mode == "wal")
            except sqlite3.OperationalError as error:
                is_in_use = get_result_code(error) == "SQLITE_BUSY"
                if not is_in_use or time.monotonic() > deadline:
                    logger.debug("%s keeps its rollback journal: %s", path, error)
                    return False
                # SQLite may refuse this at once while others read, whatever the timeout
                time.sleep(0.02)


def _begin(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    # A deferred transaction that reads first cannot become a writer once another one
    # wrote: it would fail half-way. So writers take the lock at the start.
    is_writer = connection.get_execution_options().get(IS_WRITER, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _set_up(statement: str, connection: Any, _: object) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        cursor.close()
    except BaseException:
        connection.close()  # the pool drops it, but leaves it open
        raise


def _remember_process(_: object, entry: ConnectionPoolEntry) -> None:
    entry.info["process"] = os.getpid()


def _refuse_inherited(_: object, entry: Any, proxy: Any) -> None:
    """Replace a connection of the parent process: neither side may use it after a fork.

    A forked child has the same socket or file locks as its parent.
    """
    if entry.info["process"] == os.getpid():
        return
    # kept, since closing it here would end the connection or the locks of the parent
    _inherited.append(proxy.dbapi_connection)
    entry.dbapi_connection = proxy.dbapi_connection = None
    raise DisconnectionError("the connection belongs to the parent process")
