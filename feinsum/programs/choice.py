"""The choice between a kernel and statements that compute the same results.

The first runs are statement by statement. Once these have taken some time, the kernel
is built, and its results are compared. Then both are run in turn until their times show
which one is faster::

    runs     s s s ... s   build, compare   k s k s ... k s   k k k k ...
                                            timed             the faster one

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
from feinsum.memory import get_remembered
from feinsum.select import PairedTimes

logger = logging.getLogger(__name__)

N_WARMUPS = 3
"""Number of first runs that are not timed.

In these, caches are cold, and stages and calls still make choices of their own.
"""

TOLERANCE = {"f": 1e-4, "d": 1e-10}
"""Allowed difference of two orders of a sum, over the largest entry, by dtype."""

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]
Results = dict[str, Array]
Kernel = Callable[[T], Results]


@dataclass(eq=False)
class KernelChoice(Generic[T]):
    """The choice between one kernel and the statements that compute the same results.

    Attributes:
        build: builds the kernel, a function of the arguments of a run.
        least_s: seconds that runs by statements take before the kernel is built.
        copied: copies the arguments, if kernel or statements overwrite them.
        kernel: the kernel; None before it is built, and if it is not used.
        trial: times of the kernel and of the statements.
        is_over: whether the choice is final.
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
        """Compute the results by the kernel, or statement by statement by ``plain``."""
        if self.is_over and self.kernel is not None:
            return self.kernel(arguments)
        # one thread takes times; concurrent calls just compute
        if self.is_over or not self._lock.acquire(blocking=False):
            return plain()
        try:
            return self._take_turn(arguments, plain)
        finally:
            self._lock.release()

    def _take_turn(self, arguments: T, plain: Callable[[], Results]) -> Results:
        if self.kernel is not None:
            return self._run_timed(self.kernel, arguments, plain)
        # compilation pays off only for code that runs long enough
        if self._waited_s <= self.least_s:
            begun_s = perf_counter()
            results = plain()
            self._waited_s += perf_counter() - begun_s
            return results
        # statements may overwrite the kernel's operands
        copies = self.copied(arguments)
        results = plain()
        self.kernel = self._build_checked(copies, results)
        self.is_over = self.kernel is None
        return results

    def _run_timed(
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

    def _build_checked(self, arguments: T, expected: Results) -> Kernel[T] | None:
        """Build the kernel; None if that fails or its results differ."""
        try:
            kernel = self.build()
            results = kernel(arguments)
        except FeinsumError as error:
            logger.info("not fused: %s", error)
            return None
        except Exception:  # a defect of a kernel must not break a program
            logger.exception("not fused")
            return None
        # the results of the statements are the reference
        for name, values in expected.items():
            if not _are_close(results[name], values):
                logger.warning(
                    "the fused kernel of %s gives different results: not used", name
                )
                return None
        return kernel


def _are_close(values: Array, expected: Array) -> bool:
    """Return whether results differ by no more than the rounding of reordered sums."""
    # infinities and NaN must agree exactly
    is_finite = np.isfinite(expected)
    if not np.array_equal(values[~is_finite], expected[~is_finite], equal_nan=True):
        return False
    # relative to the largest entry, because small ones may suffer from cancellation
    scale = np.abs(expected[is_finite]).max(initial=0.0)
    error = np.abs(values[is_finite] - expected[is_finite]).max(initial=0.0)
    return bool(error <= TOLERANCE[expected.dtype.char] * scale)


def get_shared_choice(
    key: Hashable, make: Callable[[], KernelChoice[T]]
) -> KernelChoice[T]:
    """Return the choice of a key, until :func:`feinsum.calling.clear_call_cache`."""
    from feinsum.calling.kernel_cache import Calls  # plans are read without it

    choice: KernelChoice[T] = get_remembered(Calls).choices.get(key, make)
    return choice
