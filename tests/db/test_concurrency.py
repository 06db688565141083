"""Many processes, and processes that are killed: no acknowledged fact is lost."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from feinsum.db import SqlStore, open_store
from tests.db.factories import make_record
from tests.db.test_schema import OLD_SCHEMA, backups
from tests.db.writer import Writer

MakeStore = Callable[[], SqlStore]

pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
"""Raised where another test imported JAX, which these processes do not use."""


def url_of(store: SqlStore) -> str:
    """What another process opens."""
    return store.location.url.render_as_string(hide_password=False)


def assert_none_lost(database: str | Path, n_processes: int, n_facts: int) -> None:
    """All facts of all processes that open and fill a database are there."""
    writers = [Writer(database, n_facts * p, n_facts) for p in range(n_processes)]
    acknowledged: set[str] = set()
    for writer in writers:
        acknowledged |= set(writer.read_to_end().split())
        assert writer.returncode == 0
    expected = {make_record(n).id for n in range(n_processes * n_facts)}
    assert acknowledged == expected
    with open_store(database) as store:
        assert expected <= {record.id for record in store.records()}


@pytest.mark.parametrize(
    ("n_processes", "n_facts"), [(4, 25), pytest.param(32, 200, marks=pytest.mark.long)]
)
def test_writers_wait_for_each_other(database, n_processes, n_facts):
    """Processes make a new database and add facts: none is lost."""
    assert_none_lost(database, n_processes, n_facts)


@pytest.mark.parametrize(
    ("n_processes", "n_facts"), [(3, 25), pytest.param(32, 200, marks=pytest.mark.long)]
)
def test_writers_share_a_server(make_postgresql_store, n_processes, n_facts):
    """Processes add facts to PostgreSQL: none is lost."""
    assert_none_lost(url_of(make_postgresql_store()), n_processes, n_facts)


def test_older_database_is_migrated_once(database):
    """Processes that open an older database together migrate and copy it once."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMA.read_text())
    assert_none_lost(database, 3, 2)
    assert len(backups(database)) == 1


def killed(database: str | Path, first: int, noise: random.Random) -> list[str]:
    """What a writer acknowledged that was killed at some instant after its start."""
    with Writer(database, first, 10_000) as writer:
        n_awaited = noise.choice([0, 1, 10, 40])
        lines = [writer.stdout.readline() for _ in range(n_awaited)]
        time.sleep(noise.uniform(0, 0.1))
        writer.kill()
        lines += writer.read_to_end().splitlines(True)
    return [line.strip() for line in lines if line.endswith("\n")]


def assert_survives_kills(database: str | Path, n_kills: int) -> None:
    """A writer killed again and again has lost nothing that it acknowledged."""
    noise = random.Random(n_kills)
    acknowledged: set[str] = set()
    for kill in range(n_kills):
        acknowledged |= set(killed(database, 10_000 * kill, noise))
        with open_store(database) as store:
            assert acknowledged <= {record.id for record in store.records()}
    assert acknowledged


def assert_is_whole(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.parametrize("n_kills", [5, pytest.param(50, marks=pytest.mark.long)])
def test_killed_writers_lose_nothing(database, n_kills):
    """Every fact that a writer acknowledged before SIGKILL is there."""
    assert_survives_kills(database, n_kills)
    assert_is_whole(database)


@pytest.mark.long
def test_a_server_loses_nothing_of_killed_writers(make_postgresql_store):
    """The same for 50 kills of writers to PostgreSQL."""
    assert_survives_kills(url_of(make_postgresql_store()), 50)
