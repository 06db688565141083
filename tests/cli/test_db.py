"""``feinsum db``."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from feinsum.canonical import WorkloadKey
from feinsum.db import open_store
from feinsum.db.sql.schema import VERSIONS
from feinsum.records import TransformSpec
from tests.cli.facts import MATVEC, matvec_record
from tests.db.factories import make_measurement, make_peaks, make_record, make_trial
from tests.db.test_schema import OLD_SCHEMAS
from tests.older import respelled, under_older_key

OTHER = WorkloadKey("fe2-nauty2.8-0123456789abcdef")


def test_a_new_database_is_empty(run, database):
    """It is for its owner alone; one that exists stays as it is."""
    assert run("db", "init").stdout == f"{database}\n"
    assert database.stat().st_mode & 0o777 == 0o600
    with open_store(database) as store:
        store.add(make_record())
    assert json.loads(run("db", "init", "--json").stdout) == {"database": str(database)}
    with open_store(database) as store:
        assert len(store) == 1


@pytest.fixture
def filled(database):
    """A workload with two facts and three trials, and one with a trial alone."""
    failed = make_trial(7, status="build-failed", message="no\nway")
    with open_store(database) as store:
        store.add_all([make_record(0), make_record(1)])
        store.add_all([make_trial(2), make_trial(1), failed])
        store.add(replace(make_trial(3), workload=OTHER, workload_text="i ->"))
    return database


@pytest.mark.usefixtures("filled")
def test_workloads_are_listed(run):
    """Those with most facts first, as rows and as JSON."""
    document = json.loads(run("db", "stats", "--by-workload", "--json").stdout)
    first, second = document["workloads"]
    record = make_record()
    assert first["key"] == record.workload
    assert first["text"] == record.workload_text
    assert (first["n_records"], first["n_devices"], first["n_trials"]) == (2, 1, 3)
    assert second == {
        "key": OTHER, "text": "i ->", "n_records": 0, "n_devices": 0, "n_trials": 1,
        "highest_speedup": None,
    }  # fmt: skip
    shown = run("db", "stats", "--by-workload").stdout
    assert f" {OTHER[:24]}      0        0       1         -  i ->\n" in shown
    assert "workloads: 2\n" in shown
    assert OTHER[:24] not in run("db", "stats", "--by-workload", "--limit", "1").stdout


@pytest.mark.usefixtures("filled")
def test_trials_are_listed(run):
    """The fastest first, failures last with their reasons; a start names the key."""
    key = make_record().workload
    document = json.loads(run("db", "stats", "--trials-of", key, "--json").stdout)
    assert document["key"] == key
    assert [one["status"] for one in document["trials"]] == ["ok", "ok", "build-failed"]
    assert [one["median_s"] for one in document["trials"]] == [2e-3, 3e-3, None]
    shown = run("db", "stats", "--trials-of", OTHER[:20]).stdout
    assert f"key: {OTHER}\n" in shown
    assert f"  {make_trial(3).spec}\n" in shown
    failed = run("db", "stats", "--trials-of", key).stdout
    assert f"{make_trial(7).spec}: no way\n" in failed
    for start, n in (("fe", 2), ("none", 0)):
        ended = run("db", "stats", "--trials-of", start)
        assert ended.exit_code == 2
        assert f"keys of {n} workloads" in ended.stderr


READERS = [
    "db backup copy.sqlite",
    "db export -",
    "db gc",
    "db migrate",
    "db retract --reason slow --yes 0f7c2ab41d03",
    "db stats",
    "db stats --trials-of fe",
    "db stats --by-workload",
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


def test_a_database_that_is_not_there_is_refused(run, tmp_path, monkeypatch):
    """A slip in a path makes no empty database, and says so."""
    monkeypatch.chdir(tmp_path)
    for command in READERS:
        option = [] if command.endswith("--from-misses") else ["--database"]
        result = run(*command.split(), *option, "tema.sqlite")
        assert result.exit_code == 1, result.output
        assert f"there is no database {tmp_path / 'tema.sqlite'}" in result.stderr
        assert not any(tmp_path.iterdir())


def test_migrate_upgrades_what_readers_refuse(run, database):
    """They name the command; after it they read, and it says what it did."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMAS["0001"].read_text())
    refused = run("db", "stats")
    assert f"feinsum db migrate --database {database}" in refused.stderr
    migrated = run("db", "migrate")
    assert f"upgraded from schema 0001 to {VERSIONS[-1]}" in migrated.stdout
    # its only fact is about no einsum
    assert migrated.exit_code == 1
    assert "[invalid-einsum] left under the key fe1-" in migrated.stderr
    assert json.loads(run("db", "stats", "--json").stdout)["n_records"] == 1
    done = json.loads(run("db", "migrate", "--json").stdout)
    assert done["from"] == done["to"] == VERSIONS[-1]
    assert [left["code"] for left in done["unreadable"]] == ["invalid-einsum"]


def test_migrate_adds_facts_under_current_keys(run, database):
    """Those of older forms are found then; the older ones are still there."""
    old = [under_older_key(matvec_record(0)), respelled(matvec_record(1))]
    with open_store(database) as store:
        store.add_all(old)
    assert run("query", *MATVEC).exit_code == 3
    done = run("db", "migrate")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "added again under current keys: 2 records, 0 trials\n" in done.stdout
    candidates = json.loads(run("query", *MATVEC, "--json").stdout)["candidates"]
    assert {c["spec"] for c in candidates} == {str(r.spec) for r in old}
    assert json.loads(run("db", "migrate", "--json").stdout)["n_added"] == 0
    with open_store(database) as store:
        assert len(store) == 4


FAST = replace(
    make_record(), measurement=replace(make_measurement(), samples_s=(1e-30,) * 3)
)
FOREIGN = replace(make_record(1), spec=TransformSpec("miracle", 1, {}))


@pytest.mark.parametrize("command", ["merge", "import"])
def test_what_is_odd_comes_in_only_if_it_is_wanted(run, database, tmp_path, command):
    """It is named and left out, but for a copy of a database as it was."""
    source = tmp_path / "old.sqlite"
    with open_store(source) as store:
        store.add_all([FAST, FOREIGN])
    if command == "import":
        lines = tmp_path / "old.jsonl"
        run("db", "export", str(lines), "--database", str(source))
        arguments = ["import", str(lines), "--skip-bad"]
    else:
        arguments = ["merge", str(source)]
    result = run("db", *arguments)
    assert result.exit_code == 1
    assert "implausible" in result.stderr
    assert "below-resolution" in result.stderr
    with open_store(database) as store:
        assert list(store.records()) == [FOREIGN]
    assert run("db", *arguments, "--with-implausible").exit_code == 0
    with open_store(database) as store:
        assert {fact.id for fact in store.records()} == {FAST.id, FOREIGN.id}


def test_odd_limits_and_facts_do_not_end_a_query(run, tmp_path):
    """``feinsum query`` prints what there is, whatever is stored beside it."""
    fact = matvec_record()
    odd = replace(
        matvec_record(1),
        measurement=replace(
            make_measurement(), samples_s=(1e-200, 1e-199), baseline_s=(1e100,)
        ),
    )
    limits = make_peaks(fact.environment.device, "9999-01-01T00:00:00+00:00")
    for bandwidth in (1e-300, -5.0, 1e300):
        path = tmp_path / f"{bandwidth}.sqlite"
        with open_store(path) as store:
            store.add_all([fact, odd, replace(limits, bandwidth_bytes_per_s=bandwidth)])
        for form in ([], ["--json"]):
            result = run("query", *MATVEC, "--database", str(path), *form)
            assert result.exit_code == 0, result.stderr
            assert fact.id[:12] in result.stdout
