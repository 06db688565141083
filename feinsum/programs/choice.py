"""Two ways to compute the same, the faster of which is found while it is used.

The first runs are statement by statement. Once these have taken some time, the other
way, a kernel, is built, and its results are compared. Both ways then take turns until
it is known which is faster.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np

from feinsum.errors import FeinsumError
from feinsum.memory import remembered
from feinsum.select import PairedTimes

logger = logging.getLogger(__name__)

N_WARMUPS = 3
"""First turns, which do not count: in these, code and memory are new, and stages and
calls are still looking for their own best ways."""
TOLERANCE = {"f": 1e-4, "d": 1e-10}
"""Allowed difference of two orders of a sum, over the largest entry, by dtype."""

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]
Results = dict[str, Array]
Kernel = Callable[[T], Results]


@dataclass(eq=False)
class KernelChoice(Generic[T]):
    """Two ways to compute the same: by one kernel, or statement by statement.

    Attributes:
        build: builds the kernel, a function of what is given to a run.
        least_s: seconds of runs statement by statement before the kernel is built.
        copied: copies what is given, if either way overwrites it.
        kernel: the built kernel; None before that, and if it is unusable.
        trial: times of the kernel, and statement by statement.
        is_over: whether the better way is known.
    """

    build: Callable[[], Kernel[T]]
    least_s: float = 0.0
    copied: Callable[[T], T] = lambda arguments: arguments
    kernel: Kernel[T] | None = None
    trial: PairedTimes = field(default_factory=lambda: PairedTimes(n_warmups=N_WARMUPS))
    is_over: bool = False
    _waited_s: float = 0.0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def run(self, arguments: T, plain: Callable[[], Results]) -> Results:
        """Compute the results, by the way that is or may be the better one."""
        if self.is_over and self.kernel is not None:
            return self.kernel(arguments)
        # one thread times at a time: others would disturb it
        if self.is_over or not self._lock.acquire(blocking=False):
            return plain()
        try:
            return self._turn(arguments, plain)
        finally:
            self._lock.release()

    def _turn(self, arguments: T, plain: Callable[[], Results]) -> Results:
        if self.kernel is not None:
            return self._timed(self.kernel, arguments, plain)
        # a kernel that runs once is not worth its compilation
        if self._waited_s <= self.least_s:
            begun_s = perf_counter()
            results = plain()
            self._waited_s += perf_counter() - begun_s
            return results
        # the plain way may overwrite what the kernel is to read
        copies = self.copied(arguments)
        results = plain()
        self.kernel = self._checked(copies, results)
        self.is_over = self.kernel is None
        return results

    def _timed(
        self, kernel: Kernel[T], arguments: T, plain: Callable[[], Results]
    ) -> Results:
        is_kernels = self.trial.is_kernels_turn
        begun_s = perf_counter()
        try:
            results = kernel(arguments) if is_kernels else plain()
        except FeinsumError as error:
            if not is_kernels:
                raise
            logger.info("not fused: %s", error)
            self.kernel, self.is_over = None, True
            return plain()
        self.trial.add(perf_counter() - begun_s)
        self.is_over = self.trial.is_over
        if self.is_over and not self.trial.is_faster:
            self.kernel = None
        return results

    def _checked(self, arguments: T, expected: Results) -> Kernel[T] | None:
        """Return the kernel, if it can be built and computes the same."""
        try:
            kernel = self.build()
            results = kernel(arguments)
        except FeinsumError as error:
            logger.info("not fused: %s", error)
            return None
        except Exception:  # no kernel may break a program
            logger.exception("not fused")
            return None
        # results of the program itself are the reference
        for name, values in expected.items():
            if not _are_close(results[name], values):
                logger.warning(
                    "the fused kernel of %s gives different results: not used", name
                )
                return None
        return kernel


def _are_close(values: Array, expected: Array) -> bool:
    """Return whether results differ by no more than another order of sums makes."""
    # infinities and NaN must agree exactly
    is_finite = np.isfinite(expected)
    if not np.array_equal(values[~is_finite], expected[~is_finite], equal_nan=True):
        return False
    # relative to the largest entry: small ones may be differences of large ones
    scale = np.abs(expected[is_finite]).max(initial=0.0)
    error = np.abs(values[is_finite] - expected[is_finite]).max(initial=0.0)
    return bool(error <= TOLERANCE[expected.dtype.char] * scale)


def shared_choice(key: Hashable, build: Callable[[], Kernel[T]]) -> KernelChoice[T]:
    """Return the choice of a key; :func:`feinsum.calling.clear_call_cache` drops it."""
    from feinsum.calling.kernel_cache import Calls  # plans are read without it

    choice: KernelChoice[T] = remembered(Calls).fused.get(
        key, lambda: KernelChoice(build)
    )
    return choice
