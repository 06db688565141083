"""Plans on real ranks: numpy's results, and exactly the elements that were counted."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import feinsum
from benchmarks.papers.schedules import make_named_plan
from feinsum.distributed import plan, plan_statements, with_cyclic
from feinsum.distributed.local import compute_with_numpy
from feinsum.distributed.mpi import get_world
from feinsum.errors import PlanError
from feinsum.programs import evaluate_program
from feinsum.run import create_arrays, read_block, use_one_thread, write_block
from feinsum.threads import get_n_threads
from tests.children import run_command
from tests.distributed.cases import KERNELS, PROGRAMS, by_numpy, operands_of
from tests.docs.pages import ROOT
from tests.portions import spread

MPIEXEC = Path(sys.executable).with_name("mpiexec")

needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(),
    reason="mpi4py or mpiexec is not installed: pip install 'feinsum[mpi]'",
)


def started(n: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    words = MPIEXEC, "-n", n, sys.executable, "-m", *arguments
    environment = {"PYTHONPATH": str(ROOT), **environment}
    return run_command(*words, is_checked=False, limit_s=400, **environment)


def told(n: int, what: str, **environment: str) -> list[dict]:
    done = started(n, "mpi4py", "-m", "tests.distributed.on_ranks", what, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def on_four() -> list[dict]:
    """The outcomes of several jobs on four ranks, started once."""
    return told(4, "schedules,random,passed,contract,refusals")


@pytest.fixture(scope="module")
def on_three() -> list[dict]:
    """The outcomes of jobs whose plans for three ranks need collectives alone."""
    return told(3, "collectives,gpus")


@needs_mpi
def test_what_ranks_receive_is_what_was_counted(on_four):
    """Every kernel, and schedules of every kind, give numpy's result and the predicted
    counts; so do random plans.
    """
    ranks = [rank["schedules"] for rank in on_four]
    assert {case.rpartition(" ")[0] for case in ranks[0]} == {*KERNELS}
    check_counts(ranks)
    check_counts([rank["random"] for rank in on_four])


@needs_mpi
@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "job"), [(8, "everything"), (9, "everything"),
                   *((n, "many random") for n in range(2, 10))],
)  # fmt: skip
def test_any_plan_runs_on_ranks(n, job):
    """All schedules of all kernels, and over 500 random plans of 2 to 9 ranks."""
    check_counts([rank[job] for rank in told(n, job)])


def check_counts(ranks):
    """Every rank has the right entries, and all together receive what was counted."""
    for case in ranks[0]:
        outcomes = [rank[case] for rank in ranks]
        assert all(one["right"] for one in outcomes), case
        for key, count in outcomes[0]["counted"].items():
            assert sum(one[key] for one in outcomes) == count, (case, key)


@needs_mpi
def test_arrays_on_rank_0_are_cut_and_put_together(on_four):
    """Arrays scatter and gather; functions give blocks; all ranks raise errors."""
    ranks = [rank["passed"] for rank in on_four]
    assert all(rank["right"] for rank in ranks)
    assert all("expected A, B, C, D" in rank["wrong"] for rank in ranks)


@needs_mpi
def test_ranks_are_an_engine(on_four):
    """All ranks pass the contract; rank 0 has the arrays and gets the results."""
    assert all(rank["contract"]["passed"] for rank in on_four)


@needs_mpi
def test_leaves_are_calls_of_the_database(tmp_path):
    """By default a block is computed as any other einsum of arrays.

    With ``record=`` the run is a fact on rank 0: what samples of the result depend on
    comes from the ranks that hold it.
    """
    database = str(tmp_path / "facts.sqlite")
    ranks = [rank["tuned"] for rank in told(2, "tuned", FEINSUM_DATABASE=database)]
    assert all(rank["paper"]["right"] and rank["right"] for rank in ranks)
    moved = plan(KERNELS["paper"], processes=2).counts.moved
    assert [rank["fact"] for rank in ranks] == [moved, None]
    assert [rank["blocks"] for rank in ranks] == [2, None]


def test_a_run_with_a_leaf_of_its_own_is_no_fact():
    """A run with its own leaf cannot be recorded."""
    made = plan(KERNELS["1mm"], processes=1)
    with pytest.raises(PlanError, match="leave out leaf= or record=") as caught:
        made.run({}, leaf=compute_with_numpy, record="facts.sqlite")
    assert caught.value.rules == ("leaf",)


@needs_mpi
def test_what_one_rank_has_wrong_all_ranks_refuse(on_four):
    """All ranks refuse what is wrong on one: the digest first, then the blocks."""
    ranks = [rank["refusals"] for rank in on_four]
    rules = {
        "digest": ["digest"],
        "shape": ["blocks"],
        "dtype": ["blocks"],
        "unknown": ["blocks"],
        "nothing": ["blocks"],
        "processes": ["mpi"],
    }
    for case, expected in rules.items():
        assert [rank[case][0] for rank in ranks] == [expected] * 4, case
    assert "rank 1 has a different plan than rank 0" in ranks[2]["digest"][1]
    assert "expected shape" in ranks[1]["shape"][1]
    assert "float32" in ranks[1]["dtype"][1]
    assert "rank 1 was given a block of Z" in ranks[0]["unknown"][1]
    assert "start the program with mpiexec -n 5" in ranks[0]["processes"][1]


@needs_mpi
@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_rank_that_dies_ends_all(how):
    """A rank that dies ends all ranks, with one message."""
    done = started(2, "tests.distributed.on_ranks", how)
    assert done.returncode != 0
    if how == "raises":
        assert done.stderr.count("all ranks end") == 1
        assert "rank 1 failed, all ranks end: ValueError: no leaf today" in done.stderr


def test_without_mpi_it_is_said_what_to_install(monkeypatch):
    """Without MPI the error has the rule ``mpi`` and says what to install."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(PlanError, match=r"feinsum\[mpi\]") as caught:
        get_world()
    assert caught.value.rules == ("mpi",)


@pytest.mark.parametrize(
    ("given", "threads"),
    [({}, 1), ({"OMP_NUM_THREADS": "3"}, 3), ({"FEINSUM_NUM_THREADS": "2"}, 2)],
)
def test_ranks_have_one_thread(monkeypatch, given, threads):
    """Each rank has one thread unless a variable says otherwise."""
    for name in ("OMP_NUM_THREADS", "FEINSUM_NUM_THREADS"):
        monkeypatch.setenv(name, given.get(name, ""))
        if name not in given:
            monkeypatch.delenv(name)
    use_one_thread()
    assert get_n_threads() == threads


@needs_mpi
@pytest.mark.parametrize(
    ("inputs", "output"), spread([("a.h5", "b.zarr"), ("a.zarr", "b.h5")], 1)
)
def test_a_plan_runs_from_hdf5_and_zarr(tmp_path, inputs, output):
    """Ranks write HDF5 and Zarr in turns, with cyclic parts and several results."""
    program = PROGRAMS["wanted and read"]
    made = with_cyclic(plan_statements(program, processes=2), program.extents)
    operands = operands_of(program)
    (tmp_path / "plan.json").write_text(made.to_json())
    shapes = {name: array.shape for name, array in operands.items()}
    create_arrays(tmp_path / inputs, shapes, np.dtype("f8"))
    for name, array in operands.items():
        whole = tuple(map(range, array.shape))
        write_block(tmp_path / inputs, name, whole, array)
    files = ["--inputs", str(tmp_path / inputs), "--output", str(tmp_path / output)]
    database = str(tmp_path / "facts.sqlite")
    run = ("feinsum.run", str(tmp_path / "plan.json"), *files)
    done = started(2, *run, FEINSUM_DATABASE=database)
    assert done.returncode == 0, done.stderr
    for name, expected in by_numpy(program, operands).items():
        whole = tuple(map(range, expected.shape))
        found = read_block(
            tmp_path / output, name, expected.shape, expected.dtype, whole
        )
        assert np.allclose(found, expected)


@needs_mpi
def test_the_plan_of_a_program_runs_from_files(tmp_path):
    """Results of programs have their own dtypes, and the reference's values."""
    p = feinsum.program()
    shares = p.softmax(feinsum.array("X", (6, 5)), name="Y")
    p.einsum("ij->i", shares, body="x0 > 0.2", reduction="any", name="large")
    made = p.plan(2)
    x = np.random.default_rng(0).random((6, 5))
    np.save(tmp_path / "X.npy", x)
    (tmp_path / "plan.json").write_text(made.to_json())
    files = ("--inputs", str(tmp_path), "--output", str(tmp_path / "results"))
    done = started(2, "feinsum.run", str(tmp_path / "plan.json"), *files)
    assert done.returncode == 0, done.stderr
    for name, expected in evaluate_program(made.program, {"X": x}).items():
        found = np.load(tmp_path / "results" / f"{name}.npy")
        assert found.dtype == expected.dtype
        assert np.allclose(found, expected)


@needs_mpi
def test_blocks_on_gpus_stay_there(on_three):
    """Messages go through the host only if MPI cannot read memory of GPUs.

    A rank without a block has its buffers on a GPU, too.
    """
    cases = [case for case in on_three[0]["gpus"] if case.endswith("True")]
    assert len(cases) == 4
    for case in cases:
        direct = [rank["gpus"][case] for rank in on_three]
        staged = [rank["gpus"][case.replace("True", "False")] for rank in on_three]
        assert all(rank["right"] for rank in direct + staged), case
        for one, other in zip(direct, staged, strict=True):
            assert (one["received"], one["messages"]) == (
                other["received"], other["messages"],
            )  # fmt: skip
            # the result of a rank, which the test compares, is the only copy
            assert one["copies"] <= 1
        assert sum(rank["copies"] for rank in staged) > sum(
            rank["copies"] for rank in direct
        )


@needs_mpi
def test_collectives_take_the_place_of_messages(on_three):
    """Collectives of all kinds give the same results and counts as messages."""
    ranks = [rank["collectives"] for rank in on_three]
    for case in ("3mm eindecomp", "same twice cosma"):
        name, kind = case.rsplit(" ", 1)
        counts = make_named_plan(kind, KERNELS[name], processes=3).counts
        assert all(rank[case]["right"] for rank in ranks)
        moved = sum(rank[case]["received"] + rank[case]["reduced"] for rank in ranks)
        assert moved == counts.moved
        assert sum(rank[case]["messages"] for rank in ranks) == counts.messages
    for dtype in ("float32", "int64", "complex64"):
        assert all(rank[dtype]["right"] for rank in ranks), dtype


@needs_mpi
@pytest.mark.parametrize(
    ("wrong", "words"),
    spread(
        [("shape", "has shape (3,)"), ("missing", "there is no file"),
         ("plan", "valid plan"), ("text", "not an array in numpy's format")], 1,
    ),
)  # fmt: skip
def test_files_that_are_wrong_end_all_ranks(tmp_path, wrong, words):
    """Wrong files end all ranks with one line, printed by rank 0."""
    einsum = KERNELS["1mm"]
    text = "{}" if wrong == "plan" else plan(einsum, processes=2).to_json()
    (tmp_path / "plan.json").write_text(text)
    for name, array in operands_of(einsum).items():
        np.save(tmp_path / f"{name}.npy", np.ones(3) if wrong == "shape" else array)
    if wrong == "missing":
        (tmp_path / "B.npy").unlink()
    if wrong == "text":
        (tmp_path / "B.npy").write_text("1 2 3")
    files = (str(tmp_path / "plan.json"), "--inputs", str(tmp_path))
    done = started(2, "feinsum.run", *files, "--output", str(tmp_path / "out.npy"))
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("feinsum:")]
    assert len(said) == 1
    assert words in said[0]


@needs_mpi
@pytest.mark.parametrize(("options", "is_error"), [(["--help"], False), ([], True)])
def test_the_usage_is_printed_once(options, is_error):
    """Every rank parses the same options; rank 0 alone prints what is wrong."""
    done = started(2, "feinsum.run", *options)
    assert (done.returncode != 0) is is_error
    printed = done.stderr if is_error else done.stdout
    assert printed.count("usage: python -m feinsum.run") == 1
    assert printed.count("error: ") == is_error


@needs_mpi
@pytest.mark.parametrize(
    ("name", "schedule", "n"),
    spread(
        [("paper", "dealt", 8), ("mttkrp-5-0", "deinsum", 6), ("total", "planned", 5),
         ("1mm", "2.5d", 8), ("1mm", "cannon", 4), ("same twice", "planned", 3)], 2,
    ),
)  # fmt: skip
def test_a_written_program_computes_the_same(tmp_path, name, schedule, n):
    """The written program computes the same with numpy and mpi4py alone."""
    einsum = KERNELS[name]
    made = (
        plan(einsum, processes=n)
        if schedule in ("planned", "dealt")
        else make_named_plan(schedule, einsum, processes=n)
    )
    made = with_cyclic(made, einsum.indices) if schedule == "dealt" else made
    operands = operands_of(einsum)
    for operand, array in operands.items():
        np.save(tmp_path / f"{operand}.npy", array)
    text = made.to_python()
    assert "import feinsum" not in text
    assert "from feinsum" not in text
    program = tmp_path / "program.py"
    program.write_text(text)
    run_command(MPIEXEC, "-n", n, sys.executable, program, tmp_path)
    assert (np.load(tmp_path / "out.npy") == by_numpy(einsum, operands)).all()
