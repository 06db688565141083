"""The one place where errors of the database libraries become errors of ours."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from feinsum.db.sql.location import Location
from feinsum.db.sql.sqlite_file import result_code
from feinsum.errors import StoreUnavailableError

__all__ = ["read_only", "translated"]

logger = logging.getLogger(__name__)

RESTORE = (
    "restore a copy from a backup beside it, or move the file away to begin a new one"
)

EXPLANATIONS = {
    "SQLITE_BUSY": (
        "is locked by another process for longer than {timeout:g} s",
        "wait for that process or end it, then try again",
    ),
    "SQLITE_CANTOPEN": (
        "cannot be opened",
        "check that its folder exists and that you may read and write there",
    ),
    "SQLITE_CORRUPT": ("is damaged", RESTORE),
    "SQLITE_FULL": ("cannot grow: the disk is full", "free some space"),
    "SQLITE_IOERR": (
        "cannot be read or written: the disk reports an error",
        "check the disk, then try again",
    ),
    "SQLITE_NOTADB": ("is not an SQLite database", RESTORE),
    "SQLITE_READONLY": (
        "cannot be written",
        "check the permissions of the file and of its folder",
    ),
}
"""What an error code of SQLite means, and what to do."""


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise :class:`StoreUnavailableError` for every failure of the database."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        logger.debug("the database %s failed", location, exc_info=True)
        raise _explained(location, error) from None


def read_only(location: Location) -> StoreUnavailableError:
    """The error of a write into a database that is only read."""
    return StoreUnavailableError(
        f"the database {location} is open for reading only and cannot take new "
        "facts: ask for write permission on the file and on its folder, or set "
        "FEINSUM_DATABASE to a database of your own"
    )


def _explained(location: Location, error: Exception) -> StoreUnavailableError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    problem, advice = EXPLANATIONS.get(
        result_code(cause),
        ("failed", "check that it can be reached, and that nothing else changed it"),
    )
    detail = next(iter(str(cause).splitlines()), type(cause).__name__)
    return StoreUnavailableError(
        f"the database {location} "
        f"{problem.format(timeout=location.busy_timeout_s)} ({detail}); {advice}"
    )
