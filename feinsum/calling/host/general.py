"""Calls in steps of one or two arrays, until a kernel of their own pays off.

To import Loopy, generate a kernel, compile and check it takes seconds. So a call is
computed without one, by :mod:`feinsum.contraction`, until the calls have taken so long
that a kernel would have saved what building it costs: like renting skis until they
could have been bought. Then another process builds it while the calls go on, see
:mod:`feinsum.calling.host.builder`, and some calls are computed in turns with and
without it; the faster way computes the others. However long a program runs, it waits
for no kernel.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from feinsum.calling.by_numpy import StepsCall
from feinsum.calling.fallback import build_in_background, report_fallback
from feinsum.calling.kernel_cache import Calls
from feinsum.memory import remembered

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.fallback import FallbackCall
    from feinsum.calling.host.builder import BuildRequest
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.reading import Reading
    from feinsum.select import Trial

GAIN = 0.3
"""Share of the time of calls that a kernel of their own is expected to save."""
SHORT_S = 30e-6
"""Calls that take less consist of what a call does ahead of any kernel."""

LOOK_UP_S = 0.05
"""Seconds of calls after which a kernel of an earlier process is looked for."""

Arrays = Sequence[Any]
Built: TypeAlias = "PreparedCall | FallbackCall"


@dataclass(eq=False)
class GeneralCall:
    """A call without a kernel of its own, as long as that has not paid off.

    Attributes:
        read: the call as an einsum, which a kernel needs.
        steps: computes the call without one; None if even the first call is to have a
            kernel.
        build: starts to build the call with a kernel in this process, for operands with
            this memory layout.
        request: what another process needs to build it; None if that cannot.
        built: the call with a kernel, once it exists and is faster.
        spent_s: seconds that the calls have taken.
        trial: of a kernel that may be faster.
        kernel: the call with that kernel.
        has_looked: whether one of an earlier process was looked for.
        has_had_trial: whether the trial of one is over.
    """

    read: Callable[[], Reading]
    steps: StepsCall | None
    build: Callable[[Arrays], Future[Built]]
    request: Callable[[], BuildRequest | None]
    built: Built | None = None
    spent_s: float = 0.0
    n_calls: int = 0
    trial: Trial | None = None
    kernel: PreparedCall | None = None
    has_looked: bool = False
    has_had_trial: bool = False
    _due_s: float = 0.0
    _building: Future[Built] | None = None
    _full: Built | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def is_building(self) -> bool:
        """Whether a kernel is being built that no call waits for."""
        return self._due_s == inf and self.trial is None and not self.has_had_trial

    @cached_property
    def reading(self) -> Reading:
        """The call as an einsum."""
        return self.read()

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`."""
        if self.steps is None:
            return self.with_kernel(arrays).run(arrays, out)
        if self.trial is not None:
            return self._try(self.trial, self.steps, arrays, out)
        start_s = perf_counter()
        result = self.steps.run(arrays, out)
        self.spent_s += perf_counter() - start_s
        self.n_calls += 1
        if self.spent_s >= LOOK_UP_S and not self.has_looked:
            self._look_up()
        if self.spent_s >= self._due_s:
            self._invest()
        return result

    def with_kernel(self, arrays: Arrays) -> Built:
        """The call with a kernel, built unless it already was.

        An interrupt ends the waiting; the next call waits for the same kernel.
        """
        with self._lock:
            if self._full is None:
                if self._building is None or self._building.done():
                    self._building = self.build(arrays)
                self.built = self._full = self._building.result()
            return self._full

    def _try(self, trial: Trial, steps: StepsCall, arrays: Arrays, out: Any) -> Any:
        """The result of one turn; the last one decides."""
        kernel = self.kernel if trial.is_kernels_turn else None
        start_s = perf_counter()
        try:
            result = (steps if kernel is None else kernel).run(arrays, out)
            trial.add(perf_counter() - start_s)
        except Exception:  # a kernel is an improvement, never a condition
            if kernel is None:
                raise
            import logging  # takes as long as a hundred calls

            logger = logging.getLogger(__name__)
            logger.exception("dropped a kernel of %s", self.reading.einsum)
            trial.has_failed = True
            result = steps.run(arrays, out)
        if trial.is_over:
            self.built = self.kernel if trial.is_faster else None
            self.trial = self.kernel = None
            self.has_had_trial = True
        return result

    def _begin_trial(self, kernel: PreparedCall) -> None:
        from feinsum.select import Trial

        self.kernel = kernel
        self.trial = Trial()

    def _look_up(self) -> None:
        """Try a kernel that was built for an earlier process: it costs nothing."""
        from feinsum.calling.host.builder import built_before

        self.has_looked = True
        request = self.request()
        if request is None or self.spent_s < SHORT_S * self.n_calls:
            return

        def adopt(loading: Future[PreparedCall | None]) -> None:
            if loading.exception() is None and (kernel := loading.result()) is not None:
                self._due_s = inf
                self._begin_trial(kernel)

        build_in_background(lambda: built_before(request)).add_done_callback(adopt)

    def _invest(self) -> None:
        """Start to build if the calls have taken long enough, or say when they will."""
        if self.spent_s < SHORT_S * self.n_calls:
            self._due_s = 2 * self.spent_s
            return
        builds = remembered(Calls).builds
        self._due_s = builds.expected_s / GAIN
        # one at a time: builds share the cores with the calls
        if self.spent_s < self._due_s or not builds.lock.acquire(blocking=False):
            return
        self._due_s = inf
        request = self.request()
        if request is None:
            builds.lock.release()
            return
        import logging

        from feinsum.calling.host.builder import build_elsewhere

        logging.getLogger(__name__).info(
            "a kernel is built for calls that took %.3g s", self.spent_s
        )
        start_s = perf_counter()

        def adopt(building: Future[PreparedCall | None]) -> None:
            try:
                if (error := building.exception()) is None:
                    builds.expected_s = perf_counter() - start_s
                    if (kernel := building.result()) is not None:
                        self._begin_trial(kernel)
                else:
                    builds.expected_s = inf  # what is missing here others miss, too
                    if isinstance(error, Exception):
                        report_fallback(error)
            finally:
                builds.lock.release()

        building = build_in_background(lambda: build_elsewhere(request))
        building.add_done_callback(adopt)
