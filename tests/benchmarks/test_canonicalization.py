"""The benchmark of canonicalization runs, and draws what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

SCRIPT = ROOT / "benchmarks" / "canonicalization.py"


def test_a_short_run_has_tables_and_figures(tmp_path: Path) -> None:
    """Tables fit a terminal: the 48 contractions of the suite with medians, the growth
    of each family beside that of n log n, and what is known to be hard. The figures
    have the bars, and the growth.
    """
    command = [sys.executable, str(SCRIPT), "--rounds", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert sum(line.startswith("ab") for line in lines) == 48
    assert done.stdout.count(", median ") == 3
    for family in ("chain of matrices", "DG batch (divergence)", "pointwise product"):
        (line,) = [x for x in lines if x.startswith(f"{family}: ")]
        assert "slope" in line
        assert "n log n" in line
    for name in ("Paley graph 29", "CFI over Petersen", "trace of 64 matrices"):
        assert any(line.startswith(name) for line in lines)
    tables = [x for x in done.stdout.splitlines() if "(" in x and "slope" not in x]
    assert max(map(len, tables)) <= 80
    assert "…" not in done.stdout
    for name in ("growth", "tccg"):
        figure = tmp_path / f"canonicalization-{name}.png"
        assert figure.read_bytes().startswith(b"\x89PNG")
