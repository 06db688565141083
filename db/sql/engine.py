"""Engines: database connections that are safe for many concurrent processes.

SQLite: write-ahead log, foreign keys checked, a busy timeout, and writers that acquire
the write lock at the start (``BEGIN IMMEDIATE``). So writers queue; none fails half-way
because another one was first.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from feinsum.db.sql.location import Location
from feinsum.db.sql.sqlite_file import has_log, result_code
from feinsum.errors import StoreUnavailableError
from feinsum.extras import requiring

logger = logging.getLogger(__name__)

IS_WRITER = "feinsum_is_writer"

CONNECT = {"connect_timeout": 5}
"""Seconds that a server has for a new connection, if its URL does not say."""

SET_UP = {
    "sqlite": "PRAGMA cache_size = -256",
    "postgresql": "SET plan_cache_mode = force_generic_plan",
}
"""Settings of a connection that only reads.

For SQLite KiB of pages that a connection keeps, 2 MiB by default; the system has the
pages of the file once for all of them. PostgreSQL would read a table as a whole while
it has no statistics of it.
"""

MAX_WAL_WAIT_S = 2.0
"""How long to wait for the moment in which the journal can be changed."""

_inherited: list[Any] = []
"""Connections of the parent process, which must not be closed here."""


def engine_of(location: Location) -> Engine:
    """Return an engine for a location, without opening it.

    Raises:
        StoreUnavailableError: if the driver is not installed.
    """
    engine = (
        _server_engine(location.url)
        if location.path is None
        else _file_engine(location, location.path)
    )
    event.listen(engine, "begin", _begin)
    event.listen(engine, "connect", _remember_process)
    event.listen(engine, "checkout", _refuse_inherited)
    return engine


def reading_engine(location: Location) -> Engine:
    """Return an engine with a pool of connections that only read, in no transaction.

    Raises:
        StoreUnavailableError: if the driver is not installed.
    """
    if location.path is None:
        # Statements are few, and each runs often: prepared at its first use. No ping
        # before each of them: a read that meets a lost connection is simply repeated.
        options = {"isolation_level": "AUTOCOMMIT", "pool_use_lifo": True}
        engine = _server_engine(
            location.url, {"prepare_threshold": 0}, pool_pre_ping=False, **options
        )
    else:
        engine = _file_engine(location, location.path)
    event.listen(engine, "connect", partial(_set_up, SET_UP[engine.dialect.name]))
    event.listen(engine, "connect", _remember_process)
    event.listen(engine, "checkout", _refuse_inherited)
    return engine


def writer(engine: Engine) -> Engine:
    """Return the engine with transactions that hold the write lock from the start."""
    return engine.execution_options(**{IS_WRITER: True})


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
                is_in_use = result_code(error) == "SQLITE_BUSY"
                if not is_in_use or time.monotonic() > deadline:
                    logger.debug("%s keeps its rollback journal: %s", path, error)
                    return False
                # SQLite may refuse this at once while others read, whatever the timeout
                time.sleep(0.02)


def _server_engine(
    url: URL,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    *,
    pool_pre_ping: bool = True,  # a restarted server has ended those of the pool
    **options: Any,
) -> Engine:
    timeout = {} if "connect_timeout" in url.query else CONNECT
    try:
        with requiring("psycopg", "postgresql", "PostgreSQL", StoreUnavailableError):
            return create_engine(
                url,
                connect_args={**timeout, **arguments},
                pool_pre_ping=pool_pre_ping,
                **options,
            )
    except SQLAlchemyError as error:
        raise StoreUnavailableError(
            f"the URL of a database of kind {url.drivername!r} is not usable: {error}"
        ) from None


def _file_engine(location: Location, path: Path) -> Engine:
    if location.is_read_only:
        engine = create_engine(
            location.url,
            creator=partial(_connect_for_reading, path, location),
            poolclass=NullPool,
        )
    else:
        engine = create_engine(
            location.url,
            creator=partial(_connect, str(path), location.busy_timeout_s),
            poolclass=QueuePool,
            pool_size=5,
            max_overflow=40,  # one for each thread of a service
            pool_use_lifo=True,  # few connections are used, each has a cache of pages
        )
    return engine


def _connect(target: str, busy_timeout_s: float, uri: bool = False) -> Any:
    connection = sqlite3.connect(
        target,
        timeout=busy_timeout_s,
        isolation_level=None,  # transactions begin in _begin, nowhere else
        check_same_thread=False,  # a connection may move to another thread
        uri=uri,
    )
    connection.text_factory = _decode_leniently
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        # with a write-ahead log, NORMAL may lose the last facts at a power failure
        connection.execute("PRAGMA synchronous=FULL")
        # SQLite opens the file at the first statement: errors shall come here
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _decode_leniently(content: bytes) -> str:
    """Decode damaged text, too: its content id tells that it is damaged."""
    return content.decode(errors="replace")


def _connect_for_reading(path: Path, location: Location) -> Any:
    """Connect to a file that is only read, without writing beside it if necessary.

    SQLite creates the files of the write-ahead log even to read. Where that is not
    possible and no log is left, the file alone is the database, and it is opened as
    immutable.
    """
    busy_timeout_s = location.busy_timeout_s
    immutable_uri = f"{path.as_uri()}?immutable=1"
    if location.is_immutable:
        return _connect(immutable_uri, busy_timeout_s, uri=True)
    try:
        return _connect(f"{path.as_uri()}?mode=ro", busy_timeout_s, uri=True)
    except sqlite3.OperationalError as error:
        cannot_create_files = result_code(error) in (
            "SQLITE_CANTOPEN",
            "SQLITE_READONLY",
        )
        # with a log, the file alone would lack the latest facts
        if not cannot_create_files or has_log(path):
            raise
        return _connect(immutable_uri, busy_timeout_s, uri=True)


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
