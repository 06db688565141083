"""How much faster a recipe is here, in a fraction of a second."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from feinsum.canonical import canonicalize
from feinsum.ir import array, einsum
from feinsum.measure import compile_kernel, footprint_bytes, open_device
from feinsum.measure.cases import make_case
from feinsum.measure.speedup import QUICK_BYTES, quick_sizes, race_of
from feinsum.measure.turns import (
    MIN_SAMPLES,
    MOST_ROUNDS,
    MOST_TIMES,
    QUICK_S,
    in_turns,
)

MATVEC = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))


class Clocked:
    """A kernel whose runs take given times."""

    timer = "wall"

    def __init__(self, *seconds: float) -> None:
        self._seconds = chain(seconds, repeat(seconds[-1]))
        self.n_runs = 0

    def run(self, timer=None) -> float:
        self.n_runs += 1
        return next(self._seconds)


def test_the_least_times_count():
    """Load of others makes single runs longer, and changes nothing."""
    kernel, baseline = Clocked(9.0, 1e-3, 9.0, 2e-3), Clocked(5e-3, 4e-3, 9.0)
    assert in_turns(kernel, baseline, 5e-3) == (1e-3, 4e-3)


def test_a_kernel_that_seems_slow_gets_more_time():
    """Then it is told for what it is."""
    late = Clocked(*[9.0] * MOST_ROUNDS, 1e-3)
    assert in_turns(late, Clocked(2e-3), 2e-3) == (1e-3, 2e-3)
    slow = Clocked(9.0)
    assert in_turns(slow, Clocked(2e-3), 2e-3) == (9.0, 2e-3)
    assert slow.n_runs <= MOST_ROUNDS * MOST_TIMES


@pytest.mark.parametrize(("baseline_s", "n"), [(3e-3, MIN_SAMPLES), (2.9e-3, None)])
def test_a_kernel_that_is_clearly_faster_needs_few_runs(baseline_s, n):
    """Three times as fast is clear; others run as often as there is time for."""
    kernel = Clocked(1e-3)
    assert in_turns(kernel, Clocked(baseline_s), baseline_s) == (1e-3, baseline_s)
    assert kernel.n_runs == (n or MOST_ROUNDS)


def test_a_long_baseline_runs_once():
    """It was run before, when it was verified."""
    kernel, baseline = Clocked(1e-3), Clocked(9.0)
    assert in_turns(kernel, baseline, 2 * QUICK_S) == (1e-3, 2 * QUICK_S)
    assert baseline.n_runs == 0


@pytest.mark.parametrize("n", [1, 100, 130_000, 10**9, None])
def test_sizes_are_near_those_of_the_kernel_and_small(n):
    """Powers of two; one that is not known is as long as time allows."""
    sizes = quick_sizes(MATVEC, {} if n is None else {"n": n})
    assert sizes["n"].bit_count() == 1
    assert footprint_bytes(MATVEC, sizes) <= QUICK_BYTES
    if n is not None and n < 100_000:
        assert n / 2 < sizes["n"] < 2 * n


def test_a_race_verifies_what_it_times():
    """Both kernels run at the sizes that are given, on the same arrays."""
    form = canonicalize(MATVEC).einsum
    (name,) = (x.name for x in form.size_params)
    opened = open_device()
    case = make_case(form, {name: 7})
    compiled = compile_kernel(case.t_unit, opened)
    least_s, baseline_s = race_of(compiled, case, {name: 64}, opened).run()
    assert least_s > 0
    assert baseline_s > 0
