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
from feinsum.select import Trial

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
class Race(Generic[T]):
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
    copied: Callable[[T], T] = lambda given: given
    kernel: Kernel[T] | None = None
    trial: Trial = field(default_factory=lambda: Trial(n_warmups=N_WARMUPS))
    is_over: bool = False
    _waited_s: float = 0.0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def run(self, given: T, plain: Callable[[], Results]) -> Results:
        """Compute the results, by the way that is or may be the better one."""
        if self.is_over and self.kernel is not None:
            return self.kernel(given)
        if self.is_over or not self._lock.acquire(blocking=False):
            return plain()
        try:
            return self._turn(given, plain)
        finally:
            self._lock.release()

    def _turn(self, given: T, plain: Callable[[], Results]) -> Results:
        if self.kernel is not None:
            return self._timed(self.kernel, given, plain)
        if self._waited_s <= self.least_s:
            begun_s = perf_counter()
            results = plain()
            self._waited_s += perf_counter() - begun_s
            return results
        kept = self.copied(given)
        results = plain()
        self.kernel = self._checked(kept, results)
        self.is_over = self.kernel is None
        return results

    def _timed(
        self, kernel: Kernel[T], given: T, plain: Callable[[], Results]
    ) -> Results:
        is_kernels = self.trial.is_kernels_turn
        begun_s = perf_counter()
        try:
            results = kernel(given) if is_kernels else plain()
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

    def _checked(self, given: T, right: Results) -> Kernel[T] | None:
        """The kernel, if it can be built and computes the same."""
        try:
            kernel = self.build()
            found = kernel(given)
        except FeinsumError as error:
            logger.info("not fused: %s", error)
            return None
        except Exception:  # no kernel may break a program
            logger.exception("not fused")
            return None
        for name, results in right.items():
            if not _are_close(found[name], results):
                logger.warning(
                    "the fused kernel of %s gives different results: not used", name
                )
                return None
        return kernel


def _are_close(found: Array, right: Array) -> bool:
    """Whether results differ by no more than another order of sums makes."""
    is_finite = np.isfinite(right)
    if not np.array_equal(found[~is_finite], right[~is_finite], equal_nan=True):
        return False
    scale = np.abs(right[is_finite]).max(initial=0.0)
    error = np.abs(found[is_finite] - right[is_finite]).max(initial=0.0)
    return bool(error <= TOLERANCE[right.dtype.char] * scale)


def kept_race(key: Hashable, build: Callable[[], Kernel[T]]) -> Race[T]:
    """The race with a key, kept until :func:`feinsum.calling.clear_call_cache`."""
    from feinsum.calling.kernel_cache import Calls  # plans are read without it

    found: Race[T] = remembered(Calls).fused.get(key, lambda: Race(build))
    return found
