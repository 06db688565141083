"""``feinsum tune`` when it is interrupted: what there is, is kept and said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from html import escape

import psutil
import pytest

import feinsum.tuning
from feinsum.db import open_store
from feinsum.errors import DeviceUnavailableError
from tests.cli.facts import MATVEC, matvec_record
from tests.cli.tuning import good, trials


@pytest.mark.parametrize("n_recorded", [0, 1])
def test_an_interrupt_says_what_was_recorded(run, autotune, database, n_recorded):
    """Exit code 130; facts that were known before are not counted."""
    with open_store(database) as store:
        store.add(matvec_record(9))
    autotune(n_recorded=n_recorded, stops_with=KeyboardInterrupt())
    text = run("tune", *MATVEC)
    assert text.exit_code == 130
    expected = f"recorded: {good().id[:12]}" if n_recorded else "nothing was"
    assert f"feinsum: interrupted; {expected}" in text.stderr
    database.unlink()
    lines = run("tune", *MATVEC, "--json").stdout.splitlines()
    last = json.loads(lines[-1])
    assert last["event"] == "interrupted"
    assert [record["id"] for record in last["records"]] == [good().id][:n_recorded]


@pytest.mark.parametrize(
    ("stops_with", "code", "last_event"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (DeviceUnavailableError("the scheduler is gone"), 1, "error"),
    ],
    ids=["interrupt", "error"],
)
def test_an_early_end_leaves_a_report(
    run, autotune, tmp_path, stops_with, code, last_event
):
    """Of what there is, in both files; the last line of JSON says how it ended."""
    autotune(stops_with=stops_with)
    result = run("tune", *MATVEC, "--report", str(tmp_path / "report"), "--json")
    assert result.exit_code == code
    last = json.loads(result.stdout.splitlines()[-1])
    assert last_event in (last.get("event"), *last)
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert all(escape(str(trial.spec)) in page for trial in trials())
    assert (tmp_path / "report" / "report.png").stat().st_size > 1000


def test_an_interrupt_before_the_first_trial_is_said(run, monkeypatch, tmp_path):
    """The stream has one line, and there is nothing to report."""

    def autotune(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(feinsum.tuning, "tune_einsum", autotune)
    result = run("tune", *MATVEC, "--report", str(tmp_path), "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout) == {"event": "interrupted", "records": []}
    assert "interrupted; nothing was recorded" in result.stderr
    assert not [*tmp_path.glob("report.*")]


def test_an_interrupt_while_a_file_is_read_is_said(run, tmp_path):
    """Before there is anything to tune the stream has its last line, too."""
    path = tmp_path / "slow.py"
    path.write_text("def build():\n    raise KeyboardInterrupt\n")
    result = run("tune", str(path), "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout) == {"event": "interrupted", "records": []}


@pytest.mark.parametrize("stops_with", [KeyboardInterrupt(), None])
def test_an_interrupt_of_the_report_ends_the_report_only(
    run, autotune, tmp_path, monkeypatch, stops_with
):
    """What was recorded is said all the same, also if the tuning was complete."""
    autotune(stops_with=stops_with)

    def write_report(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(feinsum.tuning, "write_report", write_report)
    result = run("tune", *MATVEC, "--report", str(tmp_path), "--json")
    assert result.exit_code == 130
    events = [json.loads(line)["event"] for line in result.stdout.splitlines()]
    assert events.count("interrupted") == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert [record["id"] for record in last["records"]] == [good().id]


def test_a_signal_ends_a_real_tuning_in_order(database, tmp_path):
    """SIGTERM after the first trial: the fact is recorded, the report is there, and the
    last line says so; no process is left. For SIGINT see ``test_tune_signals.py``.
    """
    folder = tmp_path / "report"
    command = ["tune", "ij,j->i", "--sizes", "i=64,j=64", "--trials", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "feinsum.cli", *command, "--json", "--report", folder],
        env={**os.environ, "FEINSUM_DATABASE": str(database)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while '"status": "ok"' not in process.stdout.readline():
            assert process.poll() is None
        (trials,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, err
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "interrupted"
    with open_store(database) as store:
        assert [record["id"] for record in last["records"]]
        assert {record.id for record in store.records()} == {
            record["id"] for record in last["records"]
        }
    page = (folder / "report.html").read_text("utf-8")
    assert escape(last["records"][0]["spec"]) in page
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert not trials.is_running()
