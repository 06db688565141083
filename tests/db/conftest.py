"""Stores and places for the tests of the database."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from feinsum.db import SqlStore, open_store
from feinsum.records import InMemoryStore
from tests.db.contract import MakeStore
from tests.db.factories import make_peaks, make_record

NOBODY = 65534

HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
connection.close()
"""


@pytest.fixture
def database(tmp_path):
    """Where a database can be made."""
    return tmp_path / "facts.sqlite"


@pytest.fixture
def filled_database(database):
    """A database with three records and the limits of a device."""
    with open_store(database) as store:
        for number in range(3):
            store.add(make_record(number))
        store.add(make_peaks())
    return database


@pytest.fixture
def make_sql_store(tmp_path):
    """Makes new stores in files, closed after the test."""
    with ExitStack() as stack:
        names = iter(range(10**6))
        yield lambda: stack.enter_context(
            open_store(tmp_path / f"{next(names)}.sqlite")
        )


@pytest.fixture
def make_postgresql_store(postgresql):
    """Makes new stores, each in a schema of its own, dropped after the test."""
    with ExitStack() as stack:

        def make() -> SqlStore:
            url = stack.enter_context(schema_in(postgresql))
            return stack.enter_context(open_store(url))

        yield make


@contextmanager
def schema_in(server: str) -> Iterator[str]:
    """The URL of a new database in a PostgreSQL server, dropped afterwards."""
    url = make_url(server).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    name = f"feinsum_{uuid.uuid4().hex}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    try:
        own = url.update_query_dict({"options": f"-csearch_path={name}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request, database):
    """The path or URL of an empty database of each kind in turn."""
    if request.param == "sqlite":
        return str(database)
    make: Callable[[], SqlStore] = request.getfixturevalue("make_postgresql_store")
    return make().location.url.render_as_string(hide_password=False)


@pytest.fixture(params=["make_sql_store", "make_postgresql_store"])
def make_any_sql_store(request):
    """Makes new stores of each kind of database in turn."""
    make: Callable[[], SqlStore] = request.getfixturevalue(request.param)
    return make


@pytest.fixture(params=["memory", "make_sql_store", "make_postgresql_store"])
def make_store(request):
    """Makes new stores of each kind in turn."""
    if request.param == "memory":
        return InMemoryStore
    make: MakeStore = request.getfixturevalue(request.param)
    return make


@contextmanager
def locked_by_another_process(database: Path) -> Iterator[None]:
    """Another process holds the exclusive lock of the database."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            holder.communicate(timeout=30)


@pytest.fixture
def public_folder():
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permission bits count: root acts as nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(NOBODY)
    except OSError as error:
        pytest.skip(f"root ignores permission bits, and cannot become nobody: {error}")
    try:
        yield
    finally:
        os.seteuid(0)
