"""``python -m benchmarks.gpu.pack``: a folder goes out, and facts come in."""

from __future__ import annotations

import json
import shutil
import tarfile
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from benchmarks.gpu import pack
from benchmarks.gpu.bundle.folder import read_bundle
from benchmarks.gpu.pack import app
from feinsum.db import open_store
from feinsum.errors import MeasurementError
from tests.benchmarks.test_gpu_bundle import final_line
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

ENTRY = "^divergence_b1_Ni4$"


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A pack without wheels, of one entry and one workload; what was said."""
    folder = tmp_path_factory.mktemp("packs")
    (folder / "mine.csv").write_text('einsum,sizes,size\n"ij,j->i",i=n;j=4,n=70\n')
    options = ("--only", ENTRY, "--suite", folder / "mine.csv", "--trials", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "SCRIPTS", ("benchmarks/gpu",))
        said = run("build", folder / "pack", "--no-wheels", *options)
    assert said.exit_code == 0, said.output
    return folder / "pack", said.output


@pytest.fixture
def results(built):
    """Where the results of the pack belong; they are gone after a test."""
    path = built[0] / pack.RESULTS
    path.parent.mkdir()
    yield path
    shutil.rmtree(path.parent)


def test_a_pack_has_all_that_it_takes(built):
    """The script, what it runs, kernels of both kinds; the same in one file."""
    folder, said = built
    assert {path.name for path in folder.iterdir()} == {
        "gpu.sh", "benchmarks", "contest", "trials", "failures.txt"}  # fmt: skip
    assert (folder / "benchmarks/gpu/bundle/runner.py").is_file()
    assert "contest: " in said
    assert "trials: 2 kernels of 1 workload" in said
    (entry,) = read_bundle(folder / "contest")["workloads"]
    assert (entry["name"], entry["suite"]) == ("divergence_b1_Ni4", "dgfem")
    with tarfile.open(folder.with_suffix(".tar")) as archive:
        assert "pack/gpu.sh" in archive.getnames()


def test_kernels_that_fail_are_listed_with_the_reason(tmp_path, monkeypatch):
    """By the entry and the recipe; others take their place."""
    monkeypatch.setattr("benchmarks.gpu.make_contest.write_bundle", spilling)
    monkeypatch.setattr(pack, "export_bundle", spilling)
    folder = tmp_path / "pack"
    said = run("build", folder, "--no-wheels", "--only", ENTRY)
    assert said.exit_code == 0, said.output
    line = "contest: an entry: gpu_points@1(block=256): it spills"
    assert line in said.output
    assert line in (folder / "failures.txt").read_text()
    assert "2 recipes left out" in said.output


def spilling(folder, *_given, **_options):
    left_out = {"an entry": {"gpu_points@1(block=256)": "it spills"}}
    return pack.Exported(1, 0, 0, left_out)


def test_results_of_trials_become_facts(built, results, tmp_path):
    """The best of each workload, for the GPU that ran them."""
    folder, _ = built
    final_line(folder / "trials", results)
    database = tmp_path / "facts.sqlite"
    said = run("record", folder, "--database", database)
    assert said.exit_code == 0, said.output
    assert "recorded 1 fact for G (NVIDIA CUDA C++)" in said.output
    with open_store(database) as store:
        (fact,) = store.records()
    assert fact.environment.device.name == "G"


def test_the_next_pack_tries_what_the_last_one_has_not(
    built, results, tmp_path, monkeypatch
):
    """Neighbours of the best, of the workloads that were tried."""
    folder, _ = built
    monkeypatch.setattr(pack, "SCRIPTS", ("benchmarks/gpu",))
    tried = {"workload": 0, "candidate": 1, "state": "tried", "seconds": 1e-6}
    results.write_text(json.dumps(tried))
    (before,) = read_bundle(folder / "trials")["workloads"]
    options = ("--suite", folder.parent / "mine.csv", "--suite", "dgfem", "--trials", 3)
    said = run("build", tmp_path / "next", "--no-wheels", "--only", ENTRY,
               "--after", folder, *options)  # fmt: skip
    assert said.exit_code == 0, said.output
    (after,) = read_bundle(tmp_path / "next" / "trials")["workloads"]
    assert after["key"] == before["key"]
    assert before["candidates"][1]["spec"] not in {
        candidate["spec"] for candidate in after["candidates"]
    }


@pytest.mark.parametrize("code", [0, 3])
def test_wheels_are_collected_by_the_interpreter_that_is_named(tmp_path, code):
    """With the versions of the constraints; a failure is one of the pack."""
    python, wheels = tmp_path / "python", tmp_path / "wheels"
    python.write_text(f"#!/bin/sh\necho $CFLAGS $* > {tmp_path}/ran\nexit {code}\n")
    python.chmod(0o755)
    expected = (
        pytest.raises(MeasurementError, match=r"pip.* 3") if code else nullcontext()
    )
    with expected, pack._collect_wheels(wheels, str(python)):
        pass
    ran = (tmp_path / "ran").read_text()
    assert f"-m pip wheel --quiet --no-cache-dir --wheel-dir {wheels} --constr" in ran
    assert ran.rstrip().endswith("[cli]")
    assert "native" not in ran


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--suite", "x"), "there is no suite or file 'x'"),
        (("--only", "nothing"), "would have 0 entries"),
    ],
)
def test_a_pack_of_nothing_is_refused(tmp_path, options, said):
    """With what is expected, before anything is compiled."""
    ended = run("build", tmp_path / "pack", "--no-wheels", *options)
    assert ended.exit_code != 0
    assert said in ended.output


def test_a_folder_in_use_is_refused(tmp_path):
    """Nothing there is overwritten."""
    (tmp_path / "mine").touch()
    ended = run("build", tmp_path, "--no-wheels")
    assert ended.exit_code == 1
    assert "is not empty" in ended.output
