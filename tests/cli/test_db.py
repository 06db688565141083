"""``feinsum db``."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from feinsum.db import open_store
from feinsum.db.sql.schema import VERSIONS
from tests.db.factories import make_trial
from tests.db.test_schema import OLD_SCHEMAS


def test_info_counts_what_is_stored(run, database, known_records):
    """The numbers are those of the store, in text and as JSON."""
    with open_store(database) as store:
        store.add(make_trial())
    document = json.loads(run("db", "info", "--json").stdout)
    assert document["n_records"] == len(known_records)
    assert (document["n_workloads"], document["n_trials"]) == (1, 1)
    assert document["location"] == str(database.resolve())
    lines = run("db", "info").stdout.splitlines()
    assert {f"records: {len(known_records)}", "trials: 1"} <= {*lines}


def test_path_is_that_of_the_default_database(run, database):
    """It is printed alone, for use in a shell, and nothing is made there."""
    assert run("db", "path").stdout == f"{database}\n"
    assert json.loads(run("db", "path", "--json").stdout) == {"path": str(database)}
    assert not database.exists()


def test_a_password_is_never_printed(run, monkeypatch):
    """A server's URL is shown without its password."""
    url = "postgresql://ada:s3cret@host/facts"
    monkeypatch.setenv("FEINSUM_DATABASE", url)
    assert run("db", "path").stdout == "postgresql://ada:***@host/facts\n"


READERS = [
    "db audit",
    "db backup copy.sqlite",
    "db export -",
    "db gc",
    "db info",
    "db rekey --write",
    "db retract --reason slow --yes 0f7c2ab41d03",
    "db stats",
    "db trials fe",
    "db workloads",
    "demand clear --all",
    "demand list",
    "devices",
    "keys list",
    "keys revoke 0f",
    "query ij,j->i --sizes i=n,j=4",
    "roofline ij,j->i --sizes i=n,j=4",
    "tune --from-misses",
]
"""Every command that opens a database which somebody else has made."""


@pytest.mark.parametrize("command", READERS)
def test_a_database_that_is_not_there_is_refused(run, tmp_path, monkeypatch, command):
    """A slip in a path makes no empty database, and says so."""
    monkeypatch.chdir(tmp_path)
    option = [] if command.endswith("--from-misses") else ["--database"]
    result = run(*command.split(), *option, "tema.sqlite")
    assert result.exit_code == 1, result.output
    assert f"there is no database {tmp_path / 'tema.sqlite'}" in result.stderr
    assert not any(tmp_path.iterdir())


def test_migrate_upgrades_what_readers_refuse(run, database):
    """They name the command; after it they read, and it says what it did."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMAS["0001"].read_text())
    refused = run("db", "info")
    assert f"feinsum db migrate --database {database}" in refused.stderr
    assert f"upgraded from schema 0001 to {VERSIONS[-1]}" in run("db", "migrate").stdout
    assert json.loads(run("db", "info", "--json").stdout)["n_records"] == 1
    done = json.loads(run("db", "migrate", "--json").stdout)
    assert done["from"] == done["to"] == VERSIONS[-1]
