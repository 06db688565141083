"""Failures of databases: translated to our errors, and retried if a server is away.

No other module catches errors of database libraries. A PostgreSQL server that restarts
drops all connections and is away for seconds; the service waits for it
(:class:`RetryPolicy`), so that a restart is a delay and no outage.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from feinsum.db.sql.location import Location
from feinsum.db.sql.sqlite_file import result_code
from feinsum.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

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


class LostConnectionError(StoreUnavailableError):
    """A database server dropped a connection, or accepts none at the moment.

    Retrying may help, since a restarting server is away for seconds.
    """


MAX_WAIT_S = 10.0
"""How long the service waits for a server that was there before."""

# The first retry comes at once: often only the connections of the pool are stale.
PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Between attempts; the last one again and again."""


class RetryPolicy:
    """Retries after a lost connection, until the server is back.

    Once a server was away for the whole time, calls fail at once until one succeeds:
    otherwise every thread of a service would wait for a server that is gone.

    Args:
        max_wait_s: how long one call waits; 0 for no retry.

    >>> answers = iter([LostConnectionError("ended"), 7])
    >>> def ask():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> RetryPolicy().run(ask)
    7
    """

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        self._max_wait_s = max_wait_s
        self._is_away = False

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``: a transaction that may run several times.

        Raises:
            LostConnectionError: if the server did not come back.
        """
        start_s, n_retries = time.monotonic(), 0
        while True:
            try:
                result = work()
            except LostConnectionError:
                waited_s = time.monotonic() - start_s
                if self._is_away or waited_s >= self._max_wait_s:
                    self._is_away = True
                    raise
                time.sleep(PAUSES_S[min(n_retries, len(PAUSES_S) - 1)])
                n_retries += 1
            else:
                self._is_away = False
                return result


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise :class:`StoreUnavailableError` for every failure of the database."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        logger.debug("the database %s failed", location, exc_info=True)
        raise _explained(location, error) from None


def read_only(location: Location) -> StoreUnavailableError:
    """Return the error of a write to a read-only database."""
    return StoreUnavailableError(
        f"the database {location} is read-only and cannot store new facts: ask for "
        "write permission on the file and its folder, or set FEINSUM_DATABASE to a "
        "database of your own"
    )


def _explained(location: Location, error: Exception) -> StoreUnavailableError:
    # SQLAlchemy wraps the error of the driver, which has the code.
    cause = error.orig if isinstance(error, DBAPIError) else error
    problem, advice = EXPLANATIONS.get(
        result_code(cause),
        ("failed", "check that it can be reached, and that nothing else changed it"),
    )
    # only the first line: PostgreSQL adds the statement, SQLAlchemy a link
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
    return "OperationalError" in kinds and state.startswith(LOST_CODES)
