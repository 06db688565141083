"""Trials in runs whose results are needed: who wins, and when that is known."""

from __future__ import annotations

import pytest

from feinsum.select import GAIN, MAX_ROUNDS, PairedTimes, find_fastest


def finish(trial, baseline_s, kernel_s):
    """Add times, one after the other, until the trial is over."""
    baseline, kernel = iter(baseline_s), iter(kernel_s)
    while not trial.is_over:
        trial.add(next(kernel if trial.is_kernels_turn else baseline))
    return trial


@pytest.mark.parametrize(
    ("ratio", "is_faster"), [(10.0, True), (1.5, True), (1.0, False), (0.2, False)]
)
def test_the_kernel_wins_if_it_is_certainly_faster(ratio, is_faster):
    """A tie leaves the baseline in its place."""
    trial = finish(PairedTimes(), [ratio] * 99, [1.0] * 99)
    assert trial.is_faster is is_faster
    assert len(trial.baseline_s) == len(trial.kernel_s) <= MAX_ROUNDS


def test_clear_results_end_a_trial_early():
    """Few runs are made by the slower way."""
    assert len(finish(PairedTimes(), [9.0] * 99, [1.0] * 99).kernel_s) < 8
    nearly = finish(PairedTimes(), [GAIN] * 99, [1.0] * 99)
    assert len(nearly.kernel_s) == MAX_ROUNDS


def test_first_rounds_do_not_count():
    """The first run of a kernel starts its threads."""
    trial = finish(PairedTimes(n_warmups=2), [2.0] * 99, [50.0, 50.0] + [1.0] * 99)
    assert trial.is_faster


def test_runs_that_others_disturbed_change_nothing():
    """Two of the kernel's took ten times as long."""
    times = [1.0, 10.0] * 2 + [1.0] * 99
    assert finish(PairedTimes(), [2.0] * 99, times).is_faster


def test_a_kernel_that_failed_loses():
    """At once, however fast it was."""
    trial = PairedTimes(baseline_s=[1.0], has_failed=True)
    assert trial.is_over
    assert not trial.is_faster


@pytest.mark.parametrize(
    ("baseline_s", "saved"), [(2.0, 0.5), (4.0, 0.75), (1.0, 0.0), (0.5, 0.0)]
)
def test_the_saved_share_of_the_time(baseline_s, saved):
    """A slower kernel saves nothing."""
    trial = finish(PairedTimes(), [baseline_s] * 99, [1.0] * 99)
    assert trial.saved == pytest.approx(saved)
    trial.has_failed = True
    assert trial.saved == 0.0


def test_the_fastest_run_is_found():
    """The first one stays unless another one certainly takes less time."""
    assert find_fastest([lambda: 1.0]) == 0
    assert find_fastest([lambda: 1.0, lambda: 1.0, lambda: 1.0]) == 0
    assert find_fastest([lambda: 3.0, lambda: 2.0, lambda: 1.0, lambda: 4.0]) == 2
