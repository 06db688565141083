"""The benchmark of canonicalization runs, and draws what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SCRIPT = ROOT / "benchmarks" / "canonicalization.py"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the figures and the printed text of a short run."""
    folder = tmp_path_factory.mktemp("figures")
    command = [sys.executable, str(SCRIPT), "--rounds", "2", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return folder, done.stdout


def test_every_contraction_has_a_row(output: tuple[Path, str]) -> None:
    """The table has the 48 contractions of the suite, and medians under it."""
    _, text = output
    rows = [line for line in text.splitlines() if line.strip().startswith("ab")]
    assert len(rows) == 48
    assert text.count(", median ") == 3


def test_every_family_has_a_slope(output: tuple[Path, str]) -> None:
    """The growth of each family is given beside that of n log n."""
    _, text = output
    for family in ("chain of matrices", "DG batch (divergence)", "pointwise product"):
        (line,) = [x for x in text.splitlines() if x.startswith(f"{family}: ")]
        assert "slope" in line
        assert "n log n" in line


def test_hard_instances_are_timed(output: tuple[Path, str]) -> None:
    """What is known to be hard has a row."""
    _, text = output
    for name in ("Paley graph 29", "CFI over Petersen", "trace of 64 matrices"):
        assert [x for x in text.splitlines() if x.strip().startswith(name)]


def test_the_tables_fit_a_terminal(output: tuple[Path, str]) -> None:
    """No row of a table is cut or wider than 80 columns."""
    _, text = output
    rows = [line for line in text.splitlines() if "(" in line and "slope" not in line]
    assert max(map(len, rows)) <= 80
    assert "…" not in text


def test_both_figures_are_drawn(output: tuple[Path, str]) -> None:
    """A PNG of the bars, and one of the growth."""
    folder, _ = output
    names = {"canonicalization-growth.png", "canonicalization-tccg.png"}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
