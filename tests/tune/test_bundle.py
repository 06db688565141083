"""Trials that travel: written here, run by a process without feinsum, recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from feinsum import array, einsum
from feinsum.errors import InvalidRecordError, MeasurementError
from feinsum.measure.cases import make_case
from feinsum.predict import predictions
from feinsum.records import InMemoryStore, TransformSpec
from feinsum.transforms.gpu import GPU_MATRICES
from feinsum.tune import bundle_runner, make_problem
from feinsum.tune.bundle import (
    Made,
    Maker,
    document_of,
    export_bundle,
    read_bundle,
    results_of,
    write_bundle,
)
from feinsum.tune.bundle_candidates import USUAL_GPU, candidates
from feinsum.tune.bundle_facts import import_results
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake_cupy"


def problems():
    mass = einsum("ij,ej->ei", array("M", (5, 5)), array("u", ("N", 5)))
    row = einsum("ij,j->i", array("n", (9, 6), "int32"), array("m", 6, "int32"))
    return [make_problem(mass, {"N": 70}), make_problem(row)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "first"
    said = export_bundle(problems(), folder, "sm_80", n_candidates=3)
    return folder, said


@pytest.fixture
def bundle(exported, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(exported[0], folder)
    return folder


def run(folder, *options, trouble=""):
    """The runner in a process of its own, with CuPy's stand-in and nothing of feinsum
    but what that needs.
    """
    environment = {**os.environ, "PYTHONPATH": f"{FAKE}:{ROOT}", "FAKE_CUPY": trouble}
    command = [sys.executable, str(folder / "runner.py"), *options]
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def lines(folder):
    return bundle_runner.lines_of(folder / "results.jsonl")


def mark_of(folder, workload, candidate):
    """Something that the source of a candidate alone has."""
    import zipfile

    document = read_bundle(folder)["workloads"][workload]["candidates"]
    with zipfile.ZipFile(folder / "kernels.zip") as archive:
        texts = [archive.read(f"{c['code']}.cu").decode() for c in document]
    own = texts[candidate].splitlines()
    others = "\n".join(t for k, t in enumerate(texts) if k != candidate)
    return max((x.strip() for x in own if x.strip() not in others), key=len)


def test_a_bundle_has_all_that_it_takes(exported):
    """Two workloads, three candidates each, and the size that is said."""
    folder, said = exported
    assert sorted(p.name for p in folder.iterdir()) == [
        "bundle.json", "kernels.zip", "runner.py"]  # fmt: skip
    assert (said.n_workloads, said.n_candidates) == (2, 6)
    assert said.n_bytes == sum(p.stat().st_size for p in folder.iterdir()) < 100_000
    first = read_bundle(folder)["workloads"][0]["candidates"][0]
    assert first["spec"].startswith("gpu_points@1")
    assert 0 < first["launches"][0]["occupancy"] <= 1


def test_arguments_are_drawn_as_they_were_here(exported):
    """The runner has no Loopy, and the expected results hold all the same."""
    bundle = read_bundle(exported[0])
    for problem, workload in zip(problems(), bundle["workloads"], strict=True):
        case = make_case(problem.einsum, problem.sizes)
        rng = np.random.default_rng(bundle["seed"])
        for name, dtype, shape, kind in workload["arguments"]:
            if kind != "size":
                drawn = bundle_runner.drawn(np, rng, kind, dtype, shape)
                assert np.array_equal(drawn, case.arguments[name])
        ((_, _, _, checks),) = workload["outputs"]
        (result,) = case.expected.values()
        assert np.array_equal(
            result.reshape(-1)[checks["places"]], np.array(checks["values"])
        )


def test_a_run_becomes_facts_of_its_gpu(bundle):
    """Verified, timed against the baseline, recorded with the device's own name."""
    ended = run(bundle)
    assert ended.returncode == 0, ended.stderr
    states = [line["state"] for line in lines(bundle) if "state" in line]
    assert states.count("tried") == 6
    store = InMemoryStore()
    imported = import_results(bundle, store)
    assert imported.states == {"tried": 6}
    facts = list(store.records())
    assert set(facts) == set(imported.facts)
    assert len(facts) == 6
    baselines = [f for f in facts if str(f.spec) == "gpu_points@1(block=256)"]
    assert [f.measurement.speedup for f in baselines] == [1.0, 1.0]
    for fact in facts:
        device = fact.environment.device
        assert (device.name, device.kind, device.architecture) == (
            "Fake GPU", "gpu", "sm_99")  # fmt: skip
        assert fact.measurement.timer == "cuda-events"
        assert fact.provenance["baseline"] == "gpu_points@1(block=256)"
        assert fact.environment.software["cupy"] == "0.fake"
    assert run(bundle).returncode == 0
    assert sum("state" in line for line in lines(bundle)) == 12  # nothing again


def test_products_of_the_library_travel(tmp_path):
    """Operands that a launch brings in order, and that are read as they are."""
    e = einsum("bd,adc->abc", array("B", (21, 16)), array("A", (5, 16, 9)))
    problem = make_problem(e)
    case, maker = make_case(problem.einsum, {}), Maker("sm_80")
    specs = [GPU_MATRICES.spec({"stacked": n}) for n in (0, 1)]
    made = [maker.candidate(spec, case) for spec in specs]
    assert [len(one["launches"]) for one in made] == [3, 1]
    document = {**document_of(problem, case), "baseline": 0, "candidates": made}
    written = Made(document, maker.files, {})
    write_bundle(tmp_path / "b", "sm_80", partial(_given, written), [0], n_processes=1)
    assert run(tmp_path / "b").returncode == 0
    states = [line.get("state") for line in lines(tmp_path / "b")]
    assert states.count("tried") == 2


def _given(made, _item):
    return made


@pytest.mark.parametrize(
    ("trouble", "state"), [("crash", "crashed"), ("wrong", "wrong"), ("fail", "failed")]
)
def test_a_faulty_kernel_costs_itself_alone(bundle, trouble, state):
    """Its process ends, or it is refused; all others are tried."""
    ended = run(bundle, trouble=f"{trouble}:{mark_of(bundle, 0, 1)}")
    assert ended.returncode == 0, ended.stderr
    outcomes = {
        (line["workload"], line["candidate"]): line["state"]
        for line in lines(bundle)
        if line.get("state", "started") != "started"
    }
    assert outcomes.pop((0, 1)) == state
    assert set(outcomes.values()) == {"tried"}
    assert len(outcomes) == 5
    assert import_results(bundle, InMemoryStore()).states[state] == 1


def test_a_budget_is_kept(bundle):
    """What is left is for the next start."""
    ended = run(bundle, "--budget", "0")
    assert ended.returncode == 1
    assert "start again" in ended.stderr
    assert lines(bundle) == []


def test_without_a_gpu_the_runner_says_so(bundle):
    """With an exit code of its own, and nothing is blamed on a kernel."""
    ended = run(bundle, trouble="none")
    assert ended.returncode == 2
    assert "no CUDA-capable device" in ended.stderr
    assert lines(bundle) == []


def test_a_round_begins_with_what_is_predicted():
    """Each candidate once."""
    for problem in problems():
        found = list(candidates(problem, {}))
        best = predictions(problem.einsum, problem.sizes, USUAL_GPU)[0]
        assert found[0] == best.spec
        assert len(set(found)) == len(found)


def test_the_next_round_tries_neighbours_of_the_best(bundle, tmp_path):
    """And nothing again but the baseline."""
    (problem, _) = problems()
    best = next(s for s in candidates(problem, {}) if s.name == "gpu_elements")
    tried = {best: 1e-6}
    first = next(candidates(problem, tried))
    changed = {k for k, v in first.parameters.items() if best.parameters[k] != v}
    assert first.name == best.name
    assert len(changed) <= 1
    document = read_bundle(bundle)["workloads"][0]
    (bundle / "results.jsonl").write_text(
        json.dumps({"workload": 0, "candidate": 1, "state": "tried", "seconds": 1e-6})
    )
    (spec,) = results_of(bundle)[document["key"]]
    assert str(spec) == document["candidates"][1]["spec"]
    second = tmp_path / "second"
    export_bundle([problem], second, "sm_80", n_candidates=3, after=bundle)
    specs = [c["spec"] for c in read_bundle(second)["workloads"][0]["candidates"]]
    assert str(spec) not in specs
    assert len(specs) == 3


def final_line(folder, **changes):
    bundle = read_bundle(folder)
    line = {
        "workload": 0, "candidate": 1, "final": True, "samples_s": [1e-5] * 5,
        "baseline_s": [2e-5] * 5, "error": 0.0, "bundle": bundle["id"],
        "device": {"name": "G", "capability": [9, 0], "multiprocessors": 2,
                   "clock_khz": 10**6, "driver": "12.9", "cupy": "1", "python": "3"},
    }  # fmt: skip
    (folder / "results.jsonl").write_text(json.dumps({**line, **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bundle": "0" * 64}, "of the bundle 000000"),
        ({"error": 1.0}, "its error is 1.0, the tolerance"),
        ({"error": float("nan")}, "its error is nan"),
        ({"workload": 7}, "IndexError"),
        ({"device": {}}, "KeyError: 'capability'"),
    ],
)
def test_results_that_do_not_fit_are_refused(bundle, changes, said):
    """By the number of the line; nothing is recorded."""
    final_line(bundle, **changes)
    store = InMemoryStore()
    with pytest.raises(InvalidRecordError, match=f"result 1 of .*{said}"):
        import_results(bundle, store)
    assert not list(store.records())


def test_times_that_no_device_has_are_refused(bundle):
    """As those of anybody."""
    final_line(bundle, samples_s=[1e-15] * 5)
    with pytest.raises(InvalidRecordError):
        import_results(bundle, InMemoryStore())


def test_folders_that_are_none_are_refused(tmp_path, bundle):
    """With what to do."""
    with pytest.raises(MeasurementError, match="feinsum tune --export"):
        read_bundle(tmp_path)
    with pytest.raises(MeasurementError, match="is not empty"):
        export_bundle(problems(), bundle, "sm_80")
    with pytest.raises(InvalidRecordError, match=r"run its runner\.py"):
        import_results(bundle, InMemoryStore())


def test_a_bundle_that_is_too_large_is_refused(tmp_path, monkeypatch):
    """Before it is carried."""
    monkeypatch.setattr("feinsum.tune.bundle.MOST_BYTES", 10)
    with pytest.raises(MeasurementError, match="more than 10 bytes; give fewer trials"):
        export_bundle(problems()[1:], tmp_path / "b", "sm_80", n_candidates=1)


def test_the_runner_needs_no_feinsum():
    """It imports nothing but the standard library, numpy and CuPy."""
    import ast

    tree = ast.parse(Path(bundle_runner.__file__).read_text())
    named = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert named - sys.stdlib_module_names == {"numpy", "cupy"}
    assert TransformSpec("gpu_points", 1, {}).name == "gpu_points"


def test_a_process_that_ends_after_all_trials_has_no_candidate_to_blame(tmp_path):
    bundle = {"workloads": [{"candidates": ["one", "other"]}]}
    out = tmp_path / "results.jsonl"
    for state in ({0: "tried"}, {0: "tried", 1: "started"}, {1: "tried"}):
        for candidate, name in state.items():
            line = {"workload": 0, "candidate": candidate, "state": name}
            bundle_runner.say(out, line)
    written = out.read_text()
    bundle_runner.blame(bundle, 0, out, None)
    assert out.read_text() == written
