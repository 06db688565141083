"""Kernels run in turns, until it is certain which is faster."""

from __future__ import annotations

from itertools import chain, repeat
from random import Random

import pytest

from feinsum.select import (
    BUDGET_S,
    ENOUGH_SAMPLES,
    FEW_SAMPLES,
    MAX_SAMPLES,
    MAX_SAMPLING_S,
    MIN_SAMPLES,
    compute_time_ratio,
    sample_in_turns,
)


class Clocked:
    """Kernels whose runs take given times, and a clock that they move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.n_runs: dict[str, int] = {}

    def run_of(self, name, *seconds):
        """A run that takes these times one after the other, then the last one."""
        times = chain(seconds, repeat(seconds[-1]))

        def run() -> float:
            self.n_runs[name] = self.n_runs.get(name, 0) + 1
            elapsed_s = next(times)
            self.now_s += elapsed_s
            return elapsed_s

        return run

    def ratio(self, baseline, kernel, first_s=(0.0, 0.0)):
        """How many times as fast the kernel is, in turns."""
        runs = self.run_of("baseline", *baseline), self.run_of("kernel", *kernel)
        clock = lambda: self.now_s  # noqa: E731
        return compute_time_ratio(
            *sample_in_turns(runs, first_s, [(0, 1)], clock=clock)
        )


def noisy(rng, seconds):
    """Times on a machine with other load: never shorter, sometimes much longer."""
    for k in range(10 * MAX_SAMPLES):
        burst = 20.0 if rng.random() < 0.15 else 1.0
        yield seconds * burst * (1 + 0.3 * rng.random() + 0.3 * (k // 7 % 2))


@pytest.mark.parametrize(
    ("gain", "is_faster"), [(0.3, False), (0.9, False), (1.0, False), (1.3, True),
                            (2.0, True), (10.0, True)]
)  # fmt: skip
def test_noise_does_not_decide(gain, is_faster):
    """Every time the same, for every sequence of disturbances of both kernels."""
    for seed in range(15):
        rng, clocked = Random(seed), Clocked()
        pair = noisy(rng, 1e-3), noisy(rng, 1e-3 / gain)
        assert clocked.ratio(*pair).is_faster == is_faster, seed


def test_a_tie_is_no_gain():
    """A kernel that is as fast, or gains less than it has to, takes no other's place;
    one that gains little but surely does.
    """
    assert not Clocked().ratio((1e-3,), (1e-3,)).is_faster
    assert not Clocked().ratio((1e-3,), (1e-3 / 1.04,)).is_faster
    assert Clocked().ratio((1e-3,), (1e-3 / 1.06,)).is_faster


def test_rounds_end_when_it_is_certain():
    """A clear difference needs few rounds, a close one more, a tie all the time."""
    rounds = []
    for kernel_s in ([1e-4], [7e-4], [9e-4, 1e-3] * MAX_SAMPLES):
        clocked = Clocked()
        clocked.ratio((1e-3,), kernel_s)
        rounds.append(clocked.n_runs["kernel"])
        assert clocked.n_runs["baseline"] == rounds[-1]
        assert clocked.now_s <= 1.1 * BUDGET_S
    assert rounds[0] == FEW_SAMPLES < rounds[1] < rounds[2]


def test_one_disturbed_round_does_not_end_it():
    """One time of a thousand does not make a kernel slow, or fast."""
    assert Clocked().ratio((1e-3,), (1.0, 1.0, 1e-4)).is_faster
    assert not Clocked().ratio((1.0, 1.0, 1e-3), (1e-3,)).is_faster


def test_a_long_run_is_not_repeated_where_others_are_clearly_faster():
    """Else it is: one run of a kernel is no comparison."""
    clocked = Clocked()
    assert clocked.ratio((60.0,), (1e-3,), first_s=(60.0, 1e-3)).is_faster
    assert clocked.n_runs == {"kernel": FEW_SAMPLES}
    close = Clocked()
    close.ratio((1.0,), (0.9,), first_s=(1.0, 0.3))
    assert close.n_runs["baseline"] >= MIN_SAMPLES


def test_every_kernel_goes_first_in_turn():
    """None always finds the caches as the same other one left them."""
    order = []
    runs = [lambda k=k: order.append(k) or 1e-3 for k in range(3)]
    sample_in_turns(runs, (0.0,) * 3, [(0, 1), (0, 2)], budget_s=0.0, n_enough=3)
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1]


def count_rounds(seconds: float) -> int:
    """Return the rounds of two kernels of which either is faster in every other one."""
    clocked = Clocked()
    kernel = [0.9 * seconds, 1.1 * seconds] * MAX_SAMPLES
    clocked.ratio((seconds,), kernel, first_s=(seconds, seconds))
    return clocked.n_runs["kernel"]


@pytest.mark.parametrize(
    ("seconds", "n_rounds"),
    [
        # the budget allows more than the maximum
        (BUDGET_S / 2 / MAX_SAMPLES / 10, MAX_SAMPLES),
        # it allows more than enough, with two runs a round
        (BUDGET_S / 2 / 39.5, 40),
        # enough rounds are run beyond the budget
        (BUDGET_S / 2 / 10, ENOUGH_SAMPLES),
        # but not beyond the limit
        (MAX_SAMPLING_S / 2 / 9.5, 10),
        (MAX_SAMPLING_S, MIN_SAMPLES),
    ],
)
def test_uncertain_comparisons_take_the_time_that_they_may(seconds, n_rounds):
    assert count_rounds(seconds) == n_rounds


def test_two_long_runs_are_repeated_alike():
    """A first run decides nothing if both are long."""
    clocked = Clocked()
    clocked.ratio((9.0,), (1.0,), first_s=(9.0, 1.0))
    assert clocked.n_runs["baseline"] == clocked.n_runs["kernel"] >= MIN_SAMPLES
