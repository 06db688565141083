"""Many processes, and processes that are killed: no acknowledged fact is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from feinsum.db import open_store
from tests.db.factories import make_record
from tests.db.test_schema import OLD_SCHEMA, backups
from tests.db.writer import start


def assert_none_lost(database: Path, n_processes: int, n_facts: int) -> None:
    """All facts of all processes that open and fill a database are there."""
    writers = [start(database, n_facts * p, n_facts) for p in range(n_processes)]
    acknowledged: set[str] = set()
    for writer in writers:
        output, _ = writer.communicate(timeout=300)
        assert writer.returncode == 0
        acknowledged |= set(output.split())
    expected = {make_record(n).id for n in range(n_processes * n_facts)}
    assert acknowledged == expected
    with open_store(database) as store:
        assert expected <= {record.id for record in store.records()}


def test_writers_wait_for_each_other(database: Path) -> None:
    """8 processes make a new database and add 25 facts each: none is lost."""
    assert_none_lost(database, 8, 25)


@pytest.mark.long
def test_many_writers_wait_for_each_other(database: Path) -> None:
    """32 processes make a new database and add 25 facts each: none is lost."""
    assert_none_lost(database, 32, 25)


def test_older_database_is_migrated_once(database: Path) -> None:
    """Processes that open an older database together migrate and copy it once."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMA.read_text())
    assert_none_lost(database, 4, 2)
    assert len(backups(database)) == 1


def assert_survives_kills(database: Path, n_kills: int) -> None:
    """A writer killed again and again has lost nothing that it acknowledged."""
    acknowledged: list[str] = []
    for kill in range(n_kills):
        with start(database, 10_000 * kill, 10_000) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(10 + kill)]
            writer.kill()
            rest = writer.stdout.read()
        acknowledged += [line.strip() for line in rest.splitlines(True) if "\n" in line]
        with open_store(database) as store:
            assert set(acknowledged) <= {record.id for record in store.records()}
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_killed_writers_lose_nothing(database: Path) -> None:
    """Every fact that a writer acknowledged before SIGKILL is there; 5 kills."""
    assert_survives_kills(database, 5)


@pytest.mark.long
def test_many_killed_writers_lose_nothing(database: Path) -> None:
    """The same for 50 kills."""
    assert_survives_kills(database, 50)
