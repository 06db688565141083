"""Addresses: where a database or a service is, and the key to send there.

::

    facts.sqlite, sqlite:///facts.sqlite       a file (:class:`Location`)
    postgresql://user@host/database            a server of databases (:class:`Location`)
    https://facts.example/team                 a service (:class:`Address`)
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from platformdirs import user_data_path
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from feinsum.errors import StoreUnavailableError
from feinsum.options import DATABASE_VARIABLE, get_default_location
from feinsum.words import describe_type

BUSY_TIMEOUT_S = 30.0
"""How long a reader or writer waits for the locks of others, in seconds.

Longer than any transaction of ours: a writer that gives up loses a measured fact.
"""

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


def is_not_created_yet() -> bool:
    """Return whether the default database applies, and does not exist yet."""
    chosen = os.environ.get(DATABASE_VARIABLE, "").strip()
    return not chosen and not Path(get_default_location()).exists()


def make_missing_error(location: Location) -> StoreUnavailableError:
    """Return the error for a missing database."""
    return StoreUnavailableError(
        f"there is no database {location}: check the path, or create one with 'feinsum "
        "db init', 'feinsum tune' or 'feinsum db import'"
    )


def locate(
    database: str | os.PathLike[str] | None,
    *,
    is_read_only: bool = False,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> Location:
    """Parse the location given by a path, a URL or the default.

    Raises:
        StoreUnavailableError: if it is neither an SQLite file nor a PostgreSQL server,
            or not a regular file.
    """
    target: object = get_default_location() if database is None else database
    text = os.fspath(target) if isinstance(target, os.PathLike) else target
    if not isinstance(text, str):
        raise StoreUnavailableError(
            f"{describe_type(database)} does not locate a database; expected a "
            "path or a URL as str or os.PathLike"
        )
    if text.lower().startswith("file:"):
        raise StoreUnavailableError(
            f"{text!r} is a URI of SQLite, expected a path such as facts.sqlite or "
            "a URL of SQLAlchemy such as sqlite:///facts.sqlite"
        )
    if is_service(text):
        raise StoreUnavailableError(
            "the URL of a service was given, expected a database: a path or "
            "postgresql://user@host/database; use a service with FEINSUM_REMOTE, or as "
            "the database of retrieve, tune, query, merge, import and export"
        )
    name = text
    if "://" in text:
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            # only the scheme is quoted: the rest may hold a password
            scheme = text.partition("://")[0]
            raise StoreUnavailableError(
                f"the database URL that begins with {scheme + '://'!r} is not well "
                "formed; expected sqlite:///path or postgresql://user@host/database"
            ) from None
        if driver := DRIVERS.get(url.drivername):
            server = url.set(drivername=driver)
            return Location(server, None, is_read_only, busy_timeout_s)
        if url.get_backend_name() != "sqlite":
            raise StoreUnavailableError(
                f"databases of kind {url.drivername!r} are not supported; expected a "
                "path, sqlite:///path or postgresql://user@host/database"
            )
        # SQLAlchemy's URLs of SQLite have options (threads, URIs) that would bypass the
        # settings of our connections, so that only their path is used.
        is_read_only |= url.query.get("mode") == "ro"
        name = (url.database or "").removeprefix("file:")
    if name in ("", ":memory:"):
        raise StoreUnavailableError(
            "an SQLite database in memory was given, expected a file: give a path, "
            "or use feinsum.records.InMemoryStore"
        )
    path = _resolve(name)
    # SQLite writes into the file and, for its journal, into the folder.
    is_protected = path.exists() and not (may_write(path.parent) and may_write(path))
    url = URL.create("sqlite+pysqlite", database=str(path))
    return Location(url, path, is_read_only or is_protected, busy_timeout_s)


def format_location(database: str | os.PathLike[str] | None) -> str:
    """Return a path or URL without a password."""
    try:
        return str(locate(database, is_read_only=True))
    except StoreUnavailableError:  # opening it raises an error that says why
        return "not usable"


def _resolve(name: str) -> Path:
    """Return the path of a regular or missing file; refuse all else, unopened."""
    try:
        path = Path(name).expanduser().resolve()
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise StoreUnavailableError(
            f"{name!r} cannot be used as the path of a database: {problem}; give "
            "another path"
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
    return path


def check_folder(path: Path) -> None:
    """Check the folder of a new database; only feinsum's own folder is created.

    Raises:
        StoreUnavailableError: if there is no such folder, or it is not writable.
    """
    folder, problem = path.parent, ""
    try:
        # Any other missing folder is probably misspelt.
        if folder == user_data_path("feinsum").resolve():
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            problem = "it does not exist: create it first"
        elif not folder.is_dir():
            problem = "it is a file"
        elif not may_write(folder):
            problem = "it is not writable"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise StoreUnavailableError(
            f"cannot create a database at {path}: the folder {folder} is not usable "
            f"({problem}); give another path, or set {DATABASE_VARIABLE}"
        )


def may_write(path: Path) -> bool:
    """Return whether this process may write a file, or create files in a folder."""
    # Opening a file checks the effective user, os.access by default the real one.
    is_effective = os.access in os.supports_effective_ids
    mode = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, mode, effective_ids=is_effective)


# Services

REMOTE_VARIABLE = "FEINSUM_REMOTE"
"""Environment variable with the URL of the service that look-ups query."""

KEY_VARIABLE = "FEINSUM_REMOTE_KEY"
"""Environment variable with the key of a service, or the path of a file with it."""

KEY_FILE_VARIABLE = "FEINSUM_REMOTE_KEY_FILE"
"""Deprecated environment variable with the path of a file that holds the key."""

KEY_OVER_HTTP_VARIABLE = "FEINSUM_REMOTE_KEY_OVER_HTTP"
"""Environment variable that is ``on`` where a key may be sent in plain text."""

SCHEMES = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_KEY = re.compile(r"[!-~]{1,500}")

SECRET = re.compile(r"feinsum_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
"""A key of a service; its first group is the id."""

_MAX_KEY_BYTES = 1000


@dataclass(frozen=True)
class Address:
    """A service: its origin, and the path below which it lies.

    >>> str(parse_address("https://facts.example/team/"))
    'https://facts.example/team'
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def is_private(self) -> bool:
        """Whether nobody on the network path can read what is sent."""
        return self.scheme == "https" or _is_this_machine(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == SCHEMES[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}"


def is_service(location: object) -> bool:
    """Return whether a location is the URL of a service rather than a database."""
    if not isinstance(location, str):
        return False
    return location.strip().lower().startswith(("http://", "https://"))


def parse_address(url: str) -> Address:
    """Parse the URL of a service.

    Raises:
        StoreUnavailableError: if it is invalid; possible passwords are not quoted.
    """
    try:
        components = urlsplit(url.strip())
        host, port = components.hostname or "", components.port
    except ValueError:
        components, host, port = None, "", None
    if (
        components is None
        or components.scheme not in SCHEMES
        or not _HOST.fullmatch(host)
    ):
        raise _make_address_error("is not a web URL")
    # A password in a URL would be printed in messages, and kept in shell histories.
    if "@" in components.netloc:
        raise _make_address_error(
            f"has a user or a password; pass the key in {KEY_VARIABLE}"
        )
    prefix = components.path.rstrip("/")
    if components.query or components.fragment or not _PREFIX.fullmatch(prefix):
        raise _make_address_error("has more than a host, a port and a plain path")
    if port == 0:
        raise _make_address_error("has the port 0")
    return Address(components.scheme, host, port or SCHEMES[components.scheme], prefix)


def get_remote_url() -> str:
    """Return the URL in the environment variable; empty if it is not set."""
    return os.environ.get(REMOTE_VARIABLE, "").strip()


def get_service_key(address: Address) -> str | None:
    """Return the key to send to a service, if there is one for it.

    If a service is configured for look-ups, the key belongs to it and is sent to no
    other.

    Raises:
        StoreUnavailableError: if the key cannot be read, or would be sent in plain
            text. The message does not quote it.
    """
    # A key that is sent to the wrong service is lost: its operator can use it.
    key = _read_key()
    if not key or not _has_key(address):
        return None
    if not _KEY.fullmatch(key):
        raise StoreUnavailableError(
            f"the key for {address} has invalid characters; set "
            f"{KEY_VARIABLE} to what 'feinsum keys create' printed"
        )
    may_be_read = os.environ.get(KEY_OVER_HTTP_VARIABLE, "").strip().lower() == "on"
    if not (address.is_private or may_be_read):
        raise StoreUnavailableError(
            f"the key is not sent to {address}, because anyone on the network path "
            "could read it; "
            f"use https, or set {KEY_OVER_HTTP_VARIABLE}=on in a network that you trust"
        )
    return key


def parse_key_id(key: str) -> str | None:
    """Return the id in a key; None if no service made it.

    >>> parse_key_id("feinsum_0123abcd_" + "x" * 43), parse_key_id("x" * 40)
    ('0123abcd', None)
    """
    match = SECRET.fullmatch(key)
    return match[1] if match else None


def describe_sent_key(key: str | None) -> str:
    """Describe the key that a service refused, by its id, and where it is set.

    >>> print(describe_sent_key(None))
    no key was sent; set FEINSUM_REMOTE_KEY
    >>> print(describe_sent_key("feinsum_0123abcd_" + "x" * 43))
    the key in FEINSUM_REMOTE_KEY has the id 0123abcd
    """
    if key is None:
        return f"no key was sent; set {KEY_VARIABLE}"
    key_id = parse_key_id(key)
    name = f"has the id {key_id}" if key_id else "was not made by feinsum keys create"
    return f"the key in {KEY_VARIABLE} {name}"


def _has_key(address: Address) -> bool:
    url = get_remote_url()
    try:
        return not url or parse_address(url).origin == address.origin
    except StoreUnavailableError:
        return False


def _read_key() -> str:
    """Read the key from the environment, or from the file named there."""
    for variable in (KEY_VARIABLE, KEY_FILE_VARIABLE):
        value = os.environ.get(variable, "").strip()
        # keys are url-safe Base64, so that a slash tells a path from a key
        if value and (variable == KEY_FILE_VARIABLE or "/" in value):
            return _read_key_file(value, variable)
        if value:
            return value
    return ""


def _read_key_file(path: str, variable: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            # bounded: the variable may name any file, even an endless device
            return file.read(_MAX_KEY_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise StoreUnavailableError(
            f"the key of the service cannot be read from {path} ({error.strerror}); "
            f"check {variable}"
        ) from None


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _make_address_error(problem: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the URL of a service {problem}; expected one such as https://facts.example"
    )
