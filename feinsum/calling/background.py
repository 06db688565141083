"""Builds in threads of this process: for a caller that waits, or while calls go on.

A build that an interrupt or a fork stops in the middle of an import cannot be resumed.
So an interrupted caller leaves its build running. A forked child lacks the thread that
was building and can never acquire its locks, so it builds nothing.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from feinsum.errors import BuildError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

BUILD_THREAD = "feinsum-build"
"""The name of threads in which kernels are built."""


def build_completely(build: Callable[[], T]) -> Future[T]:
    """Start to build; an interrupt of the caller leaves nothing half done.

    Ctrl-C reaches only the main thread. A build imports modules and fills registries,
    which cannot be resumed once interrupted. So it runs in another thread, and the main
    thread waits for its result. An interrupted call ends at once; the next one waits
    for the same build.
    """
    from concurrent.futures import Future  # loads logging

    result: Future[T] = Future()
    if not _is_interruptible() or _start_thread(result, build) is not None:
        fill(result, build)
    return result


def build_in_background(build: Callable[[], T]) -> Future[T]:
    """Start to build while calls go on; a failure is an error of the future."""
    from concurrent.futures import Future

    result: Future[T] = Future()

    def build_checked() -> T:
        check_process()
        return build()

    if (error := _start_thread(result, build_checked)) is not None:
        result.set_exception(BuildError(f"no thread can be started: {error}"))
    return result


def _start_thread(result: Future[T], build: Callable[[], T]) -> RuntimeError | None:
    """Start a thread that builds; return the error if none can be started."""
    # counted here, since a fork may come before the thread runs
    _BUILDING.begin()
    # a daemon, so that a program does not wait at its end for a kernel it will not use
    thread = threading.Thread(
        target=_fill_counted, args=(result, build), name=BUILD_THREAD, daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # too many threads, or the interpreter is ending
        _BUILDING.end()
        return error
    return None


def fill(result: Future[T], build: Callable[[], T]) -> None:
    _BUILDING.begin()
    _fill_counted(result, build)


def _fill_counted(result: Future[T], build: Callable[[], T]) -> None:
    try:
        result.set_result(build())
    except BaseException as error:  # noqa: BLE001  (the future raises it again)
        result.set_exception(error)
    finally:
        _BUILDING.end()


def _is_interruptible() -> bool:
    """Return whether Ctrl-C may reach this thread, and it is not within an import."""
    if threading.current_thread() is not threading.main_thread():
        return False
    frame = inspect.currentframe()
    while frame is not None:
        # the build could import the same module, and wait for its lock for ever
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
        """Forget the parent's threads in a fork: they hold import locks for ever."""
        were_lost = self.were_lost or self.n_running > 0
        self.renew()
        self.were_lost = were_lost

    def begin(self) -> None:
        with self._lock:
            self.n_running += 1

    def end(self) -> None:
        with self._lock:
            self.n_running -= 1


_BUILDING = _Builds()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_BUILDING.forget_parent)


def check_process() -> None:
    """Refuse to build where the build would wait for ever.

    Raises:
        BuildError: if this process was forked while a thread was building.
    """
    if _BUILDING.were_lost:
        raise BuildError(
            "this process was forked while a thread was building a kernel, and lacks "
            "that thread; start processes by 'spawn' or 'forkserver'"
        )
