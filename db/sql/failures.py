"""The one place that translates errors of database libraries to ours."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from feinsum.db.sql.location import Location
from feinsum.db.sql.sqlite_file import result_code
from feinsum.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

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

LOST = ("08", "57P")
"""Prefixes of PostgreSQL codes for connections, and for a server that ends or starts.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""


class LostConnectionError(StoreUnavailableError):
    """A database server dropped a connection, or accepts none at the moment.

    Retrying may help, since a restarting server is away for seconds.
    """


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise :class:`StoreUnavailableError` for every failure of the database."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        logger.debug("the database %s failed", location, exc_info=True)
        raise _explained(location, error) from None


def read_only(location: Location) -> StoreUnavailableError:
    """The error of a write to a read-only database."""
    return StoreUnavailableError(
        f"the database {location} is read-only and cannot store new facts: ask for "
        "write permission on the file and its folder, or set FEINSUM_DATABASE to a "
        "database of your own"
    )


def _explained(location: Location, error: Exception) -> StoreUnavailableError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    problem, advice = EXPLANATIONS.get(
        result_code(cause),
        ("failed", "check that it can be reached, and that nothing else changed it"),
    )
    detail = next(iter(str(cause).splitlines()), type(cause).__name__)
    kind = LostConnectionError if _is_lost(location, error) else StoreUnavailableError
    return kind(
        f"the database {location} "
        f"{problem.format(timeout=location.busy_timeout_s)} ({detail}); {advice}"
    )


def _is_lost(location: Location, error: Exception) -> bool:
    """Whether it is the connection to a server that failed, and not a statement.

    A socket that fails has no code; an error of another kind than of operation is one
    of the statement.
    """
    if location.path is not None or not isinstance(error, DBAPIError):
        return False
    cause = error.orig
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    state = getattr(cause, "sqlstate", None) or "08"
    return "OperationalError" in kinds and state.startswith(LOST)
