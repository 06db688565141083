"""The file of an SQLite database: is it complete, is it ours, and its backup.

Checks read only the first bytes, so that a foreign file is never opened for writing.

Source: "Database File Format", https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from feinsum.errors import StoreUnavailableError

APPLICATION_ID = 0x6665696E
"""Marks a database as ours in its header: the letters ``fein``."""

VERSION_TABLE = "feinsum_schema_version"

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100


def check_file(path: Path) -> None:
    """Refuse a file that is not a complete feinsum database, without changing it.

    A missing file is fine: a database can be created there.

    Raises:
        StoreUnavailableError: if it is not an SQLite database, is empty or truncated,
            or belongs to another program.
        OSError: if it cannot be read.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        header = stream.read(HEADER_BYTES)
    if not header and not has_log(path):
        raise StoreUnavailableError(
            f"{path} is an empty file; expected a database of feinsum: remove it to "
            "create a new one there, restore a backup, or give another path"
        )
    # A file that is being copied may have less than the whole header.
    if header and not header.startswith(MAGIC[: len(header)]):
        raise StoreUnavailableError(
            f"{path} is not an SQLite database; expected a database that feinsum made: "
            "give another path, or move the file away"
        )
    if len(header) < HEADER_BYTES or _is_truncated(path, header):
        raise StoreUnavailableError(
            f"the database {path} is truncated; restore a backup, or move the file "
            "away to start a new one"
        )
    # Without our mark it is another program's, or an empty database of SQLite.
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        _check_tables(path)


def foreign(location: object) -> StoreUnavailableError:
    """Return the error for a database with tables of another program."""
    return StoreUnavailableError(
        f"the database {location} belongs to another program: it has tables, but "
        f"not {VERSION_TABLE!r}; give feinsum a database of its own"
    )


def back_up(path: Path, version: str) -> Path:
    """Copy a database beside itself; see :func:`copy_database`.

    Returns:
        The path of the copy, named after the schema version and the time.
    """
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    copy = path.with_name(f"{path.name}.backup-{version}-{stamp}")
    copy_database(path, copy)
    return copy


def copy_database(path: Path, copy: Path) -> None:
    """Copy a consistent snapshot of a database, even while others use it.

    The copy is for those who may read the database.

    Raises:
        sqlite3.Error, OSError: if it cannot be read or written; nothing is left behind.
    """
    try:
        # before the copy has content: facts of a private database stay private
        copy.touch(mode=path.stat().st_mode & 0o777)
        with (
            closing(sqlite3.connect(path)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except (sqlite3.Error, OSError):
        copy.unlink(missing_ok=True)
        raise


def has_log(path: Path) -> bool:
    """Whether a log or journal beside the file holds part of the database."""
    return any(_is_filled(path, suffix) for suffix in ("-wal", "-journal"))


def result_code(error: BaseException | None) -> str:
    """SQLite's primary result code, such as ``SQLITE_BUSY``; empty if there is none."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return "_".join(name.split("_")[:2])


def _is_truncated(path: Path, header: bytes) -> bool:
    """Whether pages that the header counts are missing from the file.

    A log or a journal beside the file may still hold them. The order of the
    questions makes the answer right while another process writes.
    """
    if header[24:28] != header[92:96]:  # written by a version that does not count
        return False
    if has_log(path):
        return False
    page_bytes = int.from_bytes(header[16:18], "big")
    # 1 stands for 64 KiB, too large for the field of 16 bits
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    return path.stat().st_size < page_bytes * int.from_bytes(header[28:32], "big")


def _is_filled(path: Path, suffix: str) -> bool:
    try:
        return path.with_name(path.name + suffix).stat().st_size > 0
    except FileNotFoundError:
        return False


def _check_tables(path: Path) -> None:
    uri = f"{path.as_uri()}?immutable=1"  # takes no lock, makes no file
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
    names = {name for (name,) in rows}
    if names and VERSION_TABLE not in names:
        raise foreign(path)
