"""Builds in threads of this process: for a caller that waits, or while calls go on.

A thread cannot be continued where an interrupt or a fork broke it off, in the middle of
an import. So an interrupted caller leaves its build running, and a forked child, which
has lost the thread and never gets its locks, builds nothing.
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

    Ctrl-C reaches the main thread alone. Building imports modules, and fills
    registries, which cannot be continued where they were broken off. So they run in
    another thread, for whose result the main thread waits: an interrupted call ends at
    once, and the next one finds what was begun.
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

    def checked() -> T:
        check_process()
        return build()

    if (error := _start_thread(result, checked)) is not None:
        result.set_exception(BuildError(f"no thread can be started: {error}"))
    return result


def _start_thread(result: Future[T], build: Callable[[], T]) -> RuntimeError | None:
    """Start a thread that builds; return the error if none can be started."""
    # a daemon: no program waits at its end for a kernel that it will not use
    thread = threading.Thread(
        target=fill, args=(result, build), name=BUILD_THREAD, daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # too many threads, or the interpreter is ending
        return error
    return None


def fill(result: Future[T], build: Callable[[], T]) -> None:
    try:
        with _BUILDING:
            result.set_result(build())
    except BaseException as error:  # noqa: BLE001  (whoever waits gets it)
        result.set_exception(error)


def _is_interruptible() -> bool:
    """Return whether Ctrl-C may reach this thread, and none waits for its import."""
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
        """Forget the parent's threads in a fork: they hold import locks for ever."""
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


def check_process() -> None:
    """Refuse to build where that would wait for ever.

    Raises:
        BuildError: if this process was forked while a thread was building.
    """
    if _BUILDING.were_lost:
        raise BuildError(
            "this process was forked while a thread was building a kernel, and lacks "
            "that thread; start processes by 'spawn' or 'forkserver'"
        )
