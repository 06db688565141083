"""Calls in steps of one or two arrays, until a kernel of their own pays off.

To import Loopy, generate a kernel, compile and check it takes seconds. So a call is
computed without one, by :mod:`feinsum.contraction`, until the calls have taken so long
that a kernel would have saved what building it costs: like renting skis until they
could have been bought. Then another process builds it while the calls go on, see
:mod:`feinsum.calling.host.builder`, and some calls are computed in turns with and
without it; the faster way computes the others. However long a program runs, it waits
for no kernel. Calls of many sizes share it, see :mod:`feinsum.calling.host.sharing`::

    seconds of calls   0 ------- LOOK_UP_S ------- BUILD_S / GAIN ------->
    computed           in steps  | in steps        | in steps   | in turns, then
                                 | kernel of an    | a kernel   | the faster way
                                 | earlier process | is built   |

Calls with options that name a device, an effort or a store of this process get their
kernel at once, in this process.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from feinsum.calling.by_numpy import (
    FallbackCall,
    NumpyStepsCall,
    is_for_caller,
    report_fallback,
)
from feinsum.calling.host.sharing import (
    CallFamily,
    SharedKernel,
    as_of_class,
    find_shared,
)
from feinsum.calling.kernel_cache import Calls, DeviceKey, LookupOptions
from feinsum.calling.operands import ArrayForm
from feinsum.errors import BuildError
from feinsum.memory import remembered

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.calling.host.builder import BuildRequest, BuiltKernel
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.select import PairedTimes

GAIN = 0.3
"""Share of the time of calls that a kernel of their own is expected to save."""
SHORT_S = 30e-6
"""Calls that take less consist of what a call does ahead of any kernel."""
BUILD_THREAD = "feinsum-build"
"""The name of threads in which kernels are built."""
LOOK_UP_S = 0.05
"""Seconds of calls after which a kernel of an earlier process is looked for."""

T = TypeVar("T")
Arrays = Sequence[Any]
Built: TypeAlias = "PreparedCall | FallbackCall"


@dataclass(frozen=True)
class CallKey:
    """What calls have in common if one prepared call computes all of them.

    Attributes:
        forms: shape, strides, dtype and alignment of each operand.
        target: the form of ``out``; None for a new result.
        first: for each operand, the first position with the same array, see
            :func:`feinsum.calling.operands.first_uses`.
    """

    subscripts: str
    forms: tuple[ArrayForm, ...]
    target: ArrayForm | None
    first: tuple[int, ...]
    device: DeviceKey
    options: LookupOptions

    @property
    def is_usual(self) -> bool:
        """Whether the call waits for no kernel: its options ask for none at once."""
        is_on_host = self.device.is_host and not self.device.selector
        return is_on_host and self.options.is_usual

    def parse(self) -> EinsumCall:
        """Return the call as an einsum."""
        from feinsum.calling.einsum_call import parse_call  # steps need no einsum

        shapes = [(form.shape, form.dtype) for form in self.forms]
        return parse_call(self.subscripts, shapes, self.first)

    def build(self, arrays: Arrays, *, is_optional: bool) -> Future[Built]:
        """Start to build the call with a kernel, in this process.

        Args:
            arrays: operands with these forms.
            is_optional: whether numpy may compute the call if no kernel can be built;
                otherwise the future has the error.
        """
        parsed = self.parse()

        def build() -> Built:
            # a thread that was started before the end may arrive here after it
            if is_optional and not threading.main_thread().is_alive():
                return FallbackCall(parsed, None)  # handlers of atexit start no pools
            try:
                _check_process()
                # loads Loopy, for a second
                from feinsum.calling.host.building import build_call

                # of what is computed to check a kernel
                with np.errstate(all="ignore"):
                    return build_call(parsed, self, arrays)
            except Exception as error:
                if not is_optional or is_for_caller(error):
                    raise
                return FallbackCall(parsed, error)

        return build_completely(build)


@dataclass(eq=False)
class GeneralCall:
    """A call without a kernel of its own, as long as that has not paid off.

    Attributes:
        steps: computes the call without a kernel; None if even the first call is to
            have one.
        is_optional: whether numpy may compute the call if no kernel can be built.
        family: calls of any sizes that are otherwise like this one.
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
        # before the call: that of a size that is called once has no later one
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
        """Return the call with a kernel, built unless it already was.

        An interrupt ends the waiting; the next call waits for the same kernel.
        """
        with self._lock:
            if self._full is None:
                if self._building is None or self._building.done():
                    self._building = self.key.build(
                        arrays, is_optional=self.is_optional
                    )
                self.built = self._full = self._building.result()
                self.kernel = None
            return self._full

    def _run_turn(
        self, kernel: PreparedCall, steps: NumpyStepsCall, arrays: Arrays, out: Any
    ) -> Any:
        """Return the result of one turn of a trial; the last turn decides."""
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
                trial.add(as_of_class(elapsed_s, self._n_products))
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
        """Look for a faster way, as far as what the calls took is worth it."""
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
        """Find a kernel of this structure; one of an earlier process costs nothing."""
        from feinsum.calling.host.builder import BuildRequest

        key = self.key
        request = BuildRequest.of(
            key.subscripts, key.forms, key.first, key.options.database
        )
        self._due_s = inf
        if request is None:
            return

        def look_up() -> None:
            import feinsum.calling.structure  # noqa: F401  (not what one more takes)

            start_s = perf_counter()
            self._request, shared = find_shared(self.family, request)
            shared.spent_s += self.family.take_seconds()
            self.shared, self._due_s = shared, 0.0
            self._use(shared)
            self.family.look_up_s += perf_counter() - start_s
            self.family.n_look_ups += 1

        # Only imports are worth a thread, with which calls would share the interpreter.
        if "feinsum.calling.structure" not in sys.modules:
            build_in_background(look_up)
        else:
            from concurrent.futures import Future

            _fill(Future(), look_up)

    def _use(self, shared: SharedKernel) -> None:
        """Try the kernel of the structure, or have it built if that pays off."""
        if shared.built is None:
            self._invest(shared)
        else:
            self._try(shared, shared.built)

    def _try(self, shared: SharedKernel, built: BuiltKernel) -> None:
        """Begin the trial of a kernel, unless that of another size has decided."""
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
            # the kernel last: another thread that finds it uses the trial
            self._trial = trial
            self.kernel = kernel

    def _invest(self, shared: SharedKernel) -> None:
        """Start to build a kernel if calls of its structure have taken long enough."""
        builds = remembered(Calls).builds
        # the kernel has to save the seconds of its build, and saves a share of the time
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
                    builds.expected_s = inf  # what is missing here others miss, too
                    if isinstance(error, Exception):
                        report_fallback(error)
            finally:
                builds.lock.release()

        shared.build = build_in_background(lambda: build_elsewhere(request))
        shared.build.add_done_callback(adopt)


def build_completely(build: Callable[[], T]) -> Future[T]:
    """Start to build; an interrupt of the caller leaves nothing half done.

    Ctrl-C reaches the main thread alone. Building imports modules, and fills
    registries, which cannot be continued where they were broken off. So they run in
    another thread, for whose result the main thread waits: an interrupted call ends at
    once, and the next one finds what was begun.
    """
    from concurrent.futures import Future  # loads logging

    result: Future[T] = Future()
    if not _is_interruptible() or _start_thread(result, build) is not None:
        _fill(result, build)
    return result


def build_in_background(build: Callable[[], T]) -> Future[T]:
    """Start to build while calls go on; a failure is an error of the future."""
    from concurrent.futures import Future

    result: Future[T] = Future()

    def checked() -> T:
        _check_process()
        return build()

    if (error := _start_thread(result, checked)) is not None:
        result.set_exception(BuildError(f"no thread can be started: {error}"))
    return result


def _start_thread(result: Future[T], build: Callable[[], T]) -> RuntimeError | None:
    """Start a thread that builds; return the error if none can be started."""
    # a daemon: no program waits at its end for a kernel that it will not use
    thread = threading.Thread(
        target=_fill, args=(result, build), name=BUILD_THREAD, daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # too many threads, or the interpreter is ending
        return error
    return None


def _fill(result: Future[T], build: Callable[[], T]) -> None:
    try:
        with _BUILDING:
            result.set_result(build())
    except BaseException as error:  # noqa: BLE001  (whoever waits gets it)
        result.set_exception(error)


def _is_interruptible() -> bool:
    """Whether Ctrl-C may reach this thread, and nobody waits for what it imports."""
    if threading.current_thread() is not threading.main_thread():
        return False
    frame = inspect.currentframe()
    while frame is not None:
        # the build could import what is being imported here, and wait for ever
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return True


class _Builds:
    """The builds that are running, and whether this process lost some in a fork."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.n_running, self._lock = 0, threading.Lock()
        self.were_lost = False

    def forget_parent(self) -> None:
        """In a forked child: threads that built hold locks of imports for ever."""
        were_lost = self.were_lost or self.n_running > 0
        self.renew()
        self.were_lost = were_lost

    def __enter__(self) -> None:
        with self._lock:
            self.n_running += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self.n_running -= 1


_BUILDING = _Builds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_BUILDING.forget_parent)


def _check_process() -> None:
    """Refuse to build where that would wait for ever.

    Raises:
        BuildError: if this process was forked while a thread was building.
    """
    if _BUILDING.were_lost:
        raise BuildError(
            "this process was forked while a thread was building a kernel, and lacks "
            "that thread; start processes by 'spawn' or 'forkserver'"
        )
