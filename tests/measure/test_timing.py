"""Timing: order of the runs, number of samples, caps, clocks. Nothing is timed:
the kernels are stand-ins that move a clock by hand.
"""

from __future__ import annotations

import loopy as lp
import pytest

from feinsum.errors import MeasurementError
from feinsum.ir import array, einsum
from feinsum.measure import (
    choose_common_timer,
    compile_kernel,
    interleave,
    measure_giga_op_rate,
    timeit,
)
from feinsum.select import MIN_SAMPLES


class Clock:
    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now


class FakeKernel:
    def __init__(self, name, clock, seconds, timer="opencl-profiling"):
        self.name, self.clock, self.seconds = name, clock, seconds
        self.timer = timer
        self.timers_used = set()

    def run(self, timer=None):
        self.clock.now += self.seconds
        self.clock.log.append(self.name)
        self.timers_used.add(timer)
        return self.seconds


def run(durations, **policy):
    """Interleave stand-ins of these durations; samples, and the runs by name."""
    clock = Clock()
    kernels = [FakeKernel(name, clock, s) for name, s in durations.items()]
    options = {"min_total_s": 0.0, "max_total_s": 1e9, **policy}
    return interleave(kernels, clock=clock, **options), "".join(clock.log)


def test_rounds_are_interleaved():
    """Warm-up and samples alike run A B C A B C; each kernel has all its samples."""
    samples, log = run({"A": 1.0, "B": 2.0, "C": 3.0}, rounds=4, warmup=2)
    assert log == "ABC" * 6
    assert samples == ((1.0,) * 4, (2.0,) * 4, (3.0,) * 4)


def test_least_total_time():
    """Rounds go on until the fastest kernel has run long enough, for all."""
    samples, log = run({"A": 1.0, "B": 4.0}, rounds=2, warmup=3, min_total_s=10.0)
    assert [len(s) for s in samples] == [10, 10]
    assert log == "AB" * 13


def test_slow_kernel_is_capped():
    """A kernel over its cap gets no more rounds; the others go on."""
    samples, _ = run({"A": 1.0, "B": 100.0}, rounds=20, warmup=1, max_total_s=450.0)
    assert [len(s) for s in samples] == [20, 5]


def test_cap_leaves_some_samples():
    """However slow, a kernel has one warm-up run and three samples."""
    samples, log = run({"A": 1.0, "B": 1e6}, rounds=20, warmup=5, max_total_s=50.0)
    assert len(samples[1]) == MIN_SAMPLES
    assert log.count("B") <= 2 + MIN_SAMPLES
    assert len(samples[0]) == 20


def test_first_run_may_compile():
    """The first run does not count towards the cap."""
    clock = Clock()
    kernel = FakeKernel("A", clock, 1.0)
    slow_first = iter([1000.0])

    def run_slow_first(timer=None):
        kernel.seconds = next(slow_first, 1.0)
        return FakeKernel.run(kernel, timer)

    kernel.run = run_slow_first
    (samples,) = interleave(
        [kernel], rounds=20, warmup=5, min_total_s=0.0, max_total_s=100.0, clock=clock
    )
    assert samples == (1.0,) * 20


def test_rotating_rounds_begin_with_the_next_kernel():
    """No kernel always follows the same one; the samples are those of the rounds."""
    samples, log = run({"A": 1.0, "B": 2.0}, rounds=4, warmup=1, is_rotating=True)
    assert log == "AB" + "AB" + "BA" + "AB" + "BA"
    assert samples == ((1.0,) * 4, (2.0,) * 4)


def test_a_kernel_can_take_part_in_some_rounds():
    """Once in the warm-up, and then in the rounds whose number ``every`` divides."""
    samples, log = run({"A": 1.0, "B": 9.0}, rounds=7, warmup=3, every=[1, 3])
    assert log == "ABAA" + "AB" + "AA" + "AB" + "AA" + "AB"
    assert [len(s) for s in samples] == [7, 3]


def test_one_clock_for_all():
    """If one kernel needs the wall clock, all are read from it."""
    clock = Clock()
    kernels = [FakeKernel("A", clock, 1.0), FakeKernel("B", clock, 1.0, "wall")]
    assert choose_common_timer(kernels) == "wall"
    assert choose_common_timer(kernels[:1]) == "opencl-profiling"
    interleave(kernels, rounds=3, warmup=1, clock=clock)
    assert kernels[0].timers_used == {"wall"}


def test_real_kernels(matvec, two_launches, device):
    """Real samples are positive, whichever the clock."""
    samples = timeit(matvec(), {"N": 10}, device=device, rounds=3, min_total_s=0.0)
    assert len(samples) == 3
    assert min(samples) > 0
    compiled = compile_kernel(two_launches(), device)
    assert compiled.built.n_launches == 2
    assert compiled.timer == "wall"
    samples = timeit(two_launches(), {}, rounds=3, min_total_s=0.0)
    assert min(samples) > 0


def test_a_negative_size_is_refused(matvec):
    with pytest.raises(MeasurementError, match="expected extents from 0"):
        timeit(matvec(), {"N": -1}, device="host")


def test_preprocessed_kernels_are_timed(matvec):
    """Loopy changes the target of a kernel only before preprocessing."""
    unit = matvec()
    for done in (
        lp.preprocess_program(unit),
        lp.linearize(lp.preprocess_program(unit)),
    ):
        samples = timeit(done, {"N": 10}, device="host", rounds=3, min_total_s=0.0)
        assert min(samples) > 0


def test_giga_op_rate(matvec, monkeypatch):
    """The rate is the einsum's count over the median time, by dtype."""
    module = "feinsum.measure.roofline.timeit"
    monkeypatch.setattr(module, lambda *_, **__: (2e-9, 1e-9, 9e-9))
    e = einsum("ij,ej->ei", array("D", (4, 4)), array("u", ("N", 4)))
    rate = measure_giga_op_rate(matvec(), e, {"N": 10})
    assert rate == {"<f8": pytest.approx((2 * 160 - 40) / 2)}
    renamed = einsum("ij,ej->ei", array("D", (4, 4)), array("u", ("Nel", 4)))
    with pytest.raises(MeasurementError, match="Nel"):
        measure_giga_op_rate(matvec(), renamed, {"N": 10})
    same = measure_giga_op_rate(matvec(), renamed, {"N": 10}, sizes={"Nel": 10})
    assert same == rate
