"""The threads that run kernels of the host: one pool for the process, in C."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from importlib.resources import files
from threading import Lock
from typing import Any

from feinsum.targets.host.compiler import find_compiler
from feinsum.targets.host.library import load
from feinsum.targets.host.threads import n_threads

__all__ = ["Pool", "pool"]


@dataclass(frozen=True)
class Pool:
    """The threads of this process.

    Attributes:
        parallel, arena: functions that kernels call.
        call: calls an entry point with arrays as objects; see ``pool.c``.
        threshold_s: how long a kernel runs before it is shared by threads.
    """

    library: ctypes.CDLL
    parallel: ctypes.c_void_p
    arena: ctypes.c_void_p
    call: Any
    n_threads: int
    threshold_s: float


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
            _POOLS.append(_started())
    return _POOLS[0]


def _started() -> Pool:
    compiler, threads = find_compiler(), n_threads()
    source = files(__package__).joinpath("pool.c").read_text()
    library = load(compiler, source, (*compiler.flags, "-pthread"))
    library.feinsum_start.restype = ctypes.c_int64
    threshold_s = library.feinsum_start(threads) * 1e-9
    parallel, arena = (
        ctypes.cast(function, ctypes.c_void_p)
        for function in (library.feinsum_parallel, library.feinsum_arena)
    )
    library.feinsum_call.argtypes = (*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
    return Pool(library, parallel, arena, library.feinsum_call, threads, threshold_s)


if hasattr(os, "register_at_fork"):

    def _free_lock() -> None:
        """The thread that started the pool is not in the child."""
        global _STARTING
        _STARTING = Lock()

    os.register_at_fork(after_in_child=_free_lock)
