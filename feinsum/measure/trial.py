"""Verifying and timing host kernels that are already compiled.

Nothing here needs the code generator, so a process that only does this starts at once.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.ir import BatchedEinsum, evaluate, from_text, shape_at
from feinsum.measure.question import Comparison, Program, Trial, Verdict
from feinsum.measure.verification import Verifiable, poison_value, verify
from feinsum.records import OK
from feinsum.select import sample_in_turns
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
