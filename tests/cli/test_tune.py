"""``feinsum tune``."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
from rich.console import Console

from feinsum.cli.shared.notation import read_einsum
from feinsum.cli.tune.command import tune
from feinsum.cli.tune.run import make_unrecorded_error
from feinsum.cli.tune.view import ProgressBar, explain_failures
from feinsum.db import open_store
from feinsum.measure import open_device
from feinsum.tuning import Finalist, Strategy, TuningProgress
from feinsum.tuning.bar import TuningBar
from tests.cli.facts import MATVEC, fast_peaks
from tests.cli.tuning import good, trials

EVENTS = ["start", "trial", "trial", "final", "recorded"]


def test_the_table_has_the_recorded_facts(run, autotune, database):
    """Stdout has the workload, how the trials ended, and the facts."""
    autotune()
    result = run("tune", *MATVEC)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert f"canonical: {good().workload_text}" in lines
    assert "sizes: N0=7" in lines
    assert "trials: 2 (1 build-failed, 1 ok)" in lines
    assert "untransformed: 10.00 ms" in lines
    (row,) = (line for line in lines if good().id[:12] in line)
    assert row.endswith(f"  {good().spec}")
    with open_store(database) as store:
        assert store.get(good().id) == good()


def test_json_is_one_object_per_line(run, autotune, database):
    """The start, each trial, the finals, the facts; a failed trial has no time."""
    autotune()
    result = run("tune", *MATVEC, "--trials", "2", "--json")
    events = list(map(json.loads, result.stdout.splitlines()))
    start, first, second, final, last = events
    assert [e["event"] for e in events] == EVENTS
    assert (start["key"], start["n_trials"]) == (good().workload, 2)
    assert (start["n_known"], start["roofline_s"]) == (0, 4e-5)
    assert start["device"] == str(open_device().device)
    assert (first["status"], first["median_s"]) == ("build-failed", None)
    assert first["best_spec"] is first["fraction_of_roofline"] is None
    assert (second["n_done"], second["n_trials"]) == (2, 2)
    assert (second["median_s"], second["ratio"]) == (1e-3, 0.1)
    assert second["fraction_of_roofline"] == pytest.approx(0.04)
    assert second["best_fraction_of_roofline"] == pytest.approx(0.04)
    assert (second["best_ratio"], second["seconds_left"]) == (0.1, 12.0)
    assert second["best_spec"] == str(good().spec)
    (finalist,) = final["finalists"]
    assert finalist["spread_s"] == good().measurement.spread_s
    assert finalist["ratio"] == pytest.approx(0.1)
    assert [record["id"] for record in last["records"]] == [good().id]
    assert last["key"] == good().workload
    assert result.stderr == f"feinsum: created the database {database}\n"


def test_the_fraction_of_the_roofline_is_shown(run, autotune, database):
    """With stored limits the table and the last line have it; before, null."""
    autotune()
    unknown = json.loads(run("tune", *MATVEC, "--json").stdout.splitlines()[-1])
    assert unknown["records"][0]["fraction_of_roofline"] is None
    with open_store(database) as store:
        store.add(fast_peaks(good().environment.device))
    known = json.loads(run("tune", *MATVEC, "--json").stdout.splitlines()[-1])
    assert known["records"][0]["fraction_of_roofline"] == pytest.approx(0.04)
    assert "4.00%" in run("tune", *MATVEC).stdout


def test_options_reach_the_search(run, autotune):
    """Every option has its place in the library's call."""
    seen = autotune()
    run(
        *("tune", *MATVEC, "--size", "n=100", "--trials", "7", "--budget", "5"),
        "--fresh",
        *("--strategy", "random", "--trial-limit", "9", "--device", "pthread"),
        *("--scheduler", "tcp://host:8786"),
    )
    assert seen.pop("target") == read_einsum("ij,j->i", ["i=n,j=4"])
    assert seen == {
        "sizes": {"n": 100},
        "n_trials": 7,
        "budget_s": 5.0,
        "strategy": "random",
        "trial_limit_s": 9.0,
        "device": "pthread",
        "resume": False,
        "scheduler": "tcp://host:8786",
    }


def test_a_value_of_no_parameter_is_bad_usage(run, autotune):
    """The message names the parameters that there are; nothing is tuned."""
    seen = autotune()
    result = run("tune", *MATVEC, "--size", "m=4")
    assert (result.exit_code, seen) == (2, {})
    assert "no size parameter is named m; there are n" in result.stderr


def test_the_strategies_are_those_of_the_library():
    """The choices of ``--strategy`` are the library's."""
    known, nothing = get_args(get_type_hints(tune)["strategy"])
    assert (get_args(known), nothing) == (get_args(Strategy), type(None))


def test_an_effort_sets_the_limits_and_options_go_before(run, autotune):
    """Those of the library, by default those of a patient tuning."""
    for words, limits in (
        ((), {"n_trials": 20, "budget_s": None, "strategy": "tpe"}),
        (("--effort", "measure"), {"n_trials": 5, "budget_s": 10.0, "strategy": "tpe"}),
        (("--effort", "exhaustive"), {"n_trials": None, "strategy": "exhaustive"}),
        (("--strategy", "exhaustive"), {"n_trials": None, "strategy": "exhaustive"}),
        (("--effort", "measure", "--trials", "9"), {"n_trials": 9, "budget_s": 10.0}),
    ):
        seen = autotune()
        assert run("tune", *MATVEC, *words).exit_code == 0
        assert {name: seen[name] for name in limits} == limits


def test_a_kernel_of_a_file_can_be_tuned(run, autotune, kernel_file):
    """The target is the translation unit; options of an einsum are refused, even those
    that give the default.
    """
    seen = autotune()
    assert run("tune", f"{kernel_file}:build").exit_code == 0
    assert seen.pop("target").default_entrypoint.name == "matvec"
    seen.clear()
    for option in (
        ("--dtype", "float32"),
        ("--dtype", "float64"),
        ("--sizes", "i=3"),
        ("--rows", ""),
        ("--operands", "A,x"),
    ):
        result = run("tune", kernel_file, *option)
        assert result.exit_code == 2
        assert option[0] in result.stderr
        assert not seen


def test_a_kernel_that_is_not_there_is_bad_usage(run, tmp_path):
    """A unit of two kernels has none by default: exit code 2."""
    path = tmp_path / "two.py"
    path.write_text(
        "import loopy as lp\n"
        "def build():\n"
        "    make = lambda name: lp.make_kernel(\n"
        "        '{[i]: 0<=i<4}', 'y[i] = x[i]', lang_version=(2018, 2), name=name)\n"
        "    return lp.merge([make('one'), make('two')])\n"
    )
    result = run("tune", str(path))
    assert result.exit_code == 2
    assert "[not-an-einsum]" in result.stderr


def test_nothing_recorded_is_a_failure(run, autotune):
    """Exit code 1, and on one line why: no trial passed, or none a second time."""
    autotune(n_recorded=0)
    result = run("tune", *MATVEC, "--json")
    assert result.exit_code == 1
    assert "1 of 2 trials passed, but none when timed again" in result.stderr
    assert "none of 1 trial passed" in str(make_unrecorded_error(trials()[:1]))
    *_, recorded, error = map(json.loads, result.stdout.splitlines())
    assert recorded["records"] == []
    assert error["error"]["code"] == "measurement-failed"


def test_the_progress_bar_shows_trials_best_baseline_and_time_left(monkeypatch):
    """On a terminal of 80 columns everything is on one line."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(
        "feinsum.tuning.bar.Console", lambda **_: terminal, raising=True
    )
    with ProgressBar() as bar:
        bar.show(TuningProgress(2, 20, trials()[1], trials()[1], 4e-5, 3600.0))
        bar.refresh()
        bar.show(TuningProgress(20, 20, trials()[1], trials()[1], 4e-5, 0.0))
    shown = "best 1 ms, untransformed 10 ms, roof 4%"
    line = next(x for x in screen.getvalue().splitlines() if shown in x)
    assert "2/20" in line
    assert "1:00:00 left" in line
    last = next(x for x in reversed(screen.getvalue().splitlines()) if shown in x)
    assert last.split()[-4:] == ["timing", "the", "best", "again"]


def test_in_a_notebook_one_line_below_the_cell_is_replaced(monkeypatch):
    """It needs no widgets, begins with the tuning, and ends with what was found."""
    cell = Console(file=io.StringIO(), force_jupyter=True)
    lines = []
    handle = SimpleNamespace(update=lambda line, raw: lines.append(line))
    monkeypatch.setattr("feinsum.tuning.bar.Console", lambda **_: cell)
    monkeypatch.setattr("IPython.display.display", lambda line, **_: handle)
    trial = trials()[1]
    with TuningBar() as bar:
        bar.show(TuningProgress(2, 20, trial, trial, None, 3600.0))
        bar.show(TuningProgress(20, 20, trial, trial, None, 0.0))
        bar.final([Finalist(good().spec, good().measurement, 1.0)])
    told = [line["text/plain"] for line in lines]
    assert told[0] == "best 1 ms, untransformed 10 ms 20/20 timing the best again"
    assert re.fullmatch(r"best .* times as fast 20/20 ", told[1])
    assert '<progress value="20" max="20">' in lines[1]["text/html"]
    assert cell.file.getvalue() == ""


def test_failures_say_why():
    """One line for each way to fail, with the first reason, and none for success."""
    good, bad = trials()[1], replace(
        trials()[1], status="wrong-result", message="row 3\ndiffers", median_s=None,
        ratio=None,
    )  # fmt: skip
    (line,) = explain_failures([good, bad, bad])
    assert line.startswith("  2 wrong-result; the first, ")
    assert line.endswith(": row 3 differs")


def test_a_real_tuning_records_a_fact_that_a_query_finds(run, database):
    """From nothing to a fact: tune a small einsum, then look it up."""
    einsum = ("ij,j->i", "--sizes", "i=64,j=64")
    tuned = run("tune", *einsum, "--trials", "2", "--json")
    assert tuned.exit_code == 0, tuned.stderr
    start, *trials, final, last = map(json.loads, tuned.stdout.splitlines())
    assert [e["event"] for e in (start, final, last)] == ["start", "final", "recorded"]
    assert 1 <= len(trials) <= 2
    assert all(trial["status"] == "ok" and trial["ratio"] > 0 for trial in trials)
    assert {r["spec"] for r in last["records"]} <= {t["spec"] for t in trials}
    assert last["records"]
    with open_store(database) as store:
        stored = {record.id for record in store.query(last["key"])}
    assert stored == {record["id"] for record in last["records"]}
    known = run("query", *einsum, "--json")
    useful = any(record["speedup"] > 1 for record in last["records"])
    assert known.exit_code == (0 if useful else 3)


def test_a_report_is_two_files(run, autotune, tmp_path):
    """A page that needs nothing else, and a picture, in a folder that is made."""
    autotune()
    folder = tmp_path / "new" / "report"
    result = run("tune", *MATVEC, "--live", "--report", str(folder))
    assert result.exit_code == 0
    assert "live: http://127.0.0.1:" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "report.html",
        "report.png",
    ]


def test_a_report_that_cannot_be_made_is_refused_before_tuning(
    run, autotune, tmp_path, monkeypatch
):
    """A file in the way is bad usage; without matplotlib one error names the extra."""
    seen = autotune()
    (tmp_path / "file").write_text("in the way")
    assert run("tune", *MATVEC, "--report", str(tmp_path / "file")).exit_code == 2
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("tune", *MATVEC, "--report", str(tmp_path / "report"))
    assert result.exit_code == 1
    assert "feinsum[plots]" in result.stderr
    assert not seen


def test_the_installed_program_tunes_nothing_it_cannot(database):
    """The entry point ends with the same codes as the commands in-process."""
    program = "from feinsum.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "tune", "ij,j->i", "--sizes", "i=3", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "FEINSUM_DATABASE": str(database)},
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert json.loads(result.stdout)["error"]["code"] == "usage"
    assert result.stderr.startswith("feinsum: [usage] ")
    assert not database.exists()
