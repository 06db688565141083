"""Trials that travel: written here, run by a process without feinsum, recorded."""

from __future__ import annotations

import ast
import json
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.experiments import functions
from benchmarks.gpu import contest, race, report, rivals
from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle import workload as making
from benchmarks.gpu.bundle.candidates import list_candidates
from benchmarks.gpu.bundle.facts import import_results
from benchmarks.gpu.bundle.folder import (
    export_bundle,
    read_bundle,
    read_seconds,
    write_bundle,
)
from benchmarks.gpu.bundle.workload import (
    BuiltWorkload,
    WorkloadBuilder,
    describe_workload,
)
from feinsum import array, einsum
from feinsum.errors import InvalidRecordError, MeasurementError
from feinsum.measure.cases import make_case
from feinsum.records import InMemoryStore
from feinsum.transforms.gpu import GPU_MATRICES
from feinsum.tuning import make_problem
from tests.children import run_python
from tests.portions import spread
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "targets" / "cuda" / "fake_cupy"


def problems():
    mass = einsum("ij,ej->ei", array("M", (5, 5)), array("u", ("N", 5)))
    row = einsum("ij,j->i", array("n", (9, 6), "int32"), array("m", 6, "int32"))
    return {"mass": make_problem(mass, {"N": 70}), "row": make_problem(row)}


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


@pytest.fixture(scope="module")
def results(exported, tmp_path_factory):
    """The lines of a complete run."""
    folder = tmp_path_factory.mktemp("complete") / "bundle"
    shutil.copytree(exported[0], folder)
    assert run(folder).returncode == 0
    return lines(folder)


def run(folder, *options, trouble=""):
    """The runner in a process of its own, with CuPy's stand-in and nothing of feinsum
    but what that needs.
    """
    environment = {"PYTHONPATH": f"{FAKE}:{ROOT}", "FAKE_CUPY": trouble}
    words = "-m", "benchmarks.gpu.bundle.runner", folder, *options
    return run_python(*words, is_checked=False, limit_s=120, **environment)


def lines(folder):
    return runner.read_lines(folder / "results.jsonl")


def write(folder, lines):
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))


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
    assert sorted(p.name for p in folder.iterdir()) == ["bundle.json", "kernels.zip"]
    assert (said.n_workloads, said.n_candidates) == (2, 6)
    assert said.n_bytes == sum(p.stat().st_size for p in folder.iterdir()) < 100_000
    first = read_bundle(folder)["workloads"][0]["candidates"][0]
    assert first["spec"].startswith("gpu_points@1")
    assert 0 < first["launches"][0]["occupancy"] <= 1


def test_arguments_are_drawn_as_they_were_here(exported):
    """The runner has no Loopy, and the expected results hold all the same."""
    bundle = read_bundle(exported[0])
    given = problems().values()
    for problem, workload in zip(given, bundle["workloads"], strict=True):
        case = make_case(problem.einsum, problem.sizes)
        rng = np.random.default_rng(bundle["seed"])
        for name, dtype, shape, kind in workload["arguments"]:
            if kind != "size":
                drawn = runner.draw_operand(np, rng, kind, dtype, shape)
                assert np.array_equal(drawn, case.arguments[name])
        ((_, _, _, checks),) = workload["outputs"]
        (result,) = case.expected.values()
        assert runner.compute_entries_error(np, checks, result) < 1e-15
        assert len(checks["values"]) == result.size
        assert runner.compute_weighted_sum(np, result) == pytest.approx(
            checks["weighted"]
        )


def test_a_run_becomes_facts_of_its_gpu(bundle, results):
    """Verified, timed against the baseline, recorded with the device's own name."""
    write(bundle, results)
    states = [line["state"] for line in results if "state" in line]
    assert Counter(states) == {"started": 6, "tried": 6}
    store = InMemoryStore()
    imported = import_results(bundle, bundle / "results.jsonl", store)
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
        assert fact.environment.platform_version == "sm_99 1000 MHz"
    assert run(bundle).returncode == 0
    assert lines(bundle) == results  # nothing again


def test_products_of_the_library_travel(tmp_path):
    """Operands that a launch brings in order, and that are read as they are."""
    e = einsum("bd,adc->abc", array("B", (21, 16)), array("A", (5, 16, 9)))
    problem = make_problem(e)
    case, builder = make_case(problem.einsum, {}), WorkloadBuilder("sm_80")
    specs = [GPU_MATRICES.spec({"stacked": n}) for n in (0, 1)]
    made = [builder.build_candidate(spec, case) for spec in specs]
    assert [len(one["launches"]) for one in made] == [3, 1]
    document = {
        **describe_workload(problem, case, case.arguments),
        "name": "products", "baseline": 0, "candidates": made,
    }  # fmt: skip
    written = BuiltWorkload(document, builder.files, {})
    write_bundle(tmp_path / "b", "sm_80", partial(_given, written), [0], n_processes=1)
    assert run(tmp_path / "b").returncode == 0
    states = [line.get("state") for line in lines(tmp_path / "b")]
    assert states.count("tried") == 2


def _given(made, _item):
    return made


TROUBLES = {
    "crash": ("crashed", "ended its process with -6"),
    "hang": ("crashed", "took longer than 10 s"),
    "wrong": ("wrong", ""),
    "fail": ("failed", "OUT_OF_RESOURCES"),
    "lasting": ("failed", "ILLEGAL_ADDRESS"),
}


@pytest.mark.parametrize("trouble", spread(TROUBLES, 3))
def test_a_faulty_kernel_costs_itself_alone(bundle, results, trouble):
    """Its process ends, or it is refused; all others are tried, and the right ones
    timed together, those of its process too.
    """
    write(bundle, [x for x in results if x["workload"] == 1])
    ended = run(bundle, trouble=f"{trouble}:{mark_of(bundle, 0, 2)}")
    assert ended.returncode == 0, ended.stderr
    written = lines(bundle)
    (faulty,) = (x for x in written if x.get("state") == TROUBLES[trouble][0])
    assert (faulty["workload"], faulty["candidate"]) == (0, 2)
    assert TROUBLES[trouble][1] in faulty.get("reason", "")
    own = [x for x in written if x["workload"] == 0]
    assert places(x for x in own if x.get("state") == "tried") == {(0, 0), (0, 1)}
    assert places(x for x in own if "final" in x) == {(0, 1)}  # with the baseline
    imported = import_results(bundle, bundle / "results.jsonl", InMemoryStore())
    assert imported.states == {"tried": 5, TROUBLES[trouble][0]: 1}


def places(lines):
    return {(line["workload"], line["candidate"]) for line in lines}


class Starts:
    """Processes of a workload of two kernels that end with the codes given."""

    def __init__(self, out, codes, *written):
        self.out, self.codes, self.written = out, list(codes), list(written)

    def __call__(self, k, limit, options):
        if self.written:
            runner.append_lines(self.out, self.written.pop(0))
        return self.codes.pop(0)

    def run(self, monkeypatch, budget):
        monkeypatch.setattr(runner, "run_child", self)
        bundle = {"workloads": [{"candidates": ["one", "other"], "baseline": 0}]}
        options = SimpleNamespace(out=self.out, limit=60)
        end = time.monotonic() + budget
        return runner.run_to_end(bundle, 0, 30, end, options)


def test_scripts_of_the_contest_and_of_trials_need_no_feinsum():
    """They run before it is installed, and with Python 3.10."""
    for script in (runner, contest, functions, race, report, rivals):
        source = Path(script.__file__).read_text()
        assert ast.parse(source, feature_version=(3, 10)).body
    code = (
        "import sys, benchmarks.gpu.contest, benchmarks.gpu.bundle.runner;"
        "assert not {'feinsum', 'loopy', 'numpy', 'cupy'} & {*sys.modules}"
    )
    run_python("-c", code, PYTHONPATH=str(ROOT))


@pytest.mark.parametrize(
    ("subscripts", "shapes", "dtype"),
    [
        ("ij,kj->ik", [(70, 9), (50, 9)], "float64"),
        ("xre,rij,ej->xei", [(2, 3, 40), (3, 7, 6), (40, 6)], "float64"),
        ("aab,b->ab", [(5, 5, 6), (6,)], "float64"),
        ("ij,j->", [(30, 40), (40,)], "float64"),
        ("ij,j->i", [(40, 30), (30,)], "int32"),
    ],
)
def test_what_is_expected_is_of_the_result(monkeypatch, subscripts, shapes, dtype):
    """Entries, which are computed in parts, and a weighted sum, without the result."""
    monkeypatch.setattr(making, "MOST_GATHERED", 100)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(1, 9, shape).astype(dtype) for shape in shapes]
    named = [array(n, s, dtype) for n, s in zip("abc", shapes, strict=False)]
    result = np.asarray(np.einsum(subscripts, *arrays)).astype(float)
    checks = making.compute_checks(einsum(subscripts, *named), arrays, result.shape)
    assert runner.compute_entries_error(np, checks, result) < 1e-14
    assert runner.compute_weighted_sum(np, result) == pytest.approx(checks["weighted"])
    if result.size > 1:
        result.reshape(-1)[-1] += 1.0
        assert runner.compute_weighted_sum(np, result) != pytest.approx(
            checks["weighted"]
        )


def line(candidate, state):
    more = {"seconds": 1.0, "error": 0.0} if state == "tried" else {}
    return {"workload": 0, "candidate": candidate, "state": state, **more}


@pytest.mark.parametrize(
    ("codes", "written", "state"),
    [
        ([3, 3, 3], [], "started"),  # that of a start before
        ([None], [line(1, "started")], "started"),  # its time was over
        ([-2], [line(1, "started")], "started"),  # somebody stopped it
        ([3, 0], [line(1, "failed")], "failed"),  # it is written down already
        ([1, 0], [line(1, "started")], "crashed"),
        ([-14, 0], [line(1, "started")], "crashed"),
    ],
)
def test_only_the_kernel_that_ended_its_process_is_blamed(
    monkeypatch, tmp_path, codes, written, state
):
    """It is the one that the process itself started last, and has no outcome."""
    out = tmp_path / "out"
    runner.append_lines(out, line(0, "tried"), line(1, "started"))
    starts = Starts(out, codes, *written)
    starts.run(monkeypatch, 60)
    found = runner.read_lines(out)
    assert found[-1]["state"] == state
    assert [x["candidate"] for x in found[1:]] == [1] * (len(found) - 1)


def test_without_a_gpu_the_runner_says_so(bundle):
    """With an exit code of its own, and nothing is blamed on a kernel."""
    ended = run(bundle, trouble="none")
    assert ended.returncode == 2
    assert "no CUDA-capable device" in ended.stderr
    assert lines(bundle) == []


def test_the_next_round_tries_neighbours_of_the_best(bundle, tmp_path):
    """They differ in one parameter; nothing is tried again but the baseline."""
    problem = problems()["mass"]
    best = next(
        s for s in list_candidates(problem, {}, "sm_80") if s.name == "gpu_elements"
    )
    tried = {best: 1e-6}
    first = next(list_candidates(problem, tried, "sm_80"))
    changed = {k for k, v in first.parameters.items() if best.parameters[k] != v}
    assert first.name == best.name
    assert len(changed) == 1
    document = read_bundle(bundle)["workloads"][0]
    (bundle / "results.jsonl").write_text(
        json.dumps({"workload": 0, "candidate": 1, "state": "tried", "seconds": 1e-6})
    )
    tried = read_seconds(bundle, bundle / "results.jsonl")
    (spec,) = tried[document["key"]]
    assert str(spec) == document["candidates"][1]["spec"]
    second = tmp_path / "second"
    export_bundle({"mass": problem}, second, "sm_80", n_candidates=3, tried=tried)
    specs = [c["spec"] for c in read_bundle(second)["workloads"][0]["candidates"]]
    assert str(spec) not in specs
    assert len(specs) == 3


def final_line(folder, path=None, **changes):
    bundle = read_bundle(folder)
    line = {
        "workload": 0, "candidate": 1, "final": True, "samples_s": [1e-5] * 5,
        "baseline_s": [2e-5] * 5, "error": 0.0, "bundle": bundle["id"],
        "device": {"name": "G", "capability": [9, 0], "multiprocessors": 2,
                   "clock_khz": 10**6, "driver": "12.9", "cupy": "1", "python": "3"},
    }  # fmt: skip
    path = path or folder / "results.jsonl"
    path.write_text(json.dumps({**line, **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bundle": "0" * 64}, "belongs to the bundle 000000"),
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
        import_results(bundle, bundle / "results.jsonl", store)
    assert not list(store.records())


def test_folders_that_are_none_are_refused(tmp_path, bundle):
    """With what to do."""
    with pytest.raises(MeasurementError, match="make gpu-pack"):
        read_bundle(tmp_path)
    with pytest.raises(MeasurementError, match="is not empty"):
        export_bundle(problems(), bundle, "sm_80")
    with pytest.raises(InvalidRecordError, match=r"run gpu\.sh"):
        import_results(bundle, bundle / "results.jsonl", InMemoryStore())


def test_a_bundle_that_is_too_large_is_refused(tmp_path, monkeypatch):
    """Before it is copied; its document counts as its kernels do. The folder is empty
    again, so that it can be used for fewer trials.
    """
    monkeypatch.setattr("benchmarks.gpu.bundle.folder.MOST_BYTES", 1000)
    given = partial(
        _given, BuiltWorkload({"candidates": [], "text": "x" * 1000}, {}, {})
    )
    with pytest.raises(MeasurementError, match="than 1000 bytes; give fewer trials"):
        write_bundle(tmp_path / "b", "sm_80", given, [0], n_processes=1)
    assert not list((tmp_path / "b").iterdir())


def test_some_entries_of_a_large_result_are_checked():
    """Their places are the same wherever they are drawn, and are not carried."""
    result = np.random.default_rng(0).uniform(size=(70, 100))
    places = runner.choose_checked(np, result.size, 1000)
    checks = {"values": result.reshape(-1)[places].tolist(), "largest": 1.0}
    assert runner.compute_entries_error(np, checks, result) == 0
    assert len({*places.tolist()}) > 900
    result.reshape(-1)[places[7]] += 0.5
    assert runner.compute_entries_error(np, checks, result) == pytest.approx(0.5)
    result.reshape(-1)[places[7]] = np.nan
    assert runner.compute_entries_error(np, checks, result) == float("inf")
