"""The benchmark of programs runs: all contenders compute the same."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.docs.pages import ROOT


def test_every_program_gets_a_row_in_each_dtype() -> None:
    """Times, peaks and the ratio to the best rival, of tiny programs."""
    command = [sys.executable, "benchmarks/programs.py", "--scale", "0.05"]
    command += ["--rounds", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 6
    for row in rows:
        assert row["ratio"] == min(row["numpy"], row.get("torch", 1e9)) / row["feinsum"]
        assert row["feinsum_bytes"] > 0
