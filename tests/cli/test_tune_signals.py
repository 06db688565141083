"""``feinsum tune`` under signals at any moment: the database has what is whole."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from feinsum.db import open_store
from tests.portions import spread

COMMAND = ["tune", "ij,j->i", "--sizes", "i=64,j=64", "--json"]
ROUNDS = 20
"""Of a comparison, at least: each of them is one sample of a fact."""


ENDED = {1: {130}, 2: {130, -signal.SIGINT}}


def begun(database, n_trials):
    command = [sys.executable, "-m", "feinsum.cli", *COMMAND, "--trials", str(n_trials)]
    return subprocess.Popen(
        command,
        env={**os.environ, "FEINSUM_DATABASE": str(database)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_whole(database, events):
    """It opens; each row can be read; facts are complete, and those that were told."""
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        counts = {
            table: connection.execute(f"select count(*) from {table}").fetchone()[0]
            for table in ("records", "trials")
        }
    with open_store(database) as store:
        facts = [*store.records()]
        trials = [trial for key in store.tried() for trial in store.trials(key)]
    assert counts == {"records": len(facts), "trials": len(trials)}
    for fact in facts:
        assert len(fact.measurement.samples_s) >= ROUNDS
        assert all(s > 0 for s in fact.measurement.samples_s)
        assert fact.measurement.baseline_s
        assert fact.spec in [trial.spec for trial in trials if trial.is_ok]
    for trial in trials:
        assert (trial.median_s is not None) == trial.is_ok
    n_told = sum(event.get("event") == "trial" for event in events)
    assert n_told <= len(trials) <= n_told + 1
    told = [r["id"] for event in events for r in event.get("records", ())]
    assert set(told) <= {fact.id for fact in facts}


MOMENTS = {
    "in the first trial": (1000, "start", 1),
    "after some trials": (1000, "trial", 3),
    "in the final comparison": (2, "trial", 2),
}


CASES = [(m, n) for k, m in enumerate(MOMENTS) for n in ((1, 2), (2, 1))[k % 2]]


@pytest.mark.parametrize(("moment", "n_signals"), spread(CASES, 3))
def test_a_signal_at_any_moment_leaves_nothing_half(database, moment, n_signals):
    """Exit code 130, whatever is under way. A second one can come when all is done:
    then it ends the process itself, which a shell calls 130, too.
    """
    n_trials, event, n_events = MOMENTS[moment]
    chance = random.Random(f"{moment} {n_signals}")
    events = []
    process = begun(database, n_trials)
    try:
        left = n_events
        while left:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            events.append(json.loads(line))
            left -= events[-1]["event"] == event
        time.sleep(chance.random() * 0.2)
        for _ in range(n_signals):
            process.send_signal(signal.SIGINT)
            time.sleep(chance.random() * 0.1)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    events += map(json.loads, out.splitlines())
    assert_whole(database, events)
    if events[-1]["event"] == "recorded":  # it was done before the signal came
        assert process.returncode in ENDED[n_signals] | {0}
        return
    assert process.returncode in ENDED[n_signals], err
    if n_signals == 1:
        assert "Traceback" not in err
        assert events[-1]["event"] == "interrupted"
