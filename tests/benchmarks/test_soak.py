"""The soak asks for everything, and sees memory that grows."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.soak import Soak, compute_growth, draw, is_steady, report
from tests.children import run_python

MIB = 2**20

STEADY = Soak(
    n_answers=900,
    at_s=[float(second) for second in range(90)],
    n_requests=[10 * second for second in range(90)],
    resident_bytes={"parent": [50 * MIB] * 90, "worker 1": [80 * MIB, 81 * MIB] * 45},
)


def test_memory_that_stays_has_no_slope():
    """Noise is no growth."""
    found = compute_growth(STEADY.at_s, STEADY.resident_bytes["worker 1"])
    assert abs(found.share) < 0.01
    assert abs(found.bytes_per_hour) < 25 * MIB
    assert is_steady(STEADY, 0.05)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_leak_is_seen(rate):
    """So many MiB a second are 3600 times as many an hour."""
    leaking = [int((80 + rate * second) * MIB) for second in STEADY.at_s]
    found = compute_growth(STEADY.at_s, leaking)
    assert found.bytes_per_hour == pytest.approx(3600 * rate * MIB, rel=1e-3)
    assert found.last_bytes - found.first_bytes == pytest.approx(
        60 * rate * MIB, rel=1e-3
    )
    grown = STEADY.resident_bytes | {"worker 2": leaking}
    assert not is_steady(replace(STEADY, resident_bytes=grown), 0.05)


def test_table_and_figure_show_every_process(tmp_path):
    """A row and a line for each."""
    console = Console(file=io.StringIO(), width=90)
    report(console, {"SQLite": STEADY})
    text = console.file.getvalue()
    assert len(re.findall("^ *SQLite +(parent|worker 1) ", text, re.MULTILINE)) == 2
    assert "900 answers in all, 300 in the first and 300 in the last third" in text
    draw({"SQLite": STEADY}, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_soak_runs(tmp_path):
    """Two seconds over SQLite; every answer is the one that was expected."""
    words = ["-m", "benchmarks.soak", "--on", "sqlite", "--minutes", "0.03"]
    words += ["--warm-up-s", "0.5", "--every-s", "0.1", "--records", "400"]
    words += ["--tolerance", "1000", "--figure", tmp_path / "soak.png"]
    done = run_python(*words, limit_s=500)
    assert "wrong: none" in done.stdout
    assert "worker 2" in done.stdout
