"""The benchmark of retrieval runs, and its largest kernel is what it says."""

from __future__ import annotations

import runpy
import subprocess
import sys

from feinsum import raise_kernel
from tests.docs.pages import ROOT

SCRIPT = str(ROOT / "benchmarks" / "retrieve.py")
NAMES = runpy.run_path(SCRIPT)


def test_the_stages_are_timed() -> None:
    """A row for the kernel, and a number for every stage."""
    command = [sys.executable, SCRIPT, "--rounds", "2", "--records", "50"]
    command += ["--only", NAMES["CAPTURED"][0]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("50 facts; device: ")
    (row,) = [x for x in done.stdout.splitlines() if x.strip().startswith("k10")]
    assert len(row.split()) == 1 + len(NAMES["STAGES"]) + 1


def test_the_large_kernel_has_71_instructions_in_8_nests() -> None:
    """Batches of 12, 6 and 6 sums are among them, and nothing is refused."""
    raised = raise_kernel(NAMES["operators"]())
    sizes = [len(nest.instructions) for nest in raised.raised]
    assert sum(sizes) == 71
    assert len(sizes) == 8
    assert sizes[:3] == [12, 6, 6]
    assert not raised.refused
