"""The benchmark of programs runs: all contenders compute the same."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.docs.pages import ROOT


def test_a_program_gets_a_row() -> None:
    """Times, peaks and the ratio to the best rival, of a tiny program."""
    command = [sys.executable, "benchmarks/programs.py", "--scale", "0.05"]
    command += ["--rounds", "1", "--json", "--dtype", "float64", "--only", "dg"]
    command += ["--without", "torch", "compiled", "jax"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert [row["program"] for row in rows] == ["dg"]
    for row in rows:
        assert row["ratio"] == row["numpy"] / row["feinsum"]
        assert row["feinsum_bytes"] >= 0
        assert row["numpy_bytes"] >= 0
