"""``feinsum tune``."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from functools import cache
from statistics import median
from typing import get_args, get_type_hints

import pytest
from rich.console import Console

import feinsum.tune
from feinsum.cli.notation import read_einsum
from feinsum.cli.tune import tune
from feinsum.cli.tune_view import ProgressBar
from feinsum.db import open_store
from feinsum.tune import (
    Strategy,
    TrialOutcome,
    TuningProgress,
    TuningReport,
    make_problem,
)
from tests.cli.facts import MATVEC, fast_peaks, matvec_record


@cache
def good():
    return matvec_record()


@cache
def outcomes():
    """A trial that failed, and one that passed."""
    return (
        TrialOutcome(matvec_record(1).spec, "build-failed", "no\nway"),
        TrialOutcome(good().spec, "ok", measurement=good().measurement),
    )


def stand_in(seen, *, n_recorded=1, is_interrupted=False):
    """An ``autotune`` that reports two trials and records facts, at once."""

    def autotune(target, *, database, on_progress, **options):
        seen.update(options, target=target)
        for k, outcome in enumerate(outcomes()):
            best = outcome if outcome.is_ok else None
            on_progress(TuningProgress(k + 1, options["n_trials"], outcome, best))
        records = tuple(matvec_record(k) for k in range(n_recorded))
        for record in records:
            database.add(record)
        if is_interrupted:
            raise KeyboardInterrupt
        problem = make_problem(read_einsum("ij,j->i", ["i=n,j=4"]), {"n": 7})
        return TuningReport(problem, outcomes(), records)

    return autotune


@pytest.fixture
def autotune(monkeypatch):
    """Replaces the search; returns the options that it was called with."""

    def replace(**behaviour):
        seen = {}
        monkeypatch.setattr(feinsum.tune, "autotune", stand_in(seen, **behaviour))
        return seen

    return replace


def test_the_table_has_the_recorded_facts(run, autotune, database):
    """Stdout has the workload, how the trials ended, and the facts in 80 columns."""
    autotune()
    result = run("tune", *MATVEC)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert f"canonical: {good().workload_text}" in lines
    assert "sizes: N0=7" in lines
    assert "trials: 2 (1 build-failed, 1 ok)" in lines
    assert "untransformed: 10.00 ms" in lines
    assert good().id[:12] in result.stdout
    assert max(map(len, lines[2:])) <= 80
    with open_store(database) as store:
        assert store.get(good().id) == good()


def test_json_is_one_object_per_line(run, autotune):
    """One line per trial, then one with the facts; a failed trial has no time."""
    autotune()
    result = run("tune", *MATVEC, "--json")
    first, second, last = map(json.loads, result.stdout.splitlines())
    assert [e["event"] for e in (first, second, last)] == ["trial", "trial", "recorded"]
    assert (first["status"], first["median_s"]) == ("build-failed", None)
    assert first["best_spec"] is None
    assert second["median_s"] == good().measurement.median_s
    assert second["baseline_s"] == median(good().measurement.baseline_s)
    assert second["best_spec"] == str(good().spec)
    assert [record["id"] for record in last["records"]] == [good().id]
    assert last["key"] == good().workload
    assert result.stderr == ""


def test_the_fraction_of_the_roofline_is_shown(run, autotune, database):
    """With stored limits the table and the last line have it; before, null."""
    autotune()
    unknown = json.loads(run("tune", *MATVEC, "--json").stdout.splitlines()[-1])
    assert unknown["records"][0]["fraction_of_roofline"] is None
    with open_store(database) as store:
        store.add_peaks(fast_peaks(good().environment.device))
    known = json.loads(run("tune", *MATVEC, "--json").stdout.splitlines()[-1])
    assert known["records"][0]["fraction_of_roofline"] == pytest.approx(0.04)
    assert "4.00%" in run("tune", *MATVEC).stdout


def test_options_reach_the_search(run, autotune):
    """Every option has its place in the library's call."""
    seen = autotune()
    run(
        *("tune", *MATVEC, "--size", "n=100", "--trials", "7", "--budget", "5"),
        *("--strategy", "random", "--trial-limit", "9", "--device", "pthread"),
    )
    assert seen.pop("target") == read_einsum("ij,j->i", ["i=n,j=4"])
    assert seen == {
        "sizes": {"n": 100},
        "n_trials": 7,
        "budget_s": 5.0,
        "strategy": "random",
        "trial_limit_s": 9.0,
        "device": "pthread",
    }


def test_the_strategies_are_those_of_the_library():
    """The choices of ``--strategy`` are the library's."""
    assert get_args(get_type_hints(tune)["strategy"]) == get_args(Strategy)


def test_a_kernel_of_a_file_can_be_tuned(run, autotune, kernel_file):
    """The target is the translation unit; options of an einsum are refused."""
    seen = autotune()
    assert run("tune", f"{kernel_file}:build").exit_code == 0
    assert seen["target"].default_entrypoint.name == "matvec"
    result = run("tune", kernel_file, "--sizes", "i=3")
    assert result.exit_code == 2
    assert "--sizes" in result.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--dtype", "float32"),
        ("--dtype", "float64"),
        ("--sizes", "i=3"),
        ("--rows", ""),
        ("--operands", "A,x"),
    ],
    ids=" ".join,
)
def test_options_of_subscripts_are_refused_with_a_file(
    run, autotune, kernel_file, option
):
    """No option is ignored in silence, not even one that gives the default."""
    seen = autotune()
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
    """If no recipe passed, exit code 1 and the first reason, on one line."""
    autotune(n_recorded=0)
    result = run("tune", *MATVEC, "--json")
    assert result.exit_code == 1
    assert "no way" in result.stderr
    *_, recorded, error = map(json.loads, result.stdout.splitlines())
    assert recorded["records"] == []
    assert error["error"]["code"] == "measurement-failed"


@pytest.mark.parametrize("n_recorded", [0, 1])
def test_an_interrupt_says_what_was_recorded(run, autotune, database, n_recorded):
    """Exit code 130; facts that were known before are not counted."""
    with open_store(database) as store:
        store.add(matvec_record(9))
    autotune(n_recorded=n_recorded, is_interrupted=True)
    text = run("tune", *MATVEC)
    assert text.exit_code == 130
    expected = (
        f"recorded were 1 facts: {good().id[:12]}" if n_recorded else "nothing was"
    )
    assert f"feinsum: interrupted; {expected}" in text.stderr
    database.unlink()
    lines = run("tune", *MATVEC, "--json").stdout.splitlines()
    last = json.loads(lines[-1])
    assert last["event"] == "interrupted"
    assert [record["id"] for record in last["records"]] == [good().id][:n_recorded]


def test_the_progress_bar_shows_trials_best_baseline_and_time_left(monkeypatch):
    """On a terminal of 80 columns everything is on one line."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(
        "feinsum.cli.tune_view.Console", lambda stderr: terminal, raising=True
    )
    with ProgressBar(budget_s=3600.0) as bar:
        bar.show(TuningProgress(2, 20, outcomes()[1], outcomes()[1]))
    shown = "best 1.000 ms, untransformed 10.00 ms"
    line = next(x for x in screen.getvalue().splitlines() if shown in x)
    assert "2/20" in line
    assert "left" in line


def test_a_real_tuning_records_a_fact_that_a_query_finds(run, database):
    """From nothing to a fact: tune a small einsum, then look it up."""
    einsum = ("ij,j->i", "--sizes", "i=64,j=64")
    tuned = run("tune", *einsum, "--trials", "2", "--json")
    assert tuned.exit_code == 0, tuned.stderr
    *trials, last = map(json.loads, tuned.stdout.splitlines())
    assert 1 <= len(trials) <= 2
    assert last["records"]
    with open_store(database) as store:
        stored = {record.id for record in store.query(last["key"])}
    assert stored == {record["id"] for record in last["records"]}
    known = run("query", *einsum, "--json")
    useful = any(record["speedup"] > 1 for record in last["records"])
    assert known.exit_code == (0 if useful else 3)


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
