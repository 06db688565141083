"""Verifying and timing host kernels that are already compiled; whole ones in turns.

Nothing here needs the code generator, so a process that only does this starts at once.
"""

from __future__ import annotations

import ctypes
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.ir import BatchedEinsum, evaluate, from_text, shape_at
from feinsum.measure.question import (
    Argument,
    Comparison,
    KernelComparison,
    Program,
    Trial,
    Verdict,
)
from feinsum.measure.verification import Verifiable, poison_value, verify
from feinsum.records import OK
from feinsum.select import MIN_SAMPLES, sample_in_turns
from feinsum.targets.host.kernel import HostKernel, Launch, start_pool

if TYPE_CHECKING:
    from feinsum.targets.protocol import Timer

Array = np.ndarray[Any, np.dtype[Any]]


def judge_trial(trial: Trial, timing_lock: str = "") -> Verdict:
    """Compare a recipe with numpy, and time it against the untransformed kernel.

    Raises:
        BuildError, MeasurementError, WrongResultError: what went wrong.
    """
    start_pool(Path(trial.pool).read_bytes())
    with locked(timing_lock, fcntl.LOCK_SH):
        kernels = [_compared(one) for one in trial.compared]
        race = _race(trial, kernels[-1])
    with locked(timing_lock, fcntl.LOCK_EX):
        mine_s, others_s = race.run()
    sizes = trial.timed.values
    return Verdict(OK, least_s=mine_s, baseline_s=others_s, sizes=sizes)


@contextmanager
def locked(path: str, kind: int) -> Iterator[None]:
    """Computing takes a shared lock; timing takes it exclusively."""
    if not path:
        yield
        return
    with Path(path).open("ab") as file:  # closing it releases the lock
        fcntl.flock(file, kind)
        yield


@dataclass(frozen=True)
class _Run:
    """A kernel on arrays; see :class:`feinsum.measure.BoundKernel`."""

    launch: Launch
    outputs: Mapping[str, Array]

    timer: Timer = "wall"

    def run(self, _timer: Timer | None = None) -> float:
        start = perf_counter()
        self.launch.run()
        return perf_counter() - start

    def poison(self) -> None:
        for array in self.outputs.values():
            array.fill(poison_value(array.dtype))

    def read(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.outputs.items()}


def _compared(one: Comparison) -> HostKernel:
    """The kernel, whose results are right in all cases.

    Raises:
        MeasurementError, WrongResultError: if they are not.
    """
    einsum, kernel = from_text(one.einsum), loaded(one.program)
    for case in one.cases:
        values, outputs = _values(einsum, one.outputs, case.values)
        run = _Run(kernel.launch_of(values), outputs)
        operands = {op.name: values[op.name] for op in einsum.operands}
        right = evaluate(einsum, operands, optimize=True)
        if not all(np.isfinite(result).all() for result in right):
            raise MeasurementError(
                f"the reference result of {einsum.subscripts} is not finite"
            )
        expected = dict(zip(one.outputs, right, strict=True))
        try:
            verify(run, expected, tolerance=case.tolerance)
        except WrongResultError as error:
            where = f"at the sizes {dict(case.values)}"
            raise WrongResultError(f"{where}: {error}") from None
    return kernel


def _race(trial: Trial, kernel: HostKernel) -> Race:
    """Both kernels on the same arrays, so that both find the caches alike."""
    last = trial.compared[-1]
    sizes, einsum = trial.timed.values, from_text(last.einsum)
    values, outputs = _values(einsum, last.outputs, sizes)
    mine, baseline = (
        _Run(one.launch_of(values), outputs) for one in (kernel, loaded(trial.baseline))
    )
    return Race(mine, baseline, sizes, trial.timed.tolerance)


def _values(
    einsum: BatchedEinsum, outputs: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """A value for every argument, and the results among them."""
    rng = np.random.default_rng(0)
    operands = {
        op.name: drawn(rng, shape_at(op.shape, sizes), op.dtype)
        for op in einsum.operands
    }
    shape = shape_at(einsum.output_shape, sizes)
    results = {
        name: np.zeros(shape, dtype)
        for name, dtype in zip(outputs, einsum.output_dtypes, strict=True)
    }
    return {**sizes, **operands, **results}, results


def loaded(program: Program) -> HostKernel:
    """The kernel of a program.

    Raises:
        BuildError: if it cannot be loaded.
    """
    arguments = (
        (name, np.dtype(dtype) if dtype else None) for name, dtype in program.arguments
    )
    return HostKernel.loaded(Path(program.path).read_bytes(), tuple(arguments))


QUICK_S, QUICK_SAMPLES = 0.15, 12
"""Less than by default: a recipe is compared with others of its einsum, too."""


class Timeable(Protocol):
    """A timeable kernel: :class:`feinsum.measure.BoundKernel`, or a stand-in."""

    @property
    def timer(self) -> Timer: ...

    def run(self, timer: Timer | None = None) -> float: ...


class Racer(Timeable, Verifiable, Protocol):
    """Anything that can be timed and verified."""


def common_timer(kernels: Sequence[Timeable]) -> Timer:
    """The common clock of kernels to compare: ``wall`` if their clocks differ."""
    timers = {kernel.timer for kernel in kernels}
    return timers.pop() if len(timers) == 1 else "wall"


@dataclass(frozen=True)
class Race:
    """A recipe and the untransformed kernel, ready to run.

    Attributes:
        tolerance: tolerance for the results, which are compared first.
    """

    kernel: Racer
    baseline: Racer
    sizes: Mapping[str, int]
    tolerance: float

    def run(self) -> tuple[float, float]:
        """The times of the recipe and of the untransformed kernel, in seconds.

        Raises:
            MeasurementError: if one of them cannot run.
            WrongResultError: if they disagree.
        """
        baseline_s = self.baseline.run()
        try:
            verify(self.kernel, self.baseline.read(), tolerance=self.tolerance)
        except WrongResultError as error:
            where = f"at the sizes {dict(self.sizes)}"
            raise WrongResultError(f"{where}: {error}") from None
        return in_turns(self.kernel, self.baseline, baseline_s)


def in_turns(
    kernel: Timeable, baseline: Timeable, baseline_s: float
) -> tuple[float, float]:
    """The median times of two kernels that ran before; see :func:`sample_in_turns`.

    Few rounds: a whole kernel with a recipe is timed again, beside the user's.

    Args:
        baseline_s: the time of the baseline's first run.
    """
    timer = common_timer((kernel, baseline))
    others_s, mine_s = sample_in_turns(
        [lambda: baseline.run(timer), lambda: kernel.run(timer)],
        (baseline_s, 0.0),
        [(0, 1)],
        budget_s=QUICK_S,
        n_enough=QUICK_SAMPLES,
    )
    return median(mine_s), median(others_s)


INTERVAL = (0.5, 1.5)
"""Where floating point values are drawn from: roots, logarithms and quotients of these
are finite."""

_INTEGERS = 10


def drawn(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    interval: tuple[float, float] = INTERVAL,
) -> Array:
    """An array, of integers from 1 to 9 where it is one of these.

    Args:
        interval: of floating point values, of real and of imaginary parts.
    """
    match dtype.kind:
        case "c":
            real, imaginary = (rng.uniform(*interval, shape) for _ in range(2))
            return np.asarray(real + 1j * imaginary).astype(dtype)
        case "f":
            return np.asarray(rng.uniform(*interval, shape)).astype(dtype)
        case "b":
            return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
        case _:
            return np.asarray(rng.integers(1, _INTEGERS, shape)).astype(dtype)


PATIENCE_S = 2.0
"""How long a given kernel may take for one run, if nothing else takes that long."""

PATIENCE = 20.0
"""The same, in times of the slowest kernel with recipes."""

BLOCK = 1 << 16
"""Entries that are random; larger arrays repeat them."""


def compare_kernels(asked: KernelComparison, timing_lock: str = "") -> Verdict:
    """Run kernels on the same arrays, compare their results, and time them in turns.

    A given kernel that takes very long is not waited for: then its one sample is the
    time after which the process gave up.

    Raises:
        BuildError, MeasurementError: what went wrong.
    """
    if asked.pool:
        start_pool(Path(asked.pool).read_bytes())
    values = _argument_values(asked.arguments)
    runs = [_run_of(one, values) for one in asked.programs]
    given = sorted({g for g, _ in asked.pairs})
    changed = sorted({k for _, k in asked.pairs})
    restore, written = _restorer(asked.arguments, values)
    with locked(timing_lock, fcntl.LOCK_SH):
        results: dict[int, dict[str, Array]] = {}
        first_s = [0.0] * len(runs)
        for k in changed:
            restore(poison=True)
            first_s[k] = runs[k]()
            results[k] = {name: values[name].copy() for name in written}
        restore(poison=True)
        patience_s = max(PATIENCE_S, PATIENCE * max(first_s[k] for k in changed))
        seconds = _within(patience_s, runs[given[0]])
        if seconds is None:
            return _without_an_end(runs, given, changed, patience_s, first_s)
        first_s[given[0]] = seconds
        expected = {name: values[name].copy() for name in written}
        for k in given[1:]:
            restore(poison=True)
            first_s[k] = runs[k]()
    right = {
        k
        for k in changed
        if largest_difference(expected, results[k]) <= asked.tolerance
    }
    used = [k for k in range(len(runs)) if k in right or k in given]
    pairs = [(used.index(g), used.index(k)) for g, k in asked.pairs if k in right]
    samples: list[tuple[float, ...]] = [()] * len(runs)
    if pairs:

        def after_restoring(run: Callable[[], float]) -> Callable[[], float]:
            def restored() -> float:
                restore()
                return run()

            return restored

        with locked(timing_lock, fcntl.LOCK_EX):
            timed = sample_in_turns(
                [after_restoring(runs[k]) for k in used],
                [first_s[k] for k in used],
                pairs,
            )
        for k, some in zip(used, timed, strict=True):
            samples[k] = tuple(some)
    return Verdict(OK, samples=tuple(samples))


def largest_difference(
    expected: Mapping[str, Array], found: Mapping[str, Array]
) -> float:
    """The largest one, relative to the largest finite entry of an array.

    Entries that are not finite have to be the same. Infinite for integers that differ.
    """
    return max(
        (_difference(right, found[name]) for name, right in expected.items()),
        default=0.0,
    )


def _difference(expected: Array, found: Array) -> float:
    if expected.dtype.kind not in "fc":
        return 0.0 if np.array_equal(expected, found) else np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return np.inf
    right, result = expected[finite], found[finite]
    if not np.isfinite(result).all():
        return np.inf
    scale = float(np.abs(right).max(initial=0.0)) or 1.0
    return float(np.abs(result - right).max(initial=0.0)) / scale


def _without_an_end(
    runs: Sequence[Callable[[], float]],
    given: Sequence[int],
    changed: Sequence[int],
    patience_s: float,
    first_s: Sequence[float],
) -> Verdict:
    """The given kernel still runs, in a thread that ends with this process."""
    samples: list[tuple[float, ...]] = [()] * len(runs)
    for k in given:
        samples[k] = (patience_s,)
    for k in changed:
        samples[k] = (first_s[k],) * MIN_SAMPLES
    return Verdict(OK, samples=tuple(samples))


def _within(limit_s: float, run: Callable[[], float]) -> float | None:
    """The seconds of a run; None if it has not ended by then."""
    seconds: list[float] = []
    thread = Thread(target=lambda: seconds.append(run()), daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return None
    if not seconds:
        raise MeasurementError("the given kernel cannot be run")
    return seconds[0]


def _argument_values(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    return {name: _value(name, one) for name, one in arguments.items()}


def _value(name: str, one: Argument) -> Any:
    """An array of random numbers, or a scalar."""
    dtype = np.dtype(one.dtype)
    if not one.n_entries:
        return dtype.type(one.value)
    rng = np.random.default_rng(sum(map(ord, name)))
    if one.below:
        # no cell has a vertex twice
        entries = rng.permutation(one.below).astype(dtype)
    else:
        entries = drawn(rng, (min(one.n_entries, BLOCK),), dtype)
    return np.resize(entries, one.n_entries)


def _restorer(
    arguments: Mapping[str, Argument], values: Mapping[str, Any]
) -> tuple[Callable[..., None], list[str]]:
    """A function that sets what kernels write to what it was, and what they write."""
    written = [name for name, one in arguments.items() if one.is_written]
    initial = {name: values[name].copy() for name in written if arguments[name].is_read}

    def restore(*, poison: bool = False) -> None:
        for name, array in initial.items():
            values[name][...] = array
        for name in written if poison else ():
            if name not in initial:
                values[name].fill(poison_value(values[name].dtype))

    return restore, written


def _run_of(program: Program, values: Mapping[str, Any]) -> Callable[[], float]:
    """A run of a program, which returns its seconds."""
    if not program.function:
        launch = loaded(program).launch_of(values).run
    else:
        function = getattr(ctypes.CDLL(program.path), program.function)
        function.restype = None
        passed = [_passed(values[name]) for name, _ in program.arguments]

        def launch() -> None:
            function(*passed)

    def run() -> float:
        start = perf_counter()
        launch()
        return perf_counter() - start

    return run


def _passed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())
