"""Loaded kernels of the host, their calls, and the threads that run them.

The threads are a pool in C, one for the process. A call passes a table of addresses to
the entry point, one for each argument in order::

    slots = [&A[0], &x[0], &y[0], &n]  ->  feinsum_entry(slots, pool.parallel,
    pool.arena)
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.targets.host.compiler import (
    ENTRY,
    Compiler,
    compile_once,
    find_compiler,
    load,
    load_content,
    load_with_content,
)
from feinsum.threads import get_n_threads

if TYPE_CHECKING:
    from feinsum.targets.protocol import Array


@dataclass(frozen=True)
class Pool:
    """The threads of this process.

    Attributes:
        library: the loaded library of the pool.
        parallel, arena: functions that kernels call.
        call: calls an entry point with arrays as objects; see ``pool.c``.
        n_threads: number of threads.
        threshold_s: seconds from which a kernel is run by several threads.
        content: the shared object, from which other processes start their pools.
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


def get_pool() -> Pool:
    """Return the pool of threads, started on first use.

    Raises:
        DeviceUnavailableError, BuildError: if the pool cannot be compiled.
    """
    if _POOLS:
        return _POOLS[0]
    with _STARTING:
        if not _POOLS:
            _POOLS.append(_start(*_build_pool()))
    return _POOLS[0]


def start_pool(content: bytes) -> None:
    """Start the pool of a shared object that another process compiled."""
    with _STARTING:
        if not _POOLS:
            _POOLS.append(_start(load_content(content), content))


def _build_pool() -> tuple[ctypes.CDLL, bytes]:
    compiler = find_compiler()
    source = files(__package__).joinpath("pool.c").read_text()
    return load_with_content(compiler, source, (*compiler.flags, "-pthread"))


def _start(library: ctypes.CDLL, content: bytes) -> Pool:
    # the pool measures how long it takes to wake threads; shorter kernels use one
    threads = get_n_threads()
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
        """Replace the lock in a fork, where the thread that holds it does not exist."""
        global _STARTING
        _STARTING = Lock()

    os.register_at_fork(after_in_child=_free_lock)


@dataclass(frozen=True)
class HostCode:
    """Code that Loopy generates for a kernel.

    Attributes:
        source: source in C.
        n_launches: number of parallel regions of one call.
        has_vectors: whether the code has vectors already.
        has_integers: whether an array has integers, which wrap.
        has_conditional_reads: whether conditions decide which entries are read.
        arguments: the name of each argument, in the order of the entry point, and the
            dtype of scalars.
        invoker: checks the arguments of a call, allocates results, and calls the
            kernel.
    """

    source: str
    n_launches: int
    has_vectors: bool
    has_integers: bool
    has_conditional_reads: bool
    arguments: tuple[tuple[str, np.dtype[Any] | None], ...]
    invoker: Callable[..., Any]

    def compiled_once(self, flags: tuple[str, ...] = ()) -> bytes:
        """Compile to a shared object, or take it from the cache, without loading it.

        Args:
            flags: options of the compiler; by default those of this project.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            BuildError: if it fails.
        """
        compiler = find_compiler()
        return compile_once(compiler, self.source, flags or self.choose_flags(compiler))

    def choose_flags(self, compiler: Compiler) -> tuple[str, ...]:
        """Return the options of a compiler for this code."""
        return compiler.choose_flags(
            has_vectors=self.has_vectors,
            has_integers=self.has_integers,
            has_conditional_reads=self.has_conditional_reads,
        )


@dataclass(frozen=True, eq=False)
class HostKernel:
    """A kernel that is compiled and loaded.

    Attributes:
        arguments: see :class:`HostCode`.
    """

    library: ctypes.CDLL
    arguments: tuple[tuple[str, np.dtype[Any] | None], ...]

    @classmethod
    def of(cls, code: HostCode) -> HostKernel:
        """Compile and load.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            BuildError: if it fails.
        """
        compiler = find_compiler()
        library = load(compiler, code.source, code.choose_flags(compiler))
        return cls(library, code.arguments)

    def __call__(self, *values: Any) -> None:
        """Run on values in the order of the arguments."""
        self.launch(values).run()

    def launch(self, values: Sequence[Any]) -> Launch:
        """Prepare a call that can be made any number of times.

        Args:
            values: arrays, from whose first entry the kernel counts, and scalars.
        """
        owners: list[Any] = []
        slots = (ctypes.c_void_p * len(values))()
        for position, (value, (_, dtype)) in enumerate(
            zip(values, self.arguments, strict=True)
        ):
            array = value if dtype is None else np.array(value, dtype)
            owners.append(array)
            slots[position] = array.ctypes.data
        return Launch(self._entry, slots, tuple(owners), get_pool())

    def launch_of(self, values: Mapping[str, Any]) -> Launch:
        """Prepare a call with values by name; see :meth:`launch`."""
        return self.launch([values[name] for name, _ in self.arguments])

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any]
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function of the arrays ``names`` with minimal overhead per call.

        Args:
            names: names of the arrays, in the order of the function's arguments.
            constants: the scalars by name.
        """
        scalars = {
            name: np.array(constants[name], dtype)
            for name, dtype in self.arguments
            if dtype is not None
        }
        order = [name for name, _ in self.arguments]
        positions = [order.index(name) for name in names]
        slots = [scalars[n].ctypes.data if n in scalars else 0 for n in order]
        offset = find_address_offset()
        if offset is None:
            return self._call_by_address(slots, positions, scalars)
        table, n = ctypes.c_void_p * len(order), len(positions)
        numbers = (ctypes.c_int64 * n)(*positions)
        entry = ctypes.cast(self._entry, ctypes.c_void_p)
        shared_call = get_pool().call

        # slots has the addresses of the scalars, which _owners keeps alive; each call
        # fills its own table, because several threads may call concurrently
        def call(arrays: Sequence[Any], _owners: Any = scalars) -> None:
            addresses = slots.copy()
            for position, array in zip(positions, arrays, strict=True):
                # in CPython, the address of the object, from which C reads the data
                # pointer, because array.ctypes takes longer than a small kernel
                addresses[position] = id(array)
            if shared_call(entry, table(*addresses), numbers, n, offset):
                raise MeasurementError(NO_MEMORY)

        return call

    def _call_by_address(
        self, slots: list[int], positions: Sequence[int], owners: Any
    ) -> Callable[[Sequence[Any]], None]:
        """Return the same function, if the layout of numpy's objects is unknown."""
        entry, shared, table = self._entry, get_pool(), ctypes.c_void_p * len(slots)

        # as in caller: _owners keeps the scalars alive, tables are per call
        def call(arrays: Sequence[Any], _owners: Any = owners) -> None:
            addresses = slots.copy()
            for position, array in zip(positions, arrays, strict=True):
                addresses[position] = array.ctypes.data
            if entry(table(*addresses), shared.parallel, shared.arena):
                raise MeasurementError(NO_MEMORY)

        return call

    @property
    def _entry(self) -> Any:
        return getattr(self.library, ENTRY)


@cache
def find_address_offset() -> int | None:
    """Find the offset, in bytes, of the data pointer in numpy's array objects.

    In numpy's ABI it follows the head of the object, whose length depends on the build
    of Python. None if this is not true for several kinds of arrays.
    """
    if platform.python_implementation() != "CPython":
        return None
    samples: list[Array] = [
        np.empty(3),
        np.empty((2, 2), np.float32).T,
        np.empty(8, np.int8)[5:],
    ]
    offset = object.__basicsize__
    addresses = (
        ctypes.c_void_p.from_address(id(sample) + offset).value for sample in samples
    )
    is_there = all(
        address == array.ctypes.data
        for address, array in zip(addresses, samples, strict=True)
    )
    return offset if is_there else None


NO_MEMORY = "the kernel failed to run: there is no memory for its temporaries"


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with the memory that it works on.

    Attributes:
        entry: the entry point.
        slots: the address of each argument, which may be changed between runs.
        owners: the objects whose memory the addresses refer to.
        pool: the threads.
    """

    entry: Any
    slots: Any
    owners: tuple[Any, ...]
    pool: Pool

    def run(self) -> None:
        """Run once and wait for the end.

        Raises:
            MeasurementError: if there is no memory for temporaries.
        """
        if self.entry(self.slots, self.pool.parallel, self.pool.arena):
            raise MeasurementError(NO_MEMORY)
