"""``feinsum db gc`` and ``feinsum db stats``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feinsum.db import open_store
from tests.db.factories import (
    make_device,
    make_environment,
    make_peaks,
    make_processor,
    make_record,
    make_trial,
)
from tests.db.test_garbage import distinct


@pytest.fixture
def filled(database):
    """Thirty facts of one group in the default database, the last ones slow."""
    with open_store(database) as store:
        store.add_all([*distinct(30), make_peaks(), make_trial()])
    return database


def test_nothing_goes_unasked(run, filled):
    """What would go is listed with its reason, and how to do it."""
    result = run("db", "gc")
    assert (result.exit_code, result.stderr) == (0, "")
    *_, more, count, advice = result.stdout.splitlines()
    assert more == "and 6 more; --json has all"
    assert count == "26 of 30 records can be removed"
    assert advice == "nothing was removed; remove them with --write"
    assert "number 5 of 30" in " ".join(result.stdout.split())
    assert "  rowwise@1(lanes=8, n=5, order=('i', 'j'))\n" in result.stdout
    assert len(list(filled.parent.iterdir())) == 1


def test_what_goes_is_in_a_file(run, filled, tmp_path):
    """Beside the database, as its copy; the file can be imported."""
    result = run("db", "gc", "--write", "--keep", "1", "--json")
    document = json.loads(result.stdout)
    assert document["n_removed"] == len(document["surplus"]) == 28
    assert Path(document["backup"]).parent == filled.parent
    assert run("db", "diff", str(filled), document["backup"]).exit_code == 1
    assert run("db", "import", document["removed"]).exit_code == 0
    assert run("db", "diff", str(filled), document["backup"]).exit_code == 0
    folder = tmp_path / "there"
    folder.mkdir()
    text = run("db", "gc", "--write", "--folder", str(folder)).stdout
    assert "records removed: 26" in text
    assert len(list(folder.iterdir())) == 2


def test_a_database_without_garbage_is_left_alone(run, filled):
    """No copy is made where nothing goes."""
    result = run("db", "gc", "--write", "--keep", "100")
    assert result.stdout == "0 of 30 records can be removed\nnothing was removed\n"
    assert len(list(filled.parent.iterdir())) == 1


def test_statistics_are_tables(run, filled):
    """By device and driver, by transform, with sizes and times."""
    result = run("db", "stats")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "records: 30, trials: 1" in result.stdout
    assert "recorded: 2025-01-31 to 2025-01-31" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["rowwise@1", "1", "30", "1073741824"] in rows
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    document = json.loads(run("db", "stats", "--json").stdout)
    assert document["n_records"] == 30
    assert document["drivers"][0]["driver_version"] == "6.0"
    assert document["oldest"] == "2025-01-31T12:00:00+00:00"
    assert document["transforms"][0]["n_workloads"] == 1


def test_statistics_tell_processors_apart(run, database):
    """Devices of one name have a row each, with their microarchitectures."""
    with open_store(database) as store:
        for processor in (None, make_processor("zen4"), make_processor("zen5")):
            there = make_environment(make_device(processor=processor))
            store.add(make_record(environment=there))
    document = json.loads(run("db", "stats", "--json").stdout)
    names = {entry["microarchitecture"] for entry in document["drivers"]}
    assert names == {None, "zen4", "zen5"}
    text = run("db", "stats").stdout
    assert "zen4" in text
    assert "zen5" in text


def test_an_empty_database_has_statistics(run, database):
    """Without a record there is no time."""
    open_store(database).close()
    assert "recorded: never\n" in run("db", "stats").stdout
    assert json.loads(run("db", "stats", "--json").stdout)["oldest"] is None
