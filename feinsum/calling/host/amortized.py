"""Calls that get faster as they are used, on a budget earned by the calls.

Building, checking and timing another recipe takes some tenths of a second. That pays
off only if the call is repeated often enough, which is not known in advance. So at most
a quarter of the time that the calls have taken is invested: a program is never slower
by more than that, whenever it ends, and improvements take effect at once.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from statistics import median
from threading import Lock
from time import perf_counter, sleep
from typing import Any

import numpy as np

from feinsum.calling.fallback import build_completely
from feinsum.calling.host.prepared import PreparedCall
from feinsum.calling.reading import Reading
from feinsum.errors import FeinsumError
from feinsum.measure import Timer, interleave
from feinsum.measure.kernel import SPIN_S
from feinsum.records import TransformSpec

__all__ = ["N_RIVALS", "SHARE", "AmortizedCall", "is_faster"]

logger = logging.getLogger(__name__)

SHARE = 0.25
"""Maximum fraction of the time of calls to invest in making them faster."""
N_RIVALS = 2
"""Recipes, next to the one that is predicted to be the fastest, that are timed."""
BUILD_S = 0.5
"""Estimated seconds to generate, compile and check a kernel."""
RECORD_S = 6.0
"""Estimated seconds of a fact, which is measured in a separate process."""
ROUNDS = 3
MIN_TOTAL_S = 0.002
"""Total time of each recipe's runs, in turns: enough to resolve :data:`BETTER`."""
BETTER = 0.95
"""Maximum time of a winning rival over the time of the kernel in use."""

Arrays = Sequence[Any]


@dataclass(eq=False)
class AmortizedCall:
    """A call with a predicted kernel, and rivals that may be faster.

    Attributes:
        call: the fastest so far.
        rivals: untried recipes, the most promising first.
        build: builds the call with a recipe, for operands with this memory layout.
        record: records the result as a fact; None if it would not apply to other calls.
        spent_s: time spent in calls.
        invested_s: time spent on making them faster.
    """

    call: PreparedCall
    rivals: list[TransformSpec]
    build: Callable[[TransformSpec, Arrays], PreparedCall]
    record: Callable[[PreparedCall], None] | None
    spent_s: float = 0.0
    invested_s: float = 0.0
    _due_s: float = 0.0
    _n_calls: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def reading(self) -> Reading:
        return self.call.reading

    @property
    def settled(self) -> PreparedCall:
        """The fastest so far."""
        return self.call

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`; occasionally invests in a rival."""
        start_s = perf_counter()
        result = self.call.run(arrays, out)
        self.spent_s += perf_counter() - start_s
        self._n_calls += 1
        # threads that find another one investing go on with their own calls
        if self.spent_s >= self._due_s and self._lock.acquire(blocking=False):
            try:
                self._invest(arrays)
            finally:
                self._lock.release()
        return result

    def settle(self, arrays: Arrays) -> None:
        """Try all rivals, in a process of its own, for which no call waits."""
        while self.rivals:
            self._try(self.rivals.pop(0), arrays)

    def _invest(self, arrays: Arrays) -> None:
        """Take the next step if the budget allows, or compute when it will."""
        expected_s = self._next_step_s()
        self._due_s = (self.invested_s + expected_s) / SHARE
        if self.spent_s < self._due_s or expected_s == inf:
            return
        start_s = perf_counter()
        try:
            with np.errstate(all="ignore"):  # as in the calls themselves
                if self.rivals:
                    self._try(self.rivals.pop(0), arrays)
                elif self.record is not None:
                    self._record(self.record)
        finally:  # whatever came of it
            self.invested_s += perf_counter() - start_s
            self._due_s = (self.invested_s + self._next_step_s()) / SHARE

    def _record(self, record: Callable[[PreparedCall], None]) -> None:
        self.record = None
        recording = build_completely(lambda: record(self.call))
        error = recording.exception()
        if error is not None and not isinstance(error, Exception):
            raise error  # an interrupt
        _log(recording)

    def _next_step_s(self) -> float:
        """Estimated time of the next step; infinite if there is none."""
        if not self.rivals:
            return inf if self.record is None else RECORD_S
        each_s = self.spent_s / self._n_calls
        runs_s = 2 * max((1 + ROUNDS) * each_s, MIN_TOTAL_S)
        is_library = self.rivals[0].is_on_host
        return runs_s + (2 * ROUNDS * SPIN_S if is_library else BUILD_S)

    def _try(self, spec: TransformSpec, arrays: Arrays) -> None:
        """Time a rival in turns with the kernel in use, and keep the faster one."""
        try:
            rival = build_completely(lambda: self.build(spec, arrays)).result()
            if is_faster(rival, self.call, arrays):
                self.call = rival
        except FeinsumError as error:
            logger.warning("skipped the predicted recipe %s: %s", spec, error)
        except Exception:  # no recipe may break a call
            logger.exception("skipped the predicted recipe %s", spec)


def is_faster(rival: Any, call: Any, arrays: Arrays) -> bool:
    """Whether a call takes certainly less time than another one, in turns."""
    ours, theirs = interleave(
        [_Timed(call, arrays), _Timed(rival, arrays)],
        rounds=ROUNDS,
        warmup=1,
        min_total_s=MIN_TOTAL_S,
    )
    return median(theirs) < BETTER * median(ours)


def _log(recording: Future[None]) -> None:
    """Why nothing was recorded, if nothing was: that breaks no call."""
    error = recording.exception()
    if isinstance(error, FeinsumError):
        logger.warning("could not record what calls found: %s", error)
    elif error is not None:
        logger.error("could not record what calls found", exc_info=error)


@dataclass(frozen=True)
class _Timed:
    """A call as its user sees it, timed by :func:`feinsum.measure.interleave`."""

    call: Any
    arrays: Arrays
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        start_s = perf_counter()
        self.call.run(self.arrays)
        elapsed_s = perf_counter() - start_s
        kernel = self.call.kernel
        if kernel is not None and kernel.compiled.built.n_launches == 0:
            sleep(SPIN_S)  # its threads go on looking for work
        return elapsed_s
