"""``feinsum tune --export`` and ``--import``, and figures of kernels for GPUs."""

from __future__ import annotations

import json

import pytest

from feinsum.db import open_store
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS
from tests.tune.test_bundle import final_line

pytestmark = [LOOPY_WARNINGS, needs_nvrtc]

MATVEC = ("ij,j->i", "--sizes", "i=n,j=4", "--size", "n=70")


def test_trials_go_out_and_facts_come_in(run, tmp_path):
    """A folder is written; what is found there is recorded."""
    folder, database = tmp_path / "trials", tmp_path / "facts.sqlite"
    options = ("--trials", "2", "--architecture", "sm_80", "--export", str(folder))
    said = run("tune", *MATVEC, *options)
    assert said.exit_code == 0, said.output
    assert "2 kernels of 1 workload," in said.stdout
    final_line(folder)
    said = run("tune", "--import", str(folder), "--database", str(database))
    assert said.exit_code == 0, said.output
    assert "recorded 1 fact for G (NVIDIA CUDA C++)" in said.stdout
    with open_store(database) as store:
        (fact,) = store.records()
    assert fact.environment.device.name == "G"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--export", "f"), "give an einsum or --suite"),
        (("--export", "f", "--suite", "x"), "there is no suite or file 'x'"),
        (("--after", "f"), "requires --export"),
        (("--import", "f", *MATVEC), "omit the einsum"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, options, said):
    """As bad usage, with what is expected."""
    ended = run("tune", *options)
    assert ended.exit_code == 2
    assert said in " ".join(ended.output.replace("│", " ").split())


def test_figures_of_kernels_are_printed(run):
    """As a table, and as JSON."""
    given = ("transforms", "ij,j->i", "--sizes", "i=n,j=4", "--architecture", "sm_80")
    table = run(*given)
    assert table.exit_code == 0, table.output
    assert "occupancy" in table.stdout
    (first, *_) = json.loads(run(*given, "--json").stdout)["recipes"]
    assert first["registers"] > 0
    assert run("transforms", "--architecture", "sm_80").exit_code == 2
