"""Timing whole kernels in turns, on random arguments: the user's, and others for it.

Nothing here needs the code generator; see :mod:`feinsum.measure.trial`.
"""

from __future__ import annotations

import ctypes
import fcntl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.measure.question import Argument, KernelComparison, Program, Verdict
from feinsum.measure.trial import drawn, loaded, locked
from feinsum.measure.verification import poison_value
from feinsum.records import OK
from feinsum.select import MIN_SAMPLES, sample_in_turns
from feinsum.targets.host.kernel import start_pool

Array = np.ndarray[Any, np.dtype[Any]]

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
    values = _values(asked.arguments)
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


def _values(arguments: Mapping[str, Argument]) -> dict[str, Any]:
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
