"""Where a database is: an SQLite file, or a PostgreSQL server by URL."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from feinsum.db.address import is_service
from feinsum.errors import StoreUnavailableError
from feinsum.options import DATABASE_VARIABLE
from feinsum.words import type_in_words

BUSY_TIMEOUT_S = 30.0
"""How long a reader or writer waits for the locks of others, in seconds.

Longer than any transaction of ours: a writer that gives up loses a measured fact.
"""

ENVIRONMENT_VARIABLE = DATABASE_VARIABLE

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


@dataclass(frozen=True)
class Location:
    """A database that can be opened.

    Attributes:
        url: what SQLAlchemy opens; may hold a password, so it is never printed.
        path: the file of an SQLite database; None for a server.
        is_read_only: whether the database is only read, by request or by permissions.
        is_immutable: whether the file is read without locks, and without files beside
            it.
        may_create: whether to create a missing database.
        is_private: whether nobody else may read a database that is created.
        may_migrate: whether to upgrade a database with an older schema.
        busy_timeout_s: how long to wait for the locks of others.
    """

    url: URL
    path: Path | None
    is_read_only: bool
    busy_timeout_s: float
    is_immutable: bool = False
    may_create: bool = True
    is_private: bool = False
    may_migrate: bool = True

    def __str__(self) -> str:
        # PostgreSQL also takes passwords as options of the query
        shown = self.url.difference_update_query(["password", "sslpassword"])
        return str(self.path or shown.render_as_string(hide_password=True))


def default_location() -> str:
    """Return the path or URL of the user's database.

    The value of ``FEINSUM_DATABASE`` if set, otherwise ``facts.sqlite`` in the user's
    data folder.
    """
    chosen = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return chosen or str(_own_folder() / "facts.sqlite")


def _own_folder() -> Path:
    return user_data_path("feinsum")


def is_not_created_yet() -> bool:
    """Whether the default database is meant, and does not exist yet."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return not chosen and not Path(default_location()).exists()


def is_present(database: str | os.PathLike[str] | None) -> bool:
    """Whether the database file exists; for a server, only connecting can tell.

    Raises:
        StoreUnavailableError: see :func:`locate`.
    """
    path = locate(database).path
    return path is None or path.exists()


def missing(location: Location) -> StoreUnavailableError:
    """Return the error for a missing database."""
    return StoreUnavailableError(
        f"there is no database {location}: check the path, or create one with 'feinsum "
        "tune' or 'feinsum db import'"
    )


def locate(
    database: str | os.PathLike[str] | None,
    *,
    is_read_only: bool = False,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> Location:
    """Return the location given by a path, a URL or the default.

    Raises:
        StoreUnavailableError: if it is neither an SQLite file nor a PostgreSQL server,
            or not a regular file.
    """
    text = _text(default_location() if database is None else database)
    if is_service(text):
        raise StoreUnavailableError(
            "the URL of a service was given, expected a database: a path or "
            "postgresql://user@host/database; use a service with FEINSUM_REMOTE, or as "
            "the database of retrieve, tune, query, merge, import and export"
        )
    # SQLAlchemy's URLs of SQLite have options (threads, URIs) that would bypass the
    # settings of our connections, so that only their path is used.
    if "://" not in text:
        return _file(_path(text), is_read_only, busy_timeout_s)
    url = _parse(text)
    if url.get_backend_name() == "sqlite":
        wants_read_only = is_read_only or url.query.get("mode") == "ro"
        return _file(_database_file(url), wants_read_only, busy_timeout_s)
    driver = DRIVERS.get(url.drivername)
    if driver is None:
        raise StoreUnavailableError(
            f"databases of kind {url.drivername!r} are not supported; expected a "
            "path, sqlite:///path or postgresql://user@host/database"
        )
    return Location(url.set(drivername=driver), None, is_read_only, busy_timeout_s)


def _text(database: object) -> str:
    """Return a location as text; refuse anything but a path or a URL."""
    text = os.fspath(database) if isinstance(database, os.PathLike) else database
    if not isinstance(text, str):
        raise StoreUnavailableError(
            f"{type_in_words(database)} does not locate a database; expected a "
            "path or a URL as str or os.PathLike"
        )
    if text.lower().startswith("file:"):
        raise StoreUnavailableError(
            f"{text!r} is a URI of SQLite, expected a path such as facts.sqlite or "
            "a URL of SQLAlchemy such as sqlite:///facts.sqlite"
        )
    return text


def _parse(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        # only the scheme is quoted: the rest may hold a password
        scheme = text.partition("://")[0]
        raise StoreUnavailableError(
            f"the database URL that begins with {scheme + '://'!r} is not well "
            "formed; expected sqlite:///path or postgresql://user@host/database"
        ) from None


def _database_file(url: URL) -> Path:
    return _path((url.database or "").removeprefix("file:"))


def _path(name: str) -> Path:
    if name in ("", ":memory:"):
        raise StoreUnavailableError(
            "an SQLite database in memory was given, expected a file: give a path, "
            "or use feinsum.records.InMemoryStore"
        )
    return Path(name)


def _file(path: Path, is_read_only: bool, busy_timeout_s: float) -> Location:
    path = _absolute(path)
    is_protected = _is_file(path) and not _is_writable(path)
    return Location(
        url=URL.create("sqlite+pysqlite", database=str(path)),
        path=path,
        is_read_only=is_read_only or is_protected,
        busy_timeout_s=busy_timeout_s,
    )


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreUnavailableError(
            f"{str(path)!r} is not the path of a database: {error}; give another path"
        ) from None


def _is_file(path: Path) -> bool:
    """Whether there is a file; anything else is refused and never opened."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise StoreUnavailableError(
            f"{str(path)!r} cannot be used as the path of a database: {problem}; "
            "give another path"
        ) from None
    if stat.S_ISDIR(mode):
        raise StoreUnavailableError(
            f"{path} is a folder, expected a database file: give a path such as "
            f"{path / 'facts.sqlite'}"
        )
    if not stat.S_ISREG(mode):
        raise StoreUnavailableError(
            f"{path} is a pipe, a socket or a device, expected a database file: "
            "give another path"
        )
    return True


def check_folder(path: Path) -> None:
    """Check the folder of a new database; only feinsum's own folder is created.

    Raises:
        StoreUnavailableError: if there is no such folder, or it is not writable.
    """
    problem = _problem_of_folder(path.parent)
    if problem:
        raise StoreUnavailableError(
            f"cannot create a database at {path}: the folder {path.parent} is not "
            f"usable ({problem}); give another path, or set {ENVIRONMENT_VARIABLE}"
        )


def _problem_of_folder(folder: Path) -> str:
    try:
        # Any other missing folder is probably misspelt.
        if folder == _own_folder().resolve():
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            return (
                "it is a file"
                if folder.exists()
                else "it does not exist: create it first"
            )
    except OSError as error:
        return error.strerror or str(error)
    return "" if may_write(folder) else "it is not writable"


def _is_writable(path: Path) -> bool:
    """SQLite writes into the file and, for its journal, into the folder."""
    return may_write(path.parent) and may_write(path)


def may_write(path: Path) -> bool:
    """Whether this process may write a file, or create files in a folder."""
    # Opening a file checks the effective user, os.access by default the real one.
    is_effective = os.access in os.supports_effective_ids
    mode = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, mode, effective_ids=is_effective)
