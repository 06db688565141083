"""The benchmark of kernels of one cell runs, on few cells."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT
from tests.portions import spread


@pytest.mark.parametrize(
    "case",
    spread(
        ["mass, triangle", "Helmholtz action, hexahedron", "Laplace, quadrilateral"], 2
    ),
)
def test_a_kernel_and_what_is_found_for_it_compute_the_same(case):
    """Transformed by what is predicted, gathered and scattered through maps."""
    command = [sys.executable, "benchmarks/firedrake.py", "--only", f"^{case}, 2$"]
    command += ["--cells", "40", "--rounds", "1"]
    settings = {"FEINSUM_EFFORT": "estimate", "FEINSUM_VERIFY": "off"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    form, cell = case.split(", ")
    (row,) = (x for x in done.stdout.splitlines() if x.startswith(f"| {form} "))
    cells = [one.strip() for one in row.strip("|").split("|")]
    assert cells[:3] == [form, cell, "2"]
    n_found, n_nests = map(int, re.findall(r"\d+", cells[-1]))
    assert cells[-1] == f"recipes, {n_found} of {n_nests} nests"
    assert n_found == n_nests > 0
    assert f"({case}, 2)" in done.stdout
