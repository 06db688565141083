"""Calls in steps of one or two arrays, until a kernel of their own pays off.

Building a kernel takes seconds: importing Loopy, generating code, compiling, checking.
So calls are computed without one, by :mod:`feinsum.contraction`, until a kernel would
have saved as much time as building it costs. This is the ski rental problem: rent until
the rent paid equals the price. Then another process builds the kernel while the calls
go on, see :mod:`feinsum.calling.host.builder`. Some calls then alternate between both
ways, and the faster one computes all later calls. A program never waits for a kernel::

    seconds of calls   0 ------- LOOK_UP_S ------- BUILD_S / GAIN ------->
    computed           in steps  | in steps        | in steps   | in turns, then
                                 | kernel of an    | a kernel   | the faster way
                                 | earlier process | is built   |

A program with many sizes makes a few calls of each. No single size would then pay for a
kernel, or run often enough for a trial. So both count all calls with one structure, see
:mod:`feinsum.calling.structure`::

    CallFamily     subscripts and dtypes; any sizes
       |  1:n      found without parsing, at a call's first run
    SharedKernel   the structure; long extents and strides may differ
       |  1:n      found once its calls have taken a while
    GeneralCall    shapes, strides, dtypes: an entry of the cache of calls

Calls with a device, an effort or a store of this process as an option get their kernel
at once, in this process.

Source: Karlin, Manasse, Rudolph and Sleator, *Competitive snoopy caching*, 1988.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, prod
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from feinsum.calling.background import (
    build_completely,
    build_in_background,
    check_process,
    fill,
)
from feinsum.calling.by_numpy import (
    FallbackCall,
    NumpyStepsCall,
    is_for_caller,
    report_fallback,
)
from feinsum.calling.kernel_cache import CallKey, Calls
from feinsum.memory import get_remembered

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.calling.host.builder import BuildRequest, BuiltKernel
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.select import PairedTimes

GAIN = 0.3
"""Share of the time of calls that their kernel is expected to save."""
SHORT_S = 30e-6
"""Calls that take less time consist of overhead, which no kernel reduces."""
LOOK_UP_S = 0.05
"""Seconds of calls after which a kernel of an earlier process is looked up."""

VARIES = 4
"""Number of extents of an index, in the calls of a family, that makes it run-time data.
"""
SHARE = 1 / 64
"""Maximum share of the time of calls for finding their structures. That takes half a
millisecond for each size, and more if the calls have filled the cache.
"""
SIZE_CLASS = 3
"""Bits of a size class: calls within a factor of 8 in multiplications share a trial."""

Arrays = Sequence[Any]
Built: TypeAlias = "PreparedCall | FallbackCall"


@dataclass(eq=False)
class CallFamily:
    """Calls that differ in their shapes and strides only.

    Attributes:
        spent_s, n_calls: seconds and number of the calls, except those with a kernel
            that is faster.
        saved: the share of the time that a kernel saves, by the last trial.
        look_up_s, n_look_ups: seconds and number of the look-ups of structures.
    """

    spent_s: float = 0.0
    n_calls: int = 0
    saved: float = 0.0
    look_up_s: float = 0.0
    n_look_ups: int = 0
    _shared_s: float = field(default=0.0, repr=False)
    _extents: dict[str, set[int]] = field(default_factory=dict, repr=False)

    def add(self, seconds: float) -> None:
        """Count a call."""
        self.spent_s += seconds
        self.n_calls += 1

    def take_seconds(self) -> float:
        """Return the seconds that calls took since the last look-up of a structure.

        They are all attributed to the structure that is looked up now, since those of
        most sizes are never looked up.
        """
        seconds, self._shared_s = self.spent_s - self._shared_s, self.spent_s
        return seconds

    @property
    def may_look_up(self) -> bool:
        """Whether a kernel may save more time than finding the structure takes.

        Also true as long as all look-ups together have taken little time.
        """
        if self.look_up_s <= SHARE * self.spent_s:
            return True
        saved_s = self.saved * self.spent_s / self.n_calls
        return saved_s > self.look_up_s / self.n_look_ups

    def varying(self, request: BuildRequest) -> tuple[str, ...]:
        """List the indices with short extents that have varied in the calls so far."""
        parsed = request.parsed
        for index, extent in parsed.extents.items():
            seen = self._extents.setdefault(index, set())
            if len(seen) < VARIES:
                seen.add(extent)
        literal = {*parsed.extents} - {*parsed.size_params}
        return tuple(sorted(i for i in literal if len(self._extents[i]) >= VARIES))


@dataclass(eq=False)
class SharedKernel:
    """The kernel of all calls with one structure, once there is one.

    Attributes:
        built: the kernel that another process has built, now or earlier.
        spent_s: seconds of the calls without it.
        build: the build, once it is started; there is only one.
        trials: trials against the steps, by size class.
        timing: lock of the call that is timed, since others would disturb it.
    """

    built: BuiltKernel | None = None
    spent_s: float = 0.0
    build: Future[BuiltKernel | None] | None = None
    trials: dict[int, PairedTimes] = field(default_factory=dict)
    timing: Lock = field(default_factory=Lock, repr=False)

    def trial(self, n_products: int) -> PairedTimes:
        """Return the trial of calls with about this number of multiplications."""
        from feinsum.select import PairedTimes

        return self.trials.setdefault(_get_size_class(n_products), PairedTimes())

    def drop(self) -> None:
        """Forget a kernel whose limits were exceeded, so that a new one is built."""
        self.built = self.build = None
        self.spent_s = 0.0
        self.trials.clear()


def _get_size_class(n_products: int) -> int:
    return n_products.bit_length() // SIZE_CLASS


def scale_to_class(seconds: float, n_products: int) -> float:
    """Scale the time of a call to the multiplications of its size class.

    >>> scale_to_class(3.0, 96), scale_to_class(6.0, 192)
    (2.0, 2.0)
    """
    return seconds * (1 << SIZE_CLASS * _get_size_class(n_products)) / n_products


@dataclass(eq=False)
class GeneralCall:
    """A call that is computed without a kernel of its own until one pays off.

    Attributes:
        steps: computes the call without a kernel; None if even the first call must have
            one.
        is_optional: whether numpy may compute the call if no kernel can be built.
        family: the calls that differ from this one in sizes only.
        built: the call with a kernel, once it exists and is faster.
        spent_s: seconds that the calls have taken.
        shared: the kernel of its structure, once the calls have taken a while.
        kernel: the call with that kernel, while it is tried.
        has_had_trial: whether the trial of a kernel is over.
    """

    key: CallKey
    steps: NumpyStepsCall | None
    is_optional: bool
    family: CallFamily = field(default_factory=CallFamily)
    built: Built | None = None
    spent_s: float = 0.0
    n_calls: int = 0
    shared: SharedKernel | None = None
    kernel: PreparedCall | None = None
    has_had_trial: bool = False
    _due_s: float = 0.0
    _request: BuildRequest | None = None
    _trial: PairedTimes | None = None
    _building: Future[Built] | None = None
    _full: Built | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def is_building(self) -> bool:
        """Whether a kernel is being built that no call waits for."""
        build = None if self.shared is None else self.shared.build
        return build is not None and not build.done()

    @property
    def trial(self) -> PairedTimes | None:
        """The trial of the kernel."""
        return None if self.kernel is None else self._trial

    @cached_property
    def parsed(self) -> EinsumCall:
        """The call as an einsum."""
        return self.key.parse()

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """Return the result of :meth:`PreparedCall.run`."""
        if self.steps is None:
            return self.with_kernel(arrays).run(arrays, out)
        # before the call, since there may be no later one with these sizes
        if self.spent_s >= self._due_s:
            self._improve()
        if self.kernel is not None:
            return self._run_turn(self.kernel, self.steps, arrays, out)
        if self.built is not None:
            return self.built.run(arrays, out)
        start_s = perf_counter()
        result = self.steps.run(arrays, out)
        elapsed_s = perf_counter() - start_s
        self.spent_s += elapsed_s
        self.n_calls += 1
        self.family.add(elapsed_s)
        if self.shared is not None:
            self.shared.spent_s += elapsed_s
        return result

    def with_kernel(self, arrays: Arrays) -> Built:
        """Return the call with a kernel; build it if that was not done.

        An interrupt ends the wait, not the build: the next call waits for it again.
        """
        with self._lock:
            if self._full is None:
                if self._building is None or self._building.done():
                    self._building = build_completely(partial(self._build, arrays))
                self.built = self._full = self._building.result()
                self.kernel = None
            return self._full

    def _build(self, arrays: Arrays) -> Built:
        """Build the call with a kernel, in this process, or else a call of numpy.

        Raises:
            Exception: if the kernel is not optional, or the call itself is wrong.
        """
        # this thread may get here after the main thread has ended
        if self.is_optional and not threading.main_thread().is_alive():
            return FallbackCall(self.parsed, None)  # pools cannot be started any more
        try:
            check_process()
            from feinsum.calling.host.building import build_call  # loads Loopy

            # the checks of a kernel compute on any values
            with np.errstate(all="ignore"):
                return build_call(self.parsed, self.key, arrays)
        except Exception as error:
            if not self.is_optional or is_for_caller(error):
                raise
            return FallbackCall(self.parsed, error)

    def _run_turn(
        self, kernel: PreparedCall, steps: NumpyStepsCall, arrays: Arrays, out: Any
    ) -> Any:
        """Compute the call as one turn of a trial; the last turn decides."""
        shared, trial = self.shared, self._trial
        assert shared is not None
        assert trial is not None
        if not shared.timing.acquire(blocking=False):
            return steps.run(arrays, out)
        try:
            way = kernel if trial.is_kernels_turn else steps
            start_s = perf_counter()
            try:
                result = way.run(arrays, out)
                elapsed_s = perf_counter() - start_s
                trial.add(scale_to_class(elapsed_s, self._n_products))
                self.family.add(elapsed_s)
            except Exception:  # a kernel is an improvement, never a condition
                if way is steps:
                    raise
                import logging  # takes as long as a hundred calls

                logger = logging.getLogger(__name__)
                logger.exception("dropped a kernel of %s", self.parsed.einsum)
                trial.has_failed = True
                result = steps.run(arrays, out)
            if trial.is_over:
                self._end_trial(kernel, trial)
        finally:
            shared.timing.release()
        return result

    @cached_property
    def _n_products(self) -> int:
        assert self.steps is not None
        return max(prod(self.steps.terms.extents.values()), 1)

    def _end_trial(self, kernel: PreparedCall, trial: PairedTimes) -> None:
        self.built = kernel if trial.is_faster else None
        self.family.saved = trial.saved
        self.kernel = None
        self.has_had_trial = True

    def _improve(self) -> None:
        """Look for a faster way if the calls have taken long enough."""
        family = self.family
        if self.shared is not None:
            self._use(self.shared)
            return
        if family.spent_s < LOOK_UP_S or not family.may_look_up:
            return
        if family.spent_s < SHORT_S * family.n_calls:
            self._due_s = 2 * self.spent_s
            return
        self._look_up()

    def _look_up(self) -> None:
        """Look up the kernel of this structure, perhaps of an earlier process."""
        from feinsum.calling.host.builder import BuildRequest

        key = self.key
        request = BuildRequest.of(
            key.subscripts, key.forms, key.first, key.options.database
        )
        self._due_s = inf
        if request is None:
            return

        def look_up() -> None:
            import feinsum.calling.structure  # noqa: F401  (before the clock starts)

            start_s = perf_counter()
            self._request, shared = find_shared(self.family, request)
            shared.spent_s += self.family.take_seconds()
            self.shared, self._due_s = shared, 0.0
            self._use(shared)
            self.family.look_up_s += perf_counter() - start_s
            self.family.n_look_ups += 1

        # A thread competes with the calls for the interpreter; only imports justify it.
        if "feinsum.calling.structure" not in sys.modules:
            build_in_background(look_up)
        else:
            from concurrent.futures import Future

            fill(Future(), look_up)

    def _use(self, shared: SharedKernel) -> None:
        """Try the kernel of the structure, or build one if that pays off."""
        if shared.built is None:
            self._invest(shared)
        else:
            self._try(shared, shared.built)

    def _try(self, shared: SharedKernel, built: BuiltKernel) -> None:
        """Begin the trial of a kernel, unless that of its size class is over."""
        assert self._request is not None
        kernel = built.call(self._request.structure)
        if kernel is None:
            shared.drop()
            return
        self._due_s = inf
        trial = shared.trial(self._n_products)
        if trial.is_over:
            self._end_trial(kernel, trial)
        else:
            # the kernel last: another thread that sees it uses the trial
            self._trial = trial
            self.kernel = kernel

    def _invest(self, shared: SharedKernel) -> None:
        """Start to build a kernel if calls of its structure have taken long enough."""
        builds = get_remembered(Calls).builds
        # a kernel saves a share of the time, which has to exceed the time of its build
        due_s = builds.expected_s / GAIN
        if shared.build is not None or shared.spent_s < due_s:
            return
        # one at a time: builds share the cores with the calls
        if not builds.lock.acquire(blocking=False):
            return
        import logging

        from feinsum.calling.host.builder import build_elsewhere

        request = self._request
        assert request is not None
        logging.getLogger(__name__).info(
            "a kernel is built for calls that took %.3g s", shared.spent_s
        )
        start_s = perf_counter()

        def adopt(building: Future[BuiltKernel | None]) -> None:
            try:
                if (error := building.exception()) is None:
                    builds.expected_s = perf_counter() - start_s
                    if (built := building.result()) is not None:
                        shared.built = built
                        self._try(shared, built)
                else:
                    # the cause, such as a missing compiler, holds for other calls, too
                    builds.expected_s = inf
                    if isinstance(error, Exception):
                        report_fallback(error)
            finally:
                builds.lock.release()

        shared.build = build_in_background(lambda: build_elsewhere(request))
        shared.build.add_done_callback(adopt)


def find_shared(
    family: CallFamily, request: BuildRequest
) -> tuple[BuildRequest, SharedKernel]:
    """Find the shared kernel of a call's structure, possibly of an earlier process.

    Returns:
        The request, with varying extents as run-time data; and the shared kernel.
    """
    from feinsum.calling.host.builder import load_built

    varying = family.varying(request)
    if varying:
        request = replace(request, varying=varying)
    shared: SharedKernel = get_remembered(Calls).shared.get(
        request.key, lambda: SharedKernel(load_built(request))
    )
    return request, shared
