"""``feinsum db retract``, and what other commands do with retractions."""

from __future__ import annotations

import json

import pytest

from feinsum.db import get_shipped_facts, open_store
from tests.db.factories import WORKLOAD, make_peaks, make_record


@pytest.fixture
def filled(database):
    """Three facts in the default database."""
    with open_store(database) as store:
        store.add_all([*(make_record(n) for n in range(3)), make_peaks()])
    return database


def test_facts_are_listed_first(run, filled):
    """Nothing is written without --yes; the facts are named, and what to do."""
    result = run("db", "retract", "--workload", WORKLOAD)
    assert (result.exit_code, result.stderr) == (0, "")
    *_, last = result.stdout.splitlines()
    assert last == "facts to retract: 3; nothing was written; use --yes"
    assert make_record(0).id[:12] in result.stdout
    with open_store(filled) as store:
        assert len(store) == 3


def test_facts_are_retracted(run, filled):
    """With a reason and --yes; the numbers of other commands follow."""
    first = make_record(0).id
    done = run("db", "retract", first[:12], "--yes", "--reason", "a wrong clock")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "facts retracted: 1")
    again = run("db", "retract", first, "--yes", "--reason", "x", "--json")
    document = json.loads(again.stdout)
    assert (document["n_facts"], document["unknown"]) == (0, [])
    assert "already retracted" in run("db", "retract", first).stdout
    with open_store(filled) as store:
        assert len(store) == 2
        (retraction,) = store.retractions_of([first])
        assert retraction.reason == "a wrong clock"
        assert retraction.retracted_by
    assert "retractions: 1" in run("db", "stats").stdout


def test_facts_that_are_elsewhere_are_retracted(run, filled):
    """Such as one of the package: by its whole id."""
    fact = next(iter(get_shipped_facts().records()))
    result = run("db", "retract", fact.id, "--yes", "--reason", "odd")
    assert f"not stored here: {fact.id}" in result.stdout
    with open_store(filled) as store:
        assert [one.document for one in store.retractions_of([fact.id])] == [fact.id]


def test_what_is_not_understood_is_refused(run, filled):
    """With the reason, and without a change."""
    for given, message in (
        ((), "no fact was named for retraction"),
        (("abc",), "is not the id of a fact"),
        (("0" * 12,), "no id begins with '000000000000'"),
        (("--since", "soon"), "the time 'soon' was given"),
        (("--workload", "x", "--yes"), "give the reason with --reason"),
    ):
        result = run("db", "retract", *given)
        assert result.exit_code != 0
        assert message in " ".join(result.stderr.split())
        with open_store(filled) as store:
            assert len(store) == 3


def test_retractions_travel_unless_they_are_left_out(run, filled, tmp_path):
    """By merge and by export and import."""
    other = tmp_path / "other.sqlite"
    with open_store(other) as store:
        store.add_all([make_record(0), make_record(7)])
    run("db", "retract", make_record(0).id, "--yes", "--reason", "x")
    left_out = ("--without-retractions", "--database", str(other))
    result = run("db", "merge", str(filled), *left_out)
    assert "retractions" not in result.stdout
    file = str(tmp_path / "facts.jsonl")
    assert "1 retraction" in run("db", "export", file).stdout
    assert "retractions" not in run("db", "import", file, *left_out).stdout
    with open_store(other) as store:
        assert len(store) == 4
    result = run("db", "merge", str(filled), "--database", str(other))
    assert result.stdout.splitlines()[-1] == "retractions added: 1"
    with open_store(other) as store:
        assert make_record(0).id not in set(store.ids("record"))


def test_garbage_with_what_is_retracted(run, filled):
    """It goes with --retracted alone."""
    run("db", "retract", make_record(0).id, "--yes", "--reason", "x")
    assert "nothing was removed" in run("db", "gc", "--write").stdout
    looked = run("db", "gc", "--retracted").stdout
    assert "1 more are retracted and can be removed" in looked
    done = json.loads(run("db", "gc", "--retracted", "--write", "--json").stdout)
    assert (done["retracted"], done["n_removed"]) == ([make_record(0).id], 1)


def test_packaged_facts_are_imported(run, database):
    """All of them, by a word in place of a file."""
    n = len(get_shipped_facts())
    result = run("db", "import", "packaged")
    created = f"feinsum: created the database {database}\n"
    assert (result.exit_code, result.stderr) == (0, created)
    assert f"new: {n} records" in result.stdout
    with open_store(database) as store:
        assert len(store) == n
    assert "new: 0 records" in run("db", "import", "packaged").stdout
