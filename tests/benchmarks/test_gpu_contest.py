"""Contests on a GPU, as far as they can be tried without one: with CuPy's stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from benchmarks.experiments import functions
from benchmarks.experiments.entries import both_suites, with_elements
from benchmarks.gpu import contest, making
from feinsum.tune.bundle import read_bundle, write_bundle
from tests.docs.pages import ROOT
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

NAMES = "^(face_mass_b3_Ni4_Nj3|divergence_b1_Ni4|abc-bda-dc)$"
"""A mean and a stack for operands, and scalars that are known at run time."""
FAKE = ROOT / "tests" / "tune" / "fake_cupy"
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def entries():
    found = both_suites(NAMES, max_gflop=1e-4)
    return [with_elements(e, 37 / 200000) if e.parametric else e for e in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contests") / "contest"
    made = write_bundle(folder, "sm_80", partial(making.made, {}, "sm_80"), entries())
    assert made.n_workloads == 3
    for module in (contest, functions):
        shutil.copy(module.__file__, folder)
    return folder


def test_our_kernels_are_right_with_functions_for_operands(folder):
    """Each is verified before it is timed; rivals that are not there are named."""
    environment = {**os.environ, "PYTHONPATH": f"{FAKE}:{ROOT}", "BUDGET": "100",
                   "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}  # fmt: skip
    ended = subprocess.run(
        [str(SCRIPT), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = [x for x in contest.read(folder / "contest.jsonl") if "seconds" in x]
    assert {x["name"] for x in found} == {e.name for e in entries()}
    for line in found:
        assert line["spec"].startswith("gpu_")
        assert len(line["seconds"]["feinsum"]) == contest.ROUNDS
        assert set(line["refused"]) == set(contest.RIVALS)
    assert "divergence_b1_Ni4" in ended.stdout


def test_rivals_evaluate_the_entry(folder, monkeypatch):
    """The functions of a contest, read from its document, are those of the entry."""
    monkeypatch.syspath_prepend(str(folder))
    workloads = read_bundle(folder)["workloads"]
    for entry, workload in zip(
        entries(), json.loads(json.dumps(workloads)), strict=True
    ):
        values = entry.values()
        evaluate = contest.evaluation(workload, np, np.einsum)
        results = zip(evaluate(values), entry.reference(values), strict=True)
        assert all(np.allclose(result, expected) for result, expected in results)
