"""``feinsum db workloads`` and ``feinsum db trials``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from feinsum.canonical import WorkloadKey
from feinsum.db import open_store
from tests.db.factories import make_record, make_trial

OTHER = WorkloadKey("fe2-nauty2.8-0123456789abcdef")


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
    document = json.loads(run("db", "workloads", "--json").stdout)
    first, second = document["workloads"]
    record = make_record()
    assert first["key"] == record.workload
    assert first["text"] == record.workload_text
    assert (first["n_records"], first["n_devices"], first["n_trials"]) == (2, 1, 3)
    assert first["highest_speedup"] == pytest.approx(
        max(make_record(k).measurement.speedup for k in range(2))
    )
    assert second == {
        "key": OTHER, "text": "i ->", "n_records": 0, "n_devices": 0, "n_trials": 1,
        "highest_speedup": None,
    }  # fmt: skip
    shown = run("db", "workloads").stdout
    assert f" {OTHER[:24]}      0        0       1         -  i ->\n" in shown
    assert "workloads: 2\n" in shown
    assert OTHER[:24] not in run("db", "workloads", "--limit", "1").stdout


@pytest.mark.usefixtures("filled")
def test_trials_are_listed(run):
    """The fastest first, failures last with their reasons; a start names the key."""
    key = make_record().workload
    document = json.loads(run("db", "trials", key, "--json").stdout)
    assert document["key"] == key
    assert [one["status"] for one in document["trials"]] == ["ok", "ok", "build-failed"]
    assert [one["median_s"] for one in document["trials"]] == [2e-3, 3e-3, None]
    shown = run("db", "trials", OTHER[:20]).stdout
    assert f"key: {OTHER}\n" in shown
    assert f"  {make_trial(3).spec}\n" in shown
    assert "trials: 1\n" in shown
    failed = run("db", "trials", key).stdout
    assert f"{make_trial(7).spec}: no way\n" in failed
    assert ": no way" not in run("db", "trials", key, "--limit", "2").stdout


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(("start", "n"), [("", 2), ("none", 0)])
def test_a_key_has_to_name_one_workload(run, start, n):
    """Others are counted."""
    ended = run("db", "trials", start)
    assert ended.exit_code == 2
    assert f"keys of {n} workloads" in ended.stderr
