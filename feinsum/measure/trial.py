"""Run kernels in turns on random arguments: recipes of an einsum, and whole kernels.

This module needs no code generator, so a process that only runs kernels starts fast.
"""

from __future__ import annotations

import ctypes
import fcntl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from feinsum.dtypes import is_inexact
from feinsum.errors import MeasurementError
from feinsum.measure.verdicts import (
    CompiledHostKernel,
    KernelComparison,
    RandomArgument,
    Verdict,
)
from feinsum.measure.verification import get_poison_value
from feinsum.records import OK
from feinsum.select import MIN_SAMPLES, sample_in_turns
from feinsum.targets.host.compiler import load_content
from feinsum.targets.host.kernel import HostKernel, start_pool

if TYPE_CHECKING:  # compiled kernels need no code generator
    from feinsum.targets.protocol import Timer

Array = np.ndarray[Any, np.dtype[Any]]

LONG_S = 2.0
"""Minimum time limit of one run of a given kernel, in seconds."""
BLOCK = 1 << 16
"""Entries that are random; larger arrays repeat them."""


def compare_kernels(comparison: KernelComparison, timing_lock: str = "") -> Verdict:
    """Run kernels on the same arrays, compare their results, and time them in turns.

    A very slow given kernel is abandoned: its only sample is then the time until that.

    Raises:
        BuildError, MeasurementError: what went wrong.
    """
    if comparison.pool:
        start_pool(Path(comparison.pool).read_bytes())
    baselines = sorted({g for g, _ in comparison.pairs})
    changed = sorted({k for _, k in comparison.pairs})
    with hold_lock(timing_lock, fcntl.LOCK_SH):
        bench = _Bench(comparison, comparison.arguments)
        first_s, results = bench.run_first(changed)
        # The kernels with recipes run first: their times determine how long to wait.
        limit_s = max(LONG_S, 20 * max(first_s.values()))
        seconds, expected = bench.run_first_within(limit_s, baselines[0])
        if seconds is None:
            return _report_endless(
                len(comparison.programs), baselines, limit_s, first_s
            )
        first_s |= {baselines[0]: seconds} | bench.run_first(baselines[1:])[0]
        right = {k for k in changed if _is_close(comparison, expected, results[k])}
        # A recipe may be right only at sizes that its tiles divide.
        for arguments in comparison.checked:
            other = _Bench(comparison, arguments)
            _, again = other.run_first([baselines[0], *right])
            right = {
                k for k in right if _is_close(comparison, again[baselines[0]], again[k])
            }
    samples: list[tuple[float, ...]] = [()] * len(comparison.programs)
    used = [k for k in range(len(samples)) if k in right or k in baselines]
    pairs = [(used.index(g), used.index(k)) for g, k in comparison.pairs if k in right]
    if pairs:
        with hold_lock(timing_lock, fcntl.LOCK_EX):
            timed = sample_in_turns(
                [partial(bench.run, k) for k in used],
                [first_s[k] for k in used],
                pairs,
            )
        for k, times in zip(used, timed, strict=True):
            samples[k] = tuple(times)
    return Verdict(OK, samples=tuple(samples))


def _is_close(
    comparison: KernelComparison,
    expected: Mapping[str, Array],
    results: Mapping[str, Array],
) -> bool:
    return compute_largest_difference(expected, results) <= comparison.tolerance


class _Bench:
    """The kernels of a comparison on one set of arrays."""

    def __init__(
        self, comparison: KernelComparison, arguments: Mapping[str, RandomArgument]
    ) -> None:
        values = {name: _make_value(name, item) for name, item in arguments.items()}
        self._values = values
        self._runs = [_make_run(item, values) for item in comparison.programs]
        self._written = [name for name, item in arguments.items() if item.is_written]
        self._initial = {
            name: values[name].copy()
            for name in self._written
            if arguments[name].is_read
        }

    def run_first(
        self, programs: Iterable[int]
    ) -> tuple[dict[int, float], dict[int, dict[str, Array]]]:
        """Run programs on poisoned outputs; the seconds and the results of each."""
        seconds, results = {}, {}
        for k in programs:
            self._restore(poison=True)
            seconds[k] = self._runs[k]()
            results[k] = self._copy_results()
        return seconds, results

    def run_first_within(
        self, limit_s: float, k: int
    ) -> tuple[float | None, dict[str, Array]]:
        """Run one program; None for its seconds if it does not end within the limit."""
        self._restore(poison=True)
        return _run_within(limit_s, self._runs[k]), self._copy_results()

    def run(self, k: int) -> float:
        """Time a program on arrays that are restored to their initial values."""
        self._restore()
        return self._runs[k]()

    def _copy_results(self) -> dict[str, Array]:
        return {name: self._values[name].copy() for name in self._written}

    def _restore(self, *, poison: bool = False) -> None:
        for name, array in self._initial.items():
            self._values[name][...] = array
        for name in self._written if poison else ():
            if name not in self._initial:
                array = self._values[name]
                array.fill(get_poison_value(array.dtype))


def compute_largest_difference(
    expected: Mapping[str, Array], results: Mapping[str, Array]
) -> float:
    """Return the largest difference, relative to the largest entry of its array.

    Non-finite entries must agree. The difference is infinite for integers that differ.
    """
    return max(
        (_compute_difference(right, results[name]) for name, right in expected.items()),
        default=0.0,
    )


def _compute_difference(expected: Array, computed: Array) -> float:
    if not is_inexact(expected.dtype):
        return 0.0 if np.array_equal(expected, computed) else np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], computed[~finite], equal_nan=True):
        return np.inf
    right, result = expected[finite], computed[finite]
    if not np.isfinite(result).all():
        return np.inf
    # Relative to the array: an entry near 0 may be the difference of large ones.
    scale = float(np.abs(right).max(initial=0.0)) or 1.0
    return float(np.abs(result - right).max(initial=0.0)) / scale


def _report_endless(
    n_programs: int,
    baselines: Sequence[int],
    limit_s: float,
    first_s: Mapping[int, float],
) -> Verdict:
    """Report a given kernel that still runs, in a thread, at its time limit."""
    samples: list[tuple[float, ...]] = [()] * n_programs
    for k in baselines:
        samples[k] = (limit_s,)
    for k, seconds in first_s.items():
        samples[k] = (seconds,) * MIN_SAMPLES
    return Verdict(OK, samples=tuple(samples))


def _run_within(limit_s: float, run: Callable[[], float]) -> float | None:
    """Time a run; None if it does not end within the limit."""
    seconds: list[float] = []
    # A thread, as code in C cannot be interrupted; this process ends soon anyway.
    thread = Thread(target=lambda: seconds.append(run()), daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return None
    if not seconds:
        raise MeasurementError("the given kernel cannot be run")
    return seconds[0]


def _make_value(name: str, argument: RandomArgument) -> Any:
    """Make an array of random numbers, or a scalar."""
    dtype = np.dtype(argument.dtype)
    if not argument.n_entries:
        return dtype.type(argument.value)
    # Seeded by the name: equal in every process, different for every argument.
    rng = np.random.default_rng(sum(map(ord, name)))
    if argument.below:
        # no cell has a vertex twice
        entries = rng.permutation(argument.below).astype(dtype)
    else:
        entries = draw_array(rng, (min(argument.n_entries, BLOCK),), dtype)
    return np.resize(entries, argument.n_entries)


def _make_run(
    program: CompiledHostKernel, values: Mapping[str, Any]
) -> Callable[[], float]:
    """Return a function that runs a program and returns its seconds."""
    if not program.function:
        library = load_content(Path(program.path).read_bytes())
        dtypes = ((name, np.dtype(x) if x else None) for name, x in program.arguments)
        launch = HostKernel(library, tuple(dtypes)).launch_of(values).run
    else:
        function = getattr(ctypes.CDLL(program.path), program.function)
        function.restype = None
        passed = [_convert_argument(values[name]) for name, _ in program.arguments]

        def launch() -> None:
            function(*passed)

    def run() -> float:
        start = perf_counter()
        launch()
        return perf_counter() - start

    return run


def _convert_argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())


@contextmanager
def hold_lock(path: str, kind: int) -> Iterator[None]:
    """Hold a lock: shared to compute, exclusive to time."""
    if not path:
        yield
        return
    with Path(path).open("ab") as file:  # closing it releases the lock
        fcntl.flock(file, kind)
        yield


class Timeable(Protocol):
    """A timeable kernel: :class:`feinsum.measure.BoundKernel`, or a stand-in."""

    @property
    def timer(self) -> Timer: ...

    def run(self, timer: Timer | None = None) -> float: ...


def choose_common_timer(kernels: Sequence[Timeable]) -> Timer:
    """Return the clock for kernels to compare: ``wall`` if their clocks differ."""
    timers = {kernel.timer for kernel in kernels}
    return timers.pop() if len(timers) == 1 else "wall"


def time_in_turns(
    kernel: Timeable, baseline: Timeable, baseline_s: float
) -> tuple[float, float]:
    """Time two kernels that ran before, in turns; the median seconds of each.

    Fewer rounds than by default: a recipe is compared with others of its einsum, and a
    whole kernel with it is timed again, beside the user's.

    Args:
        kernel: the kernel with the recipe.
        baseline: the kernel to compare it with.
        baseline_s: the time of the baseline's first run, in seconds.
    """
    timer = choose_common_timer((kernel, baseline))
    others_s, mine_s = sample_in_turns(
        [lambda: baseline.run(timer), lambda: kernel.run(timer)],
        (baseline_s, 0.0),
        [(0, 1)],
        budget_s=0.15,
        n_enough=12,
    )
    return median(mine_s), median(others_s)


INTERVAL = (0.5, 1.5)
"""Interval of random floating-point values: roots, logarithms, quotients are finite."""


def draw_array(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    interval: tuple[float, float] = INTERVAL,
) -> Array:
    """Draw a random array; of integers from 1 to 9 for such a dtype.

    Args:
        rng: the source of random numbers.
        shape: of the array.
        dtype: of the array.
        interval: of floating point values, of real and of imaginary parts.
    """
    match dtype.kind:
        case "c":
            real, imaginary = (rng.uniform(*interval, shape) for _ in range(2))
            return np.asarray(real + 1j * imaginary).astype(dtype)
        case "f" | "V":  # numpy has bfloat16 from another package
            return np.asarray(rng.uniform(*interval, shape)).astype(dtype)
        case "b":
            return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
        case _:
            return np.asarray(rng.integers(1, 10, shape)).astype(dtype)
