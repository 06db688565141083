"""The benchmark of fresh processes runs, and the second one finds what was kept."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import ROOT


def test_both_processes_are_timed() -> None:
    """Two tables, with a row of six numbers for the entry in each."""
    command = [sys.executable, "benchmarks/fresh.py", "--only", "divergence_b1_Ni4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [x.split() for x in done.stdout.splitlines() if "divergence" in x]
    assert [len(row) for row in rows] == [7, 7]
    first, second = (float(row[6]) for row in rows)
    assert second < first
