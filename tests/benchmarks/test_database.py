"""The benchmark of the database runs, and its facts are honest."""

from __future__ import annotations

import runpy
import subprocess
import sys
from itertools import islice

from tests.docs.pages import ROOT

SCRIPT = str(ROOT / "benchmarks" / "database.py")


def test_the_table_has_every_cost() -> None:
    """A row for each, with numbers."""
    command = [sys.executable, SCRIPT, "--records", "200", "--rounds", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for what in ("writing", "size on disk", "opening", "exact look-up", "a miss"):
        assert any(line.strip().startswith(what) for line in done.stdout.splitlines())


def test_every_fact_is_another_one() -> None:
    """Of as many workloads and devices as are claimed, each as often."""
    names = runpy.run_path(SCRIPT)
    n_of_one = names["N_RECIPES"] * names["N_DEVICES"]
    made = list(islice(names["facts"](10**6), 2 * n_of_one))
    assert len({record.id for record in made}) == 2 * n_of_one
    assert len({record.workload for record in made}) == 2
    assert len({record.environment.device.id for record in made}) == names["N_DEVICES"]
