"""Contests on a GPU, as far as they can be tried without one: with CuPy's stand-in."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.experiments.entries import (
    list_both_suites,
    list_dgfem,
    list_tccg,
    scale_elements,
)
from benchmarks.gpu import contest, make_contest, race, report, rivals
from benchmarks.gpu.bundle.candidates import vary
from benchmarks.gpu.bundle.folder import read_bundle
from feinsum.errors import BuildError
from feinsum.records import TransformSpec
from tests.children import run_python
from tests.docs.pages import ROOT
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

NAMES = "^(face_mass_b3_Ni4_Nj3|divergence_b1_Ni4|abc-bda-dc)$"
"""A mean and a stack for operands, and scalars that are known at run time."""
FAKE = ROOT / "tests" / "targets" / "cuda" / "fake_cupy"


def entries():
    found = list_both_suites(NAMES, max_gflop=1e-4)
    return [scale_elements(e, 37 / 200000) if e.parametric else e for e in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contests") / "contest"
    made = make_contest.write_contest(folder, "sm_80", entries(), {}, n_processes=1)
    assert made.n_workloads == 3
    return folder


def run(folder, out, *words, trouble=""):
    """A contest in processes with CuPy's stand-in."""
    environment = {"PYTHONPATH": f"{FAKE}:{ROOT}", "FAKE_CUPY": trouble,
                   "JAX_PLATFORMS": "cpu"}  # fmt: skip
    command = "-m", "benchmarks.gpu.contest", folder, "--out", out, *words
    return run_python(*command, is_checked=False, limit_s=540, **environment)


def test_our_kernels_are_right_with_functions_for_operands(folder, tmp_path):
    """Each is verified before it is timed; rivals that are not there are named. A cut
    run has a table of what it measured, and the same command resumes.
    """
    out = tmp_path / "contest.jsonl"
    without = [word for name in rivals.RIVALS for word in ("--without", name)]
    for n, words in ((1, ("--first", 1, *without)), (3, ())):
        ended = run(folder, out, *words, "--budget", 500)
        assert ended.returncode == 0, ended.stderr
        found = [x for x in report.read_lines(out) if "seconds" in x]
        assert len(found) == n
        table = (tmp_path / "gpu-fake-gpu.txt").read_text()
        assert "# processor: Fake GPU (CUDA 13.0, cupy 0.fake" in table
        assert [line["name"] in table for line in found] == [True] * n
    assert {x["name"] for x in found} == {e.name for e in entries()}
    first, *others = found
    assert "refused" not in first
    for line in others:
        assert set(line["refused"]) == set(rivals.RIVALS)
    for line in found:
        assert line["spec"].startswith("gpu_")
        assert line["device_s"] == line["tried"][line["spec"]]
        assert line["device_s"] == min(line["tried"].values())
        assert len(line["seconds"]["feinsum"]) == contest.ROUNDS


@pytest.fixture
def troubled(folder, tmp_path):
    """Runs a contest of two entries, whose kernels all have a trouble; what it says."""
    copy = tmp_path / "contest"
    shutil.copytree(folder, copy)
    bundle = read_bundle(copy)
    bundle["workloads"] = bundle["workloads"][:2]
    (copy / "bundle.json").write_text(json.dumps(bundle))

    def run_troubled(trouble):
        without = [word for name in rivals.RIVALS for word in ("--without", name)]
        out = tmp_path / "contest.jsonl"
        ended = run(copy, out, "--jobs", 1, *without, trouble=trouble)
        assert ended.returncode == 0, ended.stderr
        return ended, report.read_lines(out), bundle["workloads"]

    return run_troubled


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


def test_a_start_that_was_cut_is_no_crash(tmp_path):
    """An entry whose process crashed often is given up, others are started again."""
    out = tmp_path / "contest.jsonl"
    options = SimpleNamespace(worker=None, jobs=1, out=out)
    contest = race.Race("", ["slow", "broken"], options)
    for _ in range(race.MOST_STARTS):
        assert contest.list_missing() == [0, 1]
        for line in ({"name": "slow"}, {"name": "slow", "is_cut": True}):
            report.append_line(out, line)
        report.append_line(out, {"name": "broken"})
    assert contest.list_missing() == [0]


def test_a_contest_has_the_recipes_on_record(monkeypatch):
    """The fastest packaged ones; what cannot be compiled is noted, and others take its
    place.
    """
    (whole,) = list_both_suites("^divergence_b1_Ni4$", max_gflop=1e6)
    entry = scale_elements(whole, 37 / 200000)
    refused: list[str] = []

    def compile_none(builder, spec, case):
        if str(spec) in refused:
            raise BuildError("it spills")
        return {"spec": str(spec)}

    monkeypatch.setattr(make_contest.WorkloadBuilder, "build_candidate", compile_none)
    recorded = make_contest.read_packaged_seconds("sm_90")
    document = make_contest.build_workload(recorded, "sm_90", entry).document
    known = recorded[document["key"]]
    first, *_ = fastest = sorted(known, key=known.__getitem__)
    best = [*map(str, fastest)]
    specs = [candidate["spec"] for candidate in document["candidates"]]
    assert specs == best[: make_contest.N_BEST]
    refused.extend(best)
    made = make_contest.build_workload(recorded, "sm_90", entry)
    assert made.left_out == dict.fromkeys(best[: make_contest.N_ATTEMPTS], "it spills")
    *varied, other = (
        TransformSpec.parse(x["spec"]) for x in made.document["candidates"]
    )
    assert len(varied) == make_contest.N_UNMEASURED
    assert {x.name for x in varied} == {first.name} != {other.name}


def test_variations_of_a_recipe_differ_in_one_value():
    """They are of the newest version, which is tried with the same values first."""
    (entry,) = list_both_suites("^face_mass_b1_Ni20_Nj10$", max_gflop=1e6)
    problem = make_contest.CanonicalEntry.of(entry).problem
    known = make_contest.read_packaged_seconds("sm_90")[str(problem.form.key)]
    old = min((s for s in known if s.name == "gpu_operator_mma"), key=known.__getitem__)
    assert old.version == 1
    first, *varied = vary(old, problem)
    assert (first.name, first.version, first.parameters) == (
        old.name,
        2,
        old.parameters,
    )
    assert varied
    for spec in varied:
        assert sum(spec.parameters[k] != v for k, v in old.parameters.items()) == 1


@pytest.mark.parametrize("suite", [list_dgfem(), list_tccg()], ids=["dgfem", "tccg"])
def test_few_entries_represent_a_suite(suite):
    """Each quarter by operations per byte has as many, small and large ones; the mean
    of both is that of the suite; and the order of the suite does not matter.
    """
    chosen = make_contest.choose_representative(suite, 12)
    assert len({e.name for e in chosen}) == len(chosen) == 12
    assert make_contest.choose_representative(suite[::-1], 12) == chosen
    by_intensity = sorted(suite, key=lambda e: (intensity(e), e.name))
    quarter = len(suite) // 4
    places = [by_intensity.index(entry) // quarter for entry in chosen]
    assert Counter(places) == dict.fromkeys(range(4), 3)
    for of_entry in (intensity, lambda e: e.footprint_bytes):
        ratio = np.exp(
            np.mean(np.log([*map(of_entry, chosen)]))
            - np.mean(np.log([*map(of_entry, suite)]))
        )
        assert 0.8 < ratio < 1.25


def intensity(entry):
    return entry.flops / entry.footprint_bytes


def test_the_representatives_come_first():
    """In turns of the suites, so that both have results after a cut."""
    ordered = make_contest.order_entries([*list_dgfem(), *list_tccg()])
    first = ordered[:24]
    assert [e.suite for e in first] == ["dgfem", "tccg"] * 12
    for suite in (list_dgfem(), list_tccg()):
        chosen = make_contest.choose_representative(suite, 12)
        assert {e.name for e in chosen} == {e.name for e in first} & {
            e.name for e in suite
        }
    assert len({(e.suite, e.name) for e in ordered}) == 88


def test_rivals_are_compared_with_what_is_expected(folder):
    """At the entries that the runner compares."""
    for entry, workload in zip(
        make_contest.order_entries(entries()),
        read_bundle(folder)["workloads"],
        strict=True,
    ):
        values = make_contest.CanonicalEntry.of(entry).values
        evaluate = rivals.make_evaluation(workload, np, np.einsum)
        results = evaluate(values)
        assert contest._compute_error(workload, lambda r=results: r, id) < 1e-12
        largest = {
            row: checks["largest"]
            for (*_, checks), row in zip(
                workload["outputs"], workload["row_order"], strict=True
            )
        }
        wrong = [r + 0.1 * largest[row] for row, r in enumerate(results)]
        assert contest._compute_error(workload, lambda w=wrong: w, id) == pytest.approx(
            0.1
        )
