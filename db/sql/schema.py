"""Schema versions: create, migrate or refuse a schema.

A new database is created with the newest version. Whoever opens an older one to record
facts migrates it, after making a copy beside it; readers refuse it, and change nothing.
A newer one is refused: it would be read wrongly.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
from contextlib import suppress
from dataclasses import replace
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

from feinsum.db.sql.engine import engine_of, use_write_ahead_log, writer
from feinsum.db.sql.location import Location, check_folder, missing
from feinsum.db.sql.sqlite_file import (
    APPLICATION_ID,
    VERSION_TABLE,
    back_up,
    check_file,
    foreign,
)
from feinsum.db.sql.tables import Base
from feinsum.errors import SchemaVersionError
from feinsum.extras import requiring

logger = logging.getLogger(__name__)

VERSIONS = (
    "0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010",
    "0011",
)  # fmt: skip
"""All versions of the schema, oldest first; the revisions in ``migrations/``."""

NEWEST = VERSIONS[-1]

_VERSION = Table(
    VERSION_TABLE, MetaData(), Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)  # fmt: skip
"""The table of Alembic, which reads and writes it when it migrates."""

# "feinsum" in ASCII; any number that other programs do not lock would do.
POSTGRESQL_LOCK = 0x6665696E73756D


def prepare(engine: Engine, location: Location) -> str | None:
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
    if location.path is not None:
        # by its first bytes, before SQLite could change a foreign file
        check_file(location.path)
        if not location.path.exists():
            _refuse_missing(location)
            check_folder(location.path)
            _create_file(location, location.path)
    with engine.connect() as connection:
        version = _version(connection, location)
    if version is None:
        _refuse_missing(location)
    if version != NEWEST:
        _refuse_reader(location, version)
        # In one transaction: after a crash, the database has the old schema.
        _migrate(engine, location)
    if location.path is not None and _may_change(location):
        use_write_ahead_log(location.path)
    return version


def _create_file(location: Location, path: Path) -> None:
    """Create a database that is complete when it gets its name.

    So no process ever sees a database that another one is still creating.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
    engine = engine_of(replace(location, path=part))
    try:
        if location.is_private:  # as are the log and the index that SQLite puts beside
            part.touch(mode=0o600)
        with writer(engine).begin() as connection:
            _create(connection)
        # Closed, and so without a journal, before others find it by its name.
        engine.dispose()
        with suppress(FileExistsError):
            _rename(part, path)
    finally:
        engine.dispose()
        part.unlink(missing_ok=True)


def _create(connection: Connection) -> None:
    """Create the newest schema from its tables; all migrations take much longer."""
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA application_id = {APPLICATION_ID}"))
    Base.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection)
    connection.execute(_VERSION.insert().values(version_num=NEWEST))


def _rename(part: Path, path: Path) -> None:
    """Rename a file, or raise FileExistsError if the new name is taken."""
    try:
        # a rename would replace the database that another process has just made
        path.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # a file system without such links
        if path.exists():
            raise FileExistsError(path) from None
        part.rename(path)


def _migrate(engine: Engine, location: Location) -> None:
    with writer(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            # in SQLite, BEGIN IMMEDIATE has the same effect
            lock = text("SELECT pg_advisory_xact_lock(:key)")
            connection.execute(lock, {"key": POSTGRESQL_LOCK})
        version = _version(connection, location)  # again: now nobody else writes
        if version == NEWEST:
            return
        if version is None:
            _create(connection)
            return
        with requiring("alembic", "tune", f"migrating the database {location}"):
            from feinsum.db.sql.migrations import upgrade
        if location.path is not None:
            # There is no downgrade: who needs the old schema has the copy.
            copy = back_up(location.path, version)
            logger.info("%s: schema %s copied to %s", location, version, copy)
        upgrade(connection)


def _version(connection: Connection, location: Location) -> str | None:
    """Return the version of the schema; None for an empty database."""
    names = inspect(connection).get_table_names()
    if not names:
        return None
    # Never create tables beside those of another program.
    if VERSION_TABLE not in names:
        raise foreign(location)
    query = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
    versions = connection.execute(query).scalars().all()
    if len(versions) == 1 and versions[0] in VERSIONS:
        return str(versions[0])
    listed = " and ".join(map(str, versions)) or "no version"
    raise SchemaVersionError(
        f"the database {location} has schema {listed}, but this installation of "
        f"feinsum knows {VERSIONS[0]} to {NEWEST}: install a newer feinsum, or use "
        "another database (FEINSUM_DATABASE)"
    )


def _refuse_missing(location: Location) -> None:
    """Refuse to create a database for a reader: its path may be misspelt."""
    if location.is_read_only or not location.may_create:
        raise missing(location)


def _refuse_reader(location: Location, version: str | None) -> None:
    """Refuse to migrate for a reader: other programs may still need the old schema."""
    if not _may_change(location):
        raise SchemaVersionError(
            f"the database {location} has schema {version} of an older feinsum, "
            f"expected {NEWEST}: upgrade it with 'feinsum db migrate --database "
            f"{shlex.quote(str(location))}', from an account that may write to it"
        )


def _may_change(location: Location) -> bool:
    return location.may_migrate and not location.is_read_only
