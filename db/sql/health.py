"""Whether a database can be used now, for ``feinsum doctor``; changes nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from feinsum.db.sql.location import Location, locate, may_write
from feinsum.db.sql.store import open_store
from feinsum.errors import StoreError


@dataclass(frozen=True)
class DatabaseHealth:
    """The observed state of a database.

    Attributes:
        location: path or URL, without a password.
        problem: why it cannot be used, or not fully; empty if it can.
        n_records: None if there is no database yet, or it cannot be read.
    """

    location: str
    problem: str = ""
    n_records: int | None = None
    is_writable: bool = True


def examine(
    database: str | os.PathLike[str] | None, *, patience_s: float = 2.0
) -> DatabaseHealth:
    """Open an existing database, count, and briefly acquire its write lock.

    Args:
        database: path or URL; None for the user's database.
        patience_s: how long to wait for the locks of others.
    """
    try:
        location = locate(database, is_read_only=True)
        if location.path is not None and not location.path.exists():
            return _health_of_missing(location.path)
        with open_store(
            location.path or database, is_read_only=True, busy_timeout_s=patience_s
        ) as store:
            n_records = len(store)
    except StoreError as error:
        return DatabaseHealth(_printable(database), str(error), is_writable=False)
    problem = "" if location.path is None else _why_not_written(location, patience_s)
    return DatabaseHealth(str(location), problem, n_records, is_writable=not problem)


def _health_of_missing(path: Path) -> DatabaseHealth:
    """Return whether a new one can be created in the first folder above it."""
    folder = next(above for above in path.parents if above.exists())
    if folder.is_dir() and may_write(folder):
        return DatabaseHealth(str(path))
    problem = f"cannot create a database there: {folder} is not writable"
    return DatabaseHealth(str(path), problem, is_writable=False)


def _why_not_written(location: Location, patience_s: float) -> str:
    path = location.path
    assert path is not None
    if not (may_write(path.parent) and may_write(path)):
        return "the file or its folder is not writable, so facts can only be read"
    try:
        with closing(
            sqlite3.connect(path, timeout=patience_s, isolation_level=None)
        ) as connection:
            # takes the write lock and changes nothing
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return f"could not acquire its write lock within {patience_s:g} s: {error}"
    return ""


def _printable(database: str | os.PathLike[str] | None) -> str:
    try:
        return str(locate(database, is_read_only=True))
    except StoreError:
        return "the given database"
