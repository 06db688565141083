"""The benchmark of whole processes: its programs, its table, and what fails."""

from __future__ import annotations

import json

import numpy as np
import opt_einsum
import pytest

import feinsum
from benchmarks.totals.calls import run_calls
from benchmarks.totals.networks import run_network
from benchmarks.totals.processes import Run
from benchmarks.totals.programs import PROGRAMS
from benchmarks.totals.summary import Result, WorstCall, compute_overhead_us
from tests.children import run_python
from tests.portions import spread

pytestmark = pytest.mark.usefixtures("usual_calls")


def results(program, einsum):
    """Of every call, with the subscripts."""
    found = []

    def compute(subscripts, *operands):
        value = einsum(subscripts, *operands)
        found.append((subscripts, np.asarray(value)))
        return value

    run_calls(program.make_calls(tiny=True), compute)
    return found


def by_numpy(subscripts, *operands):
    return np.einsum(subscripts, *operands, optimize=True)


@pytest.mark.parametrize("name", spread(PROGRAMS, 10))
def test_programs_compute_the_same_by_numpy_and_feinsum(name):
    """Call by call, each with the results of its own calls before."""
    rival = opt_einsum.contract if "numpy" in PROGRAMS[name].unfit else by_numpy
    expected = results(PROGRAMS[name], rival)
    found = results(PROGRAMS[name], feinsum.einsum)
    assert expected
    for (subscripts, one), (others, other) in zip(expected, found, strict=True):
        assert subscripts == others
        assert one.dtype == other.dtype
        single = one.dtype in (np.float16, np.float32, np.complex64)
        # Of results with cancellation only the largest entries are known well.
        scale = np.abs(one).max(initial=0)
        tolerance = 1e-2 if one.dtype == np.float16 else 1e-4 if single else 1e-9
        assert np.allclose(one, other, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("n", [8, 100])
def test_networks_can_be_contracted(n):
    """Every index is in two tensors, and intermediates are small."""
    subscripts, operands = next(run_network(n))
    terms = subscripts.removesuffix("->").split(",")
    assert len(terms) == len(operands) == n
    letters = "".join(terms)
    assert {letters.count(index) for index in letters} == {2}
    has_names = "torch" not in PROGRAMS[f"network-{n}"].unfit
    assert has_names == (len(set(letters)) <= 52)
    _, info = opt_einsum.contract_path(subscripts, *operands, optimize="greedy")
    assert info.largest_intermediate < 1e7


def of_calls(*pairs):
    """A run whose calls take so many of our seconds, and so many of numpy's."""
    calls = tuple((f"call {k}", ours) for k, (ours, _) in enumerate(pairs))
    return Run(1.0, 0.0, 1.0, len(pairs), 1, 1.0, calls, tuple(y for _, y in pairs))


def test_the_worst_call_is_not_the_first_and_has_an_allowance():
    """Of 200 microseconds; tiny calls have their overhead beside."""
    found = of_calls((9.0, 1e-6), (1e-4, 1e-6), (3e-3, 1e-3), (12e-6, 2e-6))
    worst = WorstCall.of(found)
    assert worst.subscripts == "call 2"
    assert worst.ratio == pytest.approx(2.8)
    assert compute_overhead_us(found) == pytest.approx(99.0)


def test_ratios_are_to_the_best_rival():
    """Of time and of memory apart; without one of both sides there is none."""

    def pair(total_s, peak_bytes):
        return (Run(total_s, 0.0, 1.0, 1, peak_bytes, 1.0),) * 2

    runs = {
        "numpy": pair(2.0, 10),
        "opt_einsum": pair(4.0, 5),
        "feinsum": pair(1.0, 20),
    }
    result = Result("", runs)
    assert result.time_ratio(0) == 0.5
    assert result.peak_ratio == 4.0
    assert result.time_ratio(2) is None  # nothing was tuned
    runs["feinsum"] += (Run(0.5, 0.0, 1.0, 1, 20, 1.0),)
    assert Result("", runs).time_ratio(2) == 0.25
    assert Result("", {"feinsum": pair(1.0, 1)}).time_ratio(1) is None


def command(*arguments, folder):
    words = "-m", "benchmarks.totals", "--tiny", "--rounds", "1", *arguments
    return run_python(*words, is_checked=False, PYTHONPATH=str(folder))


def test_a_table_and_a_file_have_every_contestant(tmp_path):
    """Of numpy there are no names for the indices of a long chain."""
    written = tmp_path / "totals.json"
    options = ["--only", "one-twice|chain-100", "--calls", "--output", written]
    contestants = ["--contestants", "numpy", "feinsum"]
    done = command(*options, *contestants, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"numpy {np.__version__}" in done.stdout
    rows = [x.split() for x in done.stdout.splitlines()]
    chain, *_ = (row for row in rows if row[:1] == ["chain-100"])
    assert chain[1] == "-"
    twice, *_ = (row for row in rows if row[:1] == ["one-twice"])
    assert all(float(number) > 0 for number in twice[1:])
    assert any(row[:2] == ["geometric", "mean"] for row in rows)
    document = json.loads(written.read_text())
    assert list(document["programs"]["chain-100"]) == ["feinsum"]
    ours = document["programs"]["one-twice"]["feinsum"]
    assert [len(ours[which]["numpy_s"]) for which in ("first", "second")] == [2, 2]
    assert document["failures"] == []


def test_a_child_that_fails_is_named(tmp_path):
    """Others go on; the exit status says that something failed."""
    (tmp_path / "torch.py").write_text("raise ImportError('out of order')\n")
    options = ["--only", "one-twice", "--contestants", "torch", "numpy"]
    done = command(*options, folder=tmp_path)
    assert done.returncode == 1
    assert "failed: one-twice by torch: exit code 1" in done.stderr
    assert "out of order" in done.stderr
    (row,) = [x.split() for x in done.stdout.splitlines() if "one-twice" in x]
    assert row[1] == "-"
    assert float(row[2]) > 0


@pytest.mark.long
def test_calls_are_tuned_before_a_third_process(tmp_path):
    """Ours has three processes, and the table its seconds."""
    written = tmp_path / "totals.json"
    options = ["--only", "one-twice", "--tune", "2", "--output", str(written)]
    done = command(*options, "--contestants", "numpy", "feinsum", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (program,) = json.loads(written.read_text())["programs"].values()
    assert [*program["numpy"]] == ["first", "second"]
    assert [*program["feinsum"]] == ["first", "second", "tuned"]
    assert "tuned:" in done.stdout
