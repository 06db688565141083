"""The threads that run kernels of the host: one pool for the process, in C."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from importlib.resources import files
from threading import Lock
from typing import Any

from feinsum.targets.host.compiler import find_compiler
from feinsum.targets.host.library import load_with_content, loaded
from feinsum.threads import n_threads

__all__ = ["Pool", "pool", "start_pool"]


@dataclass(frozen=True)
class Pool:
    """The threads of this process.

    Attributes:
        parallel, arena: functions that kernels call.
        call: calls an entry point with arrays as objects; see ``pool.c``.
        threshold_s: how long a kernel runs before it is shared by threads.
        content: the shared object, with which other processes start theirs.
    """

    library: ctypes.CDLL
    parallel: ctypes.c_void_p
    arena: ctypes.c_void_p
    call: Any
    n_threads: int
    threshold_s: float
    content: bytes


_STARTING = Lock()
_POOLS: list[Pool] = []


def pool() -> Pool:
    """The pool, started when it is first asked for.

    Raises:
        DeviceUnavailableError, BuildError: if it cannot be compiled.
    """
    if _POOLS:
        return _POOLS[0]
    with _STARTING:
        if not _POOLS:
            _POOLS.append(_started(*_built()))
    return _POOLS[0]


def start_pool(content: bytes) -> None:
    """Start the pool of a shared object that another process compiled."""
    with _STARTING:
        if not _POOLS:
            _POOLS.append(_started(loaded(content), content))


def _built() -> tuple[ctypes.CDLL, bytes]:
    compiler = find_compiler()
    source = files(__package__).joinpath("pool.c").read_text()
    return load_with_content(compiler, source, (*compiler.flags, "-pthread"))


def _started(library: ctypes.CDLL, content: bytes) -> Pool:
    threads = n_threads()
    library.feinsum_start.restype = ctypes.c_int64
    threshold_s = library.feinsum_start(threads) * 1e-9
    parallel, arena = (
        ctypes.cast(function, ctypes.c_void_p)
        for function in (library.feinsum_parallel, library.feinsum_arena)
    )
    library.feinsum_call.argtypes = (*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
    call = library.feinsum_call
    return Pool(library, parallel, arena, call, threads, threshold_s, content)


if hasattr(os, "register_at_fork"):

    def _free_lock() -> None:
        """The child lacks the thread that may hold the lock: it would stay locked."""
        global _STARTING
        _STARTING = Lock()

    os.register_at_fork(after_in_child=_free_lock)
