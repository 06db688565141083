"""The benchmark of agreement: what it tells of two winners, and that it runs."""

from __future__ import annotations

import json

import pytest

from benchmarks import agreement
from feinsum.errors import MeasurementError
from feinsum.records import TransformSpec
from tests.children import run_python

FIRST, SECOND = (TransformSpec("rowwise", 1, {"block": n}) for n in (32, 64))


def told(*samples_s, winners=(FIRST, SECOND)):
    return agreement.compare_samples("name", winners, samples_s)


def test_the_ratio_is_that_of_the_same_rounds():
    """A load that makes rounds slow drops out, and with it from the spread."""
    found = told([1.0, 8.0, 2.0, 1.0], [1.5, 12.0, 3.0, 1.5])
    assert (found.ratio, found.quartiles) == (1.5, (1.5, 1.5))
    assert found.times_s == (1.5, 2.25)
    assert told([1.0, 1.0, 1.0], [1.0, 1.1, 1.2]).quartiles == pytest.approx(
        (1.05, 1.15)
    )


@pytest.mark.parametrize(
    ("ratio", "is_within"),
    [(1.0, True), (1.029, True), (1 / 1.029, True), (1.031, False), (0.97, False)],
)
def test_winners_agree_within_three_percent_either_way(ratio, is_within):
    """It does not matter which of the two is the faster one."""
    assert told([1.0] * 4, [ratio] * 4).is_within is is_within


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "3", "3"],
        ["--rounds", "1"],
        ["--only", "nothing"],
        ["--trials", "3", "2", "1"],
    ],
)
def test_what_tells_nothing_is_refused(arguments, capsys):
    """Bad usage names the option, before anything is tuned."""
    with pytest.raises(SystemExit, match="2"):
        agreement.main(arguments)
    assert f"error: {arguments[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ends_with", "code"),
    [(KeyboardInterrupt(), 130), (MeasurementError("no recipe"), 1)],
    ids=["interrupt", "error"],
)
def test_what_was_found_before_an_early_end_is_shown(
    monkeypatch, capsys, ends_with, code
):
    """An interrupt ends the run, an error only its workload."""
    answers = iter([told([1.0, 1.0], [1.1, 1.1])])

    def measured(entry, options, on_step):
        on_step(0.5, "halfway")
        found = next(answers, None)
        if found is None:
            raise ends_with
        return found

    monkeypatch.setattr(agreement, "measure", measured)
    assert agreement.main(["--only", "gradient_b1_Ni(4|10)"]) == code
    shown = capsys.readouterr()
    assert "1.100" in shown.out
    assert "within 3%: 0 of 1" in shown.out
    assert ("no recipe" in shown.err) == (code == 1)


@pytest.mark.long
def test_a_small_workload_is_tuned_twice_and_compared():
    """From nothing to a ratio, as JSON."""
    words = ["benchmarks/agreement.py", "--only", "divergence_b1_Ni4", "--trials", "2"]
    words += ["--elements-scale", "0.002", "--rounds", "5", "--json"]
    told = json.loads(run_python(*words).stdout)
    (workload,) = told["workloads"]
    low, high = workload["quartiles"]
    assert 0 < low <= workload["ratio"] <= high
    assert len(workload["winners"]) == len(workload["times_s"]) == 2
    assert told["n_within"] == workload["is_within"]
    assert (told["failed"], told["seeds"]) == ({}, [0, 1])
