"""How much faster a recipe is here, in a fraction of a second."""

from __future__ import annotations

from itertools import chain, repeat
from random import Random

import pytest

from feinsum.canonical import canonicalize
from feinsum.ir import array, einsum
from feinsum.measure import compile_kernel, count_footprint_bytes, open_device, verify
from feinsum.measure.cases import make_case
from feinsum.measure.judging import QUICK_BYTES, bind_pair, choose_quick_sizes
from feinsum.measure.trial import time_in_turns
from feinsum.select import (
    BUDGET_S,
    FEW_SAMPLES,
    MAX_SAMPLES,
    MIN_SAMPLES,
    compute_time_ratio,
    sample_in_turns,
)

MATVEC = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))


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


@pytest.mark.parametrize("n", [1, 100, 130_000, 10**9, None])
def test_sizes_are_near_those_of_the_kernel_and_small(n):
    """Powers of two; one that is not known is as long as time allows."""
    sizes = choose_quick_sizes(MATVEC, {} if n is None else {"n": n})
    assert sizes["n"].bit_count() == 1
    assert count_footprint_bytes(MATVEC, sizes) <= QUICK_BYTES
    if n is not None and n < 100_000:
        assert n / 2 < sizes["n"] < 2 * n


def test_a_race_verifies_what_it_times():
    """Both kernels run at the sizes that are given, on the same arrays."""
    form = canonicalize(MATVEC).einsum
    (name,) = (x.name for x in form.size_params)
    opened = open_device()
    case = make_case(form, {name: 7})
    compiled = compile_kernel(case.t_unit, opened)
    kernel, baseline, tolerance = bind_pair(compiled, form, {name: 64}, opened)
    first_s = baseline.run()
    verify(kernel, baseline.read(), tolerance=2 * tolerance)
    least_s, baseline_s = time_in_turns(kernel, baseline, first_s)
    assert least_s > 0
    assert baseline_s > 0
