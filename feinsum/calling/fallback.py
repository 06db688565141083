"""Calls without a kernel: numpy answers them, and one warning says why.

A kernel is an improvement, never a condition: without a compiler, a home, room on disk
or a healthy database, a call still has a result. This is the one place that catches
what goes wrong in building and running kernels.
"""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from feinsum.calling.by_numpy import evaluate_by_numpy, find_numpy_path
from feinsum.errors import (
    BuildError,
    FeinsumError,
    FeinsumWarning,
    InvalidEinsumError,
    InvalidOptionError,
    MeasurementError,
)
from feinsum.memory import remembered

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.reading import Reading

T = TypeVar("T")
Arrays = Sequence[Any]


@dataclass(frozen=True, eq=False)
class FallbackCall:
    """A call that numpy evaluates each time, because no kernel could be built.

    Attributes:
        error: why; None if the process is ending, which nobody needs to be told.
    """

    reading: Reading
    error: Exception | None

    @property
    def settled(self) -> Any:
        """There is no kernel.

        Raises:
            Exception: the reason.
        """
        raise self.error or BuildError("the process is ending")

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`."""
        return answer_by_numpy(self.reading, arrays, out, self.error)


def answer_by_numpy(
    reading: Reading, arrays: Arrays, out: Any, error: Exception | None
) -> Any:
    """The result of a call of host arrays whose kernel failed.

    Raises:
        Exception: of numpy, or the given one if it is about the call itself.
    """

    def evaluate() -> Any:
        return evaluate_by_numpy(reading, arrays, find_numpy_path(reading))

    result = evaluate_instead(evaluate, error)
    if out is None:
        return result
    out[...] = result
    return out


def evaluate_instead(evaluate: Callable[[], T], error: Exception | None) -> T:
    """The result of what replaces a kernel that failed, with the warning.

    Args:
        error: why; None if nobody needs to be told.

    Raises:
        Exception: of the evaluation, or the given one if it is about the call itself.
    """
    if error is not None and is_for_caller(error):
        raise error
    result = evaluate()
    if error is not None:
        report_fallback(error)
    return result


def start_build(
    build: Callable[[], T], reading: Reading, *, is_optional: bool
) -> Future[T | FallbackCall]:
    """Start to build a call; if that fails, it is one that numpy evaluates.

    Args:
        is_optional: whether numpy may evaluate it; otherwise the future has the error.
    """

    def build_or_fall_back() -> T | FallbackCall:
        if is_optional and not threading.main_thread().is_alive():
            return FallbackCall(reading, None)  # handlers of atexit start no pools
        try:
            _check_process()
            return build()
        except Exception as error:
            if not is_optional or is_for_caller(error):
                raise
            return FallbackCall(reading, error)

    return build_completely(build_or_fall_back)


def is_for_caller(error: Exception) -> bool:
    """Whether an error is about the call itself, which numpy could not answer either.

    A bare MeasurementError says that there is no memory, or that the limit of
    intermediates is no number. A warning is an error only where the user asked for it.
    """
    is_invalid = isinstance(error, InvalidEinsumError | InvalidOptionError | Warning)
    return is_invalid or type(error) is MeasurementError


class Reported(list[str]):
    """The reason of which this process has warned."""


def report_fallback(error: Exception) -> None:
    """Warn that numpy answers, once per process; later reasons are logged."""
    cause = str(error) if isinstance(error, FeinsumError) else _described(error)
    import logging  # takes as long to load as a hundred calls

    logging.getLogger(__name__).info("numpy answers a call: %s", cause, exc_info=error)
    if reported := remembered(Reported):
        return
    reported.append(cause)
    warnings.warn(
        f"numpy answers calls of einsum here, because no kernel can be built or run: "
        f"{cause}; 'feinsum doctor' says what to do",
        FeinsumWarning,
        stacklevel=level_of_caller(),
    )


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def level_of_caller() -> int:
    """The level of the first frame outside of this package."""
    frame, level = inspect.currentframe(), 0
    while frame and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "feinsum"


def build_completely(build: Callable[[], T]) -> Future[T]:
    """Start to build; an interrupt of the caller leaves nothing half done.

    Ctrl-C reaches the main thread alone. Building imports modules, and fills
    registries, which cannot be continued where they were broken off. So they run in
    another thread, for whose result the main thread waits: an interrupted call ends at
    once, and the next one finds what was begun.
    """
    from concurrent.futures import Future  # loads logging

    result: Future[T] = Future()
    if not _is_interruptible():
        _fill(result, build)
        return result
    thread = threading.Thread(
        target=_fill, args=(result, build), name="feinsum-build", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        _fill(result, build)
    return result


def build_in_background(build: Callable[[], T]) -> Future[T]:
    """Start to build while calls go on; the future has whatever came of it."""
    from concurrent.futures import Future

    result: Future[T] = Future()

    def checked() -> T:
        _check_process()
        return build()

    thread = threading.Thread(
        target=_fill, args=(result, checked), name="feinsum-build", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # no thread can be started
        result.set_exception(BuildError(f"no thread can be started: {error}"))
    return result


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
