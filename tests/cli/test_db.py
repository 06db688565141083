"""``feinsum db``."""

from __future__ import annotations

import json

import pytest

from feinsum.db import open_store
from tests.db.factories import make_trial


def test_info_counts_what_is_stored(run, database, known_records):
    """The numbers are those of the store, in text and as JSON."""
    with open_store(database) as store:
        store.add_trial(make_trial())
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


@pytest.mark.parametrize(
    "command",
    [["info"], ["stats"], ["export", "-"], ["audit"], ["gc"], ["sign"]],
    ids=" ".join,
)
def test_a_database_that_is_not_there_is_refused(run, tmp_path, command):
    """A slip in a path makes no empty database, and says so."""
    path = tmp_path / "folder" / "tema.sqlite"
    result = run("db", *command, "--database", str(path))
    assert result.exit_code == 1
    assert f"there is no database {path}" in result.stderr
    assert not path.parent.exists()
