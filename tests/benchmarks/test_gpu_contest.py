"""Contests on a GPU, as far as they can be tried without one: with CuPy's stand-in."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial

import numpy as np
import pytest

from benchmarks.experiments.entries import both_suites, with_elements
from benchmarks.gpu import contest, make_contest, report, rivals
from benchmarks.gpu.bundle.folder import read_bundle, write_bundle
from tests.children import run_command, run_python
from tests.docs.pages import ROOT
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

NAMES = "^(face_mass_b3_Ni4_Nj3|divergence_b1_Ni4|abc-bda-dc)$"
"""A mean and a stack for operands, and scalars that are known at run time."""
FAKE = ROOT / "tests" / "targets" / "cuda" / "fake_cupy"
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def entries():
    found = both_suites(NAMES, max_gflop=1e-4)
    return [with_elements(e, 37 / 200000) if e.parametric else e for e in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contests") / "contest"
    make = partial(make_contest.workload_of, {}, "sm_80")
    assert write_bundle(folder, "sm_80", make, entries()).n_workloads == 3
    make_contest.copy_modules(folder)
    return folder


def test_our_kernels_are_right_with_functions_for_operands(folder):
    """Each is verified before it is timed; rivals that are not there are named."""
    environment = {"PYTHONPATH": f"{FAKE}:{ROOT}", "BUDGET": "100", "CALLS": "0",
                   "OUT": str(folder / "out"), "PYTHON": sys.executable,
                   "JAX_PLATFORMS": "cpu"}  # fmt: skip
    ended = run_command(SCRIPT, "cuda", folder, **environment)
    found = [x for x in report.read(folder / "contest.jsonl") if "seconds" in x]
    assert {x["name"] for x in found} == {e.name for e in entries()}
    for line in found:
        assert line["spec"].startswith("gpu_")
        assert len(line["seconds"]["feinsum"]) == contest.ROUNDS
        assert set(line["refused"]) == set(rivals.RIVALS)
    assert "divergence_b1_Ni4" in ended.stdout
    document = json.loads((folder / "out" / "gpu.json").read_text())
    assert document["device"]["name"] == found[0]["device"]["name"]
    assert {x["name"] for x in document["entries"]} == {e.name for e in entries()}


@pytest.fixture
def troubled(folder, tmp_path):
    """Runs a contest of two entries, whose kernels all have a trouble; what it says."""
    copy = tmp_path / "contest"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.jsonl", "out"))
    bundle = read_bundle(copy)
    bundle["workloads"] = bundle["workloads"][:2]
    (copy / "bundle.json").write_text(json.dumps(bundle))

    def run(trouble):
        without = [word for name in rivals.RIVALS for word in ("--without", name)]
        environment = {"PYTHONPATH": f"{FAKE}:{ROOT}", "FAKE_CUPY": trouble}
        words = copy / "contest.py", "--jobs", 1, *without
        ended = run_python(*words, **environment)
        return ended, report.read(copy / "contest.jsonl"), bundle["workloads"]

    return run


def test_wrong_kernels_are_not_timed_and_reported(troubled):
    """Each candidate, by its recipe."""
    ended, lines, workloads = troubled("wrong:__global__")
    found = {line["name"]: line for line in lines if "seconds" in line}
    for workload in workloads:
        line = found[workload["name"]]
        assert line["seconds"] == {}
        recipes = [candidate["spec"] for candidate in workload["candidates"]]
        for recipe, failed in zip(recipes, line["failed"], strict=True):
            assert failed.startswith(f"{recipe}: the result is wrong")
            assert failed in ended.stdout


def test_a_lost_gpu_costs_one_entry(troubled):
    """Its process ends, since all that follows would fail; another one goes on."""
    _, lines, workloads = troubled("lasting:__global__")
    found = [line for line in lines if "seconds" in line]
    assert [line["name"] for line in found] == [w["name"] for w in workloads]
    for line in found:
        (failed,) = line["failed"]
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in failed


def test_a_contest_begins_with_the_recipes_on_record():
    """The fastest packaged ones, and few that are predicted beside them."""
    (entry,) = both_suites("^divergence_b1_Ni4$", max_gflop=1e6)
    recorded = make_contest.recorded("sm_90")
    document = make_contest.workload_of(recorded, "sm_90", entry).document
    specs = [candidate["spec"] for candidate in document["candidates"]]
    known = recorded[document["key"]]
    assert specs[0] == str(min(known, key=known.__getitem__))
    assert len(specs) <= make_contest.N_BEST + make_contest.N_PREDICTED


def test_rivals_are_compared_with_what_is_expected(folder):
    """At the entries that the runner compares."""
    for entry, workload in zip(
        entries(), read_bundle(folder)["workloads"], strict=True
    ):
        values = make_contest.CanonicalEntry.of(entry).values()
        evaluate = rivals.evaluation(workload, np, np.einsum)
        results = evaluate(values)
        assert contest._error(workload, lambda r=results: r, id) < 1e-12
        wrong = [r + 0.1 * abs(r).max() for r in results]
        assert contest._error(workload, lambda w=wrong: w, id) == pytest.approx(0.1)
