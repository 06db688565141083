"""Schema versions: create, migrate or refuse a schema; copies of SQLite files.

A new database is created with the newest version. Whoever opens an older one to record
facts migrates it, after making a copy beside it; readers refuse it, and change nothing.
A newer one is refused: it would be read wrongly. A file is checked by its first bytes,
so that a foreign one is never opened for writing.

An older database of any version is upgraded at once: it gets the tables and columns
that it lacks, as :mod:`feinsum.db.sql.tables` describes them. Facts do not change, for
their ids are digests of their documents. Only where other rows mean something else
since, there is a function that converts them::

    0004 --> tables, columns of today --> 0006, 0010, 0011 --> newest

Source: "Database File Format", https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    text,
)
from sqlalchemy.schema import CreateColumn

from feinsum.db.address import Location, check_folder, locate, make_missing_error
from feinsum.db.sql.engine import (
    connect_for_reading,
    has_log,
    make_engine,
    make_writer,
    use_write_ahead_log,
)
from feinsum.db.sql.rows import insert_missing, make_rows
from feinsum.db.sql.tables import Base, RecordingRow, UtcDateTime
from feinsum.errors import SchemaVersionError, StoreUnavailableError
from feinsum.records import Retraction

logger = logging.getLogger(__name__)

VERSIONS = tuple(f"{number:04}" for number in range(1, 12))
"""All versions of the schema, oldest first."""

NEWEST = VERSIONS[-1]

APPLICATION_ID = 0x6665696E
"""Marks a database as ours in its header: the letters ``fein``."""

VERSION_TABLE = "feinsum_schema_version"

_VERSION = Table(
    VERSION_TABLE, MetaData(), Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)  # fmt: skip

# "feinsum" in ASCII; any number that other programs do not lock would do.
POSTGRESQL_LOCK = 0x6665696E73756D

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100


def prepare_schema(engine: Engine, location: Location) -> str | None:
    """Upgrade the database to the newest version of the schema, if allowed.

    Processes that open a new or old database concurrently take turns: one does the
    work, the others find it done.

    Returns:
        The version before; None for a new database.

    Raises:
        SchemaVersionError: if the database has a version unknown here, or an older one
            and is only read.
        StoreUnavailableError: if it is not a feinsum database.
    """
    may_create = location.may_create and not location.is_read_only
    may_change = location.may_migrate and not location.is_read_only
    if location.path is not None and not _is_ours(location.path):
        if not may_create:  # its path may be misspelt
            raise make_missing_error(location)
        check_folder(location.path)
        _create_file(location, location.path)
    with engine.connect() as connection:
        version = _read_version(connection, location)
    if version is None and not may_create:
        raise make_missing_error(location)
    if version != NEWEST:
        # Not for a reader: other programs may still need the old schema.
        if not may_change:
            raise SchemaVersionError(
                f"the database {location} has schema {version} of an older feinsum, "
                f"expected {NEWEST}: upgrade it with 'feinsum db migrate --database "
                f"{shlex.quote(str(location))}', from an account that may write to it"
            )
        # In one transaction: after a crash, the database has the old schema.
        _migrate(engine, location)
    if location.path is not None and may_change:
        use_write_ahead_log(location.path)
    return version


def _create_file(location: Location, path: Path) -> None:
    """Create a database that is complete when it gets its name.

    So no process ever sees a database that another one is still creating.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
    engine = make_engine(replace(location, path=temporary))
    try:
        if location.is_private:  # as are the log and the index that SQLite puts beside
            temporary.touch(mode=0o600)
        with make_writer(engine).begin() as connection:
            _create(connection)
        # Closed, and so without a journal, before others find it by its name.
        engine.dispose()
        with suppress(FileExistsError):
            _rename(temporary, path)
            logger.info("created the database %s", location)
    finally:
        engine.dispose()
        temporary.unlink(missing_ok=True)


def _create(connection: Connection) -> None:
    """Create the newest schema from its tables."""
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA application_id = {APPLICATION_ID}"))
    Base.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection)
    connection.execute(_VERSION.insert().values(version_num=NEWEST))


def _rename(temporary: Path, path: Path) -> None:
    """Rename a file, or raise FileExistsError if the new name is taken."""
    try:
        # a rename would replace the database that another process has just made
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without such links
        if path.exists():
            raise FileExistsError(path) from None
        temporary.rename(path)


def _migrate(engine: Engine, location: Location) -> None:
    with make_writer(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            # in SQLite, BEGIN IMMEDIATE has the same effect
            lock = text("SELECT pg_advisory_xact_lock(:key)")
            connection.execute(lock, {"key": POSTGRESQL_LOCK})
        version = _read_version(connection, location)  # again: now nobody else writes
        if version == NEWEST:
            return
        if version is None:
            _create(connection)
            logger.info("created the database %s", location)
            return
        if location.path is not None:
            # There is no downgrade: the copy has the old schema.
            stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
            name = f"{location.path.name}.backup-{version}-{stamp}"
            copy_database(location.path, location.path.with_name(name))
            logger.info("copied %s with schema %s to %s", location, version, name)
        upgrade(connection, version)
        connection.execute(_VERSION.update().values(version_num=NEWEST))


def upgrade(connection: Connection, version: str) -> None:
    """Upgrade a database of an older version, in the open transaction."""
    add_missing(connection)
    for changed_in, convert in CONVERSIONS.items():
        if version < changed_in:
            convert(connection)


def add_missing(connection: Connection) -> None:
    """Add the tables and columns that a database lacks, with their defaults.

    Raises:
        StoreUnavailableError: if a table of that name is another program's.
    """
    Base.metadata.create_all(connection)
    present = inspect(connection)
    for table in Base.metadata.sorted_tables:
        names = {column["name"] for column in present.get_columns(table.name)}
        if missing := {*table.primary_key.columns.keys()} - names:
            raise StoreUnavailableError(
                f"the database has another program's table {table.name!r}, without "
                f"the column {min(missing)!r}; rename that table, then upgrade again"
            )
        for column in table.columns:
            if column.name not in names:
                described = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(
                    f"ALTER TABLE {table.name} ADD COLUMN {described}"
                )


def trust_administrators(connection: Connection) -> None:
    """0006: facts that administrators sent are trusted, those of other keys not."""
    # by name: recordings have the recorder, not the key
    connection.exec_driver_sql(
        "UPDATE recordings SET is_trusted = TRUE WHERE recorder IN "
        "(SELECT name FROM api_keys WHERE scope = 'admin')"
    )


def free_recordings(connection: Connection) -> None:
    """0010: recordings are of plans, too, and refer to no table of records."""
    table = RecordingRow.__table__
    if not inspect(connection).get_foreign_keys(table.name):
        return
    # SQLite cannot drop a constraint, so the table is created again
    connection.exec_driver_sql(
        "CREATE TABLE recordings_before AS SELECT * FROM recordings"
    )
    table.drop(connection)
    table.create(connection)
    names = ", ".join(table.columns.keys())
    connection.exec_driver_sql(
        f"INSERT INTO recordings ({names}) SELECT {names} FROM recordings_before"  # noqa: S608
    )
    connection.exec_driver_sql("DROP TABLE recordings_before")


UNTRUST = """
UPDATE recordings SET is_trusted = FALSE
WHERE record_id IN (SELECT record_id FROM quarantine)
"""

ATTRIBUTE = """
INSERT INTO recordings (record_id, recorder, received_at, is_trusted)
SELECT record_id, 'anonymous', received_at, FALSE FROM quarantine
WHERE record_id NOT IN (SELECT record_id FROM recordings)
"""
"""A fact without a recorder would be taken for one that was recorded here."""

TRUST = """
UPDATE recordings SET is_trusted = TRUE
WHERE record_id IN (SELECT record_id FROM verdicts WHERE is_accepted)
"""

REJECTED = """
SELECT record_id, decided_at FROM verdicts
WHERE NOT is_accepted
AND record_id NOT IN (SELECT document_id FROM retractions)
"""


def end_quarantine(connection: Connection) -> None:
    """0011: waiting facts become untrusted, accepted ones trusted.

    An operator's rejection becomes a retraction, so that no rejected fact comes back.
    Every fact and plan stays.
    """
    present = inspect(connection)
    # In this order: an accepted fact that was still waiting is trusted in the end.
    if present.has_table("quarantine"):  # since 0004
        connection.exec_driver_sql(UNTRUST)
        connection.exec_driver_sql(ATTRIBUTE)
        connection.exec_driver_sql("DROP TABLE quarantine")
    if present.has_table("verdicts"):  # since 0006
        connection.exec_driver_sql(TRUST)
        _retract_rejected(connection)
        connection.exec_driver_sql("DROP TABLE verdicts")


def _retract_rejected(connection: Connection) -> None:
    rejected = text(REJECTED).columns(record_id=String, decided_at=UtcDateTime)
    reason = "rejected by the operator, before quarantine was removed"
    for record_id, decided_at in connection.execute(rejected).all():
        decided = decided_at.replace(microsecond=0).isoformat()
        retraction = Retraction(record_id, reason, "operator", decided)
        insert_missing(connection, make_rows(retraction))


CONVERSIONS: dict[str, Callable[[Connection], None]] = {
    "0006": trust_administrators,
    "0010": free_recordings,
    "0011": end_quarantine,
}
"""The changes of rows in order, by the version of the schema since which they hold."""


def _read_version(connection: Connection, location: Location) -> str | None:
    """Return the version of the schema; None for an empty database."""
    names = inspect(connection).get_table_names()
    if not names:
        return None
    # Tables are never created beside those of another program.
    if VERSION_TABLE not in names:
        raise _make_foreign_error(location)
    versions = connection.scalars(_VERSION.select()).all()
    if len(versions) == 1 and versions[0] in VERSIONS:
        return str(versions[0])
    listed = " and ".join(map(str, versions)) or "no version"
    raise SchemaVersionError(
        f"the database {location} has schema {listed}, but this installation of "
        f"feinsum knows {VERSIONS[0]} to {NEWEST}: install a newer feinsum, or use "
        "another database (FEINSUM_DATABASE)"
    )


def _make_foreign_error(location: object) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the database {location} belongs to another program: it has tables, but "
        f"not {VERSION_TABLE!r}; give feinsum a database of its own"
    )


def _is_ours(path: Path) -> bool:
    """Check that a file is a complete feinsum database; false if it is missing.

    Raises:
        StoreUnavailableError: if it is not an SQLite database, is empty or truncated,
            or belongs to another program.
        OSError: if it cannot be read.
    """
    if not path.exists():
        return False
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
        uri = f"{path.as_uri()}?immutable=1"  # takes no lock, makes no file
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
        if rows and (VERSION_TABLE,) not in rows:
            raise _make_foreign_error(path)
    return True


def _is_truncated(path: Path, header: bytes) -> bool:
    """Return whether pages that the header counts are missing from the file.

    A log or a journal beside the file may still hold them. The order of the checks
    makes the result right while another process writes.
    """
    if header[24:28] != header[92:96]:  # written by a version that does not count
        return False
    if has_log(path):
        return False
    page_bytes = int.from_bytes(header[16:18], "big")
    # 1 stands for 64 KiB, too large for the field of 16 bits
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    return path.stat().st_size < page_bytes * int.from_bytes(header[28:32], "big")


def copy_database(path: Path, copy: Path) -> None:
    """Copy a consistent snapshot of a database, even while others use it.

    Args:
        path: path of the database, perhaps in a folder that is read-only.
        copy: path of the copy, which those may read who may read the database.

    Raises:
        sqlite3.Error, OSError: if it cannot be read or written; nothing is left behind.
    """
    try:
        # before the copy has content: facts of a private database stay private
        copy.touch(mode=path.stat().st_mode & 0o777)
        with (
            closing(connect_for_reading(path, locate(path))) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except (sqlite3.Error, OSError):
        copy.unlink(missing_ok=True)
        raise
