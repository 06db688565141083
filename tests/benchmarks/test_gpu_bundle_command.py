"""``python -m benchmarks.gpu.bundle``: the folder goes out, and facts come in."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from benchmarks.gpu.bundle.command import app
from feinsum.db import open_store
from tests.benchmarks.test_gpu_bundle import final_line
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

MATVEC = ("ij,j->i", "--sizes", "i=n,j=4", "--size", "n=70")


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_trials_go_out_and_facts_come_in(run, tmp_path):
    """A folder is written; what is found there is recorded."""
    folder, database = tmp_path / "trials", tmp_path / "facts.sqlite"
    options = ("--trials", "2", "--architecture", "sm_80")
    said = run("export", str(folder), *MATVEC, *options)
    assert said.exit_code == 0, said.output
    assert "2 kernels of 1 workload," in said.stdout
    final_line(folder)
    said = run("import", str(folder), "--database", str(database))
    assert said.exit_code == 0, said.output
    assert "recorded 1 fact for G (NVIDIA CUDA C++)" in said.stdout
    with open_store(database) as store:
        (fact,) = store.records()
    assert fact.environment.device.name == "G"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give an einsum or --suite"),
        (("--suite", "x"), "there is no suite or file 'x'"),
    ],
)
def test_a_folder_without_workloads_is_refused(run, tmp_path, options, said):
    """As bad usage, with what is expected; nothing is written."""
    ended = run("export", str(tmp_path / "f"), *options)
    assert ended.exit_code == 2
    assert said in ended.output
    assert not (tmp_path / "f").exists()
