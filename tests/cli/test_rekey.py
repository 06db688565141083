"""``feinsum db rekey``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey
from feinsum.db import open_store
from feinsum.records import Trial
from tests.cli.facts import MATVEC, matvec_record
from tests.older import OLDER, respelled, under_older_key

PRESENT = f"{FORM_VERSION}-{CANONICALIZER}"
NOTHING = "nothing was written"


def add(database, *records):
    with open_store(database) as store:
        for record in records:
            store.add(record)


def stored(database):
    with open_store(database) as store:
        return {record.id for record in store.records()}


def older_trials():
    """A trial of each fact of ``older_records``, with their keys and texts."""
    for fact in (under_older_key(matvec_record(0)), respelled(matvec_record(1))):
        yield Trial(
            fact.workload, fact.workload_text, {}, fact.environment, fact.spec, "odd"
        )


@pytest.fixture
def older_records(database):
    """Two facts about :data:`MATVEC` under older keys, one in other names."""
    records = [under_older_key(matvec_record(0)), respelled(matvec_record(1))]
    add(database, *records)
    return records


@pytest.fixture
def trials(database):
    """Trials under older keys."""
    found = list(older_trials())
    with open_store(database) as store:
        for trial in found:
            store.add(trial)
    return found


@pytest.fixture
def unreadable_record(database):
    """A fact about what is no einsum."""
    key = WorkloadKey(f"{OLDER}-unreadable")
    record = replace(matvec_record(2), workload=key, workload_text="no\neinsum")
    add(database, record)
    return record


def test_nothing_is_written_unasked(run, database, older_records):
    """The table has what would be done, and the last line says how to do it."""
    before = stored(database)
    result = run("db", "rekey")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["record", OLDER, PRESENT, "2", "2", "0", "2", "0"] in lines
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "0 of 2 records have the current key" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert NOTHING in last
    assert "--write" in last
    assert stored(database) == before


def test_what_is_written_is_found(run, database, older_records):
    """With ``--write`` the facts are found; the older ones are still there."""
    assert run("query", *MATVEC).exit_code == 3
    result = run("db", "rekey", "--write")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith(
        "records added: 2, trials: 0; nothing was deleted or changed\n"
    )
    found = json.loads(run("query", *MATVEC, "--json").stdout)["candidates"]
    assert {c["spec"] for c in found} == {str(r.spec) for r in older_records}
    assert {c["workload_text"] for c in found} == {
        r.workload_text for r in older_records
    }
    assert stored(database) == {r.id for r in older_records} | {c["id"] for c in found}


def test_the_second_time_nothing_is_missing(run, database, older_records):
    """Nothing is added, with or without ``--write``."""
    run("db", "rekey", "--write")
    once = stored(database)
    assert f"{NOTHING}; nothing needs to be added" in run("db", "rekey").stdout
    assert "records added: 0, trials: 0;" in run("db", "rekey", "--write").stdout
    assert stored(database) == once


@pytest.mark.parametrize("options", [[], ["--write"]])
def test_json_says_the_same(run, older_records, known_records, options):
    """One document with all numbers."""
    result = run("db", "rekey", "--json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "n_records": len(known_records) + 2,
        "n_trials": 0,
        "prefixes": [
            {
                "kind": "record",
                "old": OLDER,
                "new": PRESENT,
                "n": 2,
                "n_workloads": 2,
                "n_there": 0,
                "n_missing": 2,
                "n_unreadable": 0,
            }
        ],
        "unreadable": [],
        "is_written": bool(options),
        "n_added": 2 * len(options),
        "n_trials_added": 0,
    }


def test_trials_move_as_facts_do(run, database, trials, older_records):
    """They have a row and a line; with ``--write`` they are there under both keys."""
    lines = [line.split() for line in run("db", "rekey").stdout.splitlines()]
    assert ["trial", OLDER, PRESENT, "2", "2", "0", "2", "0"] in lines
    assert ["0", "of", "2", "trials"] in [line[:4] for line in lines]
    document = json.loads(run("db", "rekey", "--write", "--json").stdout)
    assert (document["n_trials"], document["n_trials_added"]) == (2, 2)
    assert "trials: 0;" in run("db", "rekey", "--write").stdout
    key = matvec_record().workload
    with open_store(database) as store:
        kept = [trial for old in trials for trial in store.trials(old.workload)]
        assert kept == trials
        moved = {replace(trial, workload=key) for trial in trials}
        assert {t.id for t in store.trials(key)} == {t.id for t in moved}


def test_where_all_keys_are_right_there_is_no_table(run, known_records):
    """One line says so."""
    result = run("db", "rekey")
    n = len(known_records)
    assert result.stdout.splitlines() == [
        f"{n} of {n} records have the current key",
        "0 of 0 trials have the current key",
        "nothing was written; nothing needs to be added",
    ]
    assert result.exit_code == 0


def test_an_empty_database_is_right(run, database):
    """It has no records, and none is missing."""
    open_store(database).close()
    result = run("db", "rekey", "--write")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "0 of 0 records" in result.stdout


@pytest.mark.parametrize("is_json", [False, True], ids=["text", "json"])
def test_what_cannot_be_read_is_reported(
    run, database, older_records, unreadable_record, is_json
):
    """Exit code 1 and one line with the reason; the others are rekeyed."""
    result = run("db", "rekey", "--write", *["--json"] * is_json)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    left = f"records left under the key {unreadable_record.workload}: 1; "
    assert line.startswith(f"feinsum: [invalid-einsum] {left}einsum text")
    assert len(stored(database)) == 5
    if is_json:
        (entry,) = json.loads(result.stdout)["unreadable"]
        assert (entry["id"], entry["code"]) == (unreadable_record.id, "invalid-einsum")
        assert entry["key"] == unreadable_record.workload


def test_the_database_can_be_named(run, tmp_path, older_records):
    """``--database`` is rekeyed instead of the default."""
    path = tmp_path / "other.sqlite"
    add(path, under_older_key(matvec_record()))
    assert (
        "records added: 1, trials: 0;"
        in run("db", "rekey", "--write", "--database", str(path)).stdout
    )
    assert len(stored(path)) == 2


def test_a_database_that_is_only_read(run, database, older_records):
    """Without ``--write`` it is looked at; with it there is one clear error."""
    url = f"sqlite:///{database}?mode=ro"
    looked = run("db", "rekey", "--database", url)
    written = run("db", "rekey", "--write", "--database", url)
    assert looked.exit_code == 0
    assert "use --write to add them" in looked.stdout
    assert written.exit_code == 1
    (line,) = written.stderr.splitlines()
    assert line.startswith("feinsum: [store-unavailable] ")
    assert "is read-only" in line
