"""Memory for results, reused when no array holds the result any more.

The system clears every page of new memory, which takes as long as a kernel takes to
fill it: an outer product of 28.8 million entries ran twice as long into new memory. So
the memory of a large result returns to a store when the last array over it is gone, and
the next result of about that size gets it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.memory import get_remembered

Array = np.ndarray[Any, Any]

IDLE_VARIABLE = "FEINSUM_IDLE_BYTES"
"""Environment variable: bytes of idle memory to keep for results; 0 for none."""

LARGE_BYTES = 1 << 17
"""Results of this size or more are in reused memory; for smaller ones, glibc reuses
memory itself.
"""
LINE = 64
"""Results begin at a cache line, where vectors can be stored past the caches."""
CHECKED_BYTES = 1 << 28
"""Results of this size or more are allocated only if they fit into memory."""
MAX_IDLE_BYTES = 1 << 30
"""Default limit: some results of the largest einsums that fit a small machine."""
STEPS = 8
"""Sizes between a power of two and the next, to which requests are rounded up."""


def get_idle_limit_bytes() -> int:
    """Return the value of the variable; by default 1 GiB, or an eighth of the memory.

    Raises:
        MeasurementError: if the variable is no number.
    """
    named = os.environ.get(IDLE_VARIABLE, "").strip()
    # an eighth, so that a small machine keeps room for operands
    if not named:
        return min(MAX_IDLE_BYTES, _get_total_bytes() // 8)
    if not named.isdecimal():
        raise MeasurementError(
            f"{IDLE_VARIABLE} is {named!r}; expected a number of bytes, or 0"
        )
    return int(named)


def _get_total_bytes() -> int:
    """Return the memory of the machine, if possible without loading psutil."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return int(_read_memory().total)


def _read_memory() -> Any:
    """Return the memory of the machine."""
    import psutil  # takes as long to load as all that a first call needs

    return psutil.virtual_memory()


class ResultMemory:
    """Idle blocks by their sizes.

    Threads share it: a block leaves and enters by one operation on a list.
    """

    def __init__(self) -> None:
        self.limit_bytes = get_idle_limit_bytes()
        self.idle_bytes = 0
        self._idle: dict[int, list[_Block]] = {}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array in a block that returns here when no array uses it."""
        size = round_up(prod(shape) * dtype.itemsize)
        # popping from a list is atomic, so that no lock is needed
        waiting = self._idle.get(size)
        try:
            block = waiting.pop() if waiting else None
        except IndexError:  # another thread was faster
            block = None
        if block is None:
            self.check_room(size, "a result", "or give out=")
            block = _Block.of(size)
        else:
            self.idle_bytes -= size
        return np.asarray(_Lease(self, size, block, shape, dtype))

    def check_room(self, size: int, description: str, hint: str = "") -> None:
        """Refuse what the memory cannot hold; idle blocks are dropped first.

        The system would grant the memory, and kill the process when it is written.
        """
        if size < CHECKED_BYTES or size <= _read_memory().available:
            return
        # idle blocks are memory that the system does not count as free
        self._idle.clear()
        self.idle_bytes = 0
        free = _read_memory().available
        if size > free:
            advice = ", ".join(filter(None, ("compute it in parts", hint)))
            raise MeasurementError(
                f"{description} of {size / 1e9:.1f} GB does not fit into memory, of "
                f"which {free / 1e9:.1f} GB are free: {advice}"
            )

    def keep(self, size: int, block: _Block) -> None:
        """Keep a block for the next result; drop others beyond the limit."""
        # one block beyond the limit would drop all others
        if size > self.limit_bytes:
            return
        self._idle.setdefault(size, []).append(block)
        self.idle_bytes += size
        if self.idle_bytes > self.limit_bytes:
            self._trim()

    def _trim(self) -> None:
        """Drop blocks until the rest is within the limit.

        Idle bytes are counted anew: concurrent threads may lose an update.
        """
        waiting = [*self._idle.items()]
        self.idle_bytes = sum(size * len(blocks) for size, blocks in waiting)
        for size, blocks in waiting:
            while blocks and self.idle_bytes > self.limit_bytes:
                blocks.pop(0)
                self.idle_bytes -= size


class _Block(NamedTuple):
    """Memory, and the address of its first cache line.

    The address is kept, since numpy takes a microsecond to return it.
    """

    memory: Array
    address: int

    @classmethod
    def of(cls, size: int) -> _Block:
        memory = np.empty(size + LINE, np.uint8)
        return cls(memory, memory.ctypes.data + -memory.ctypes.data % LINE)


class _Lease:
    """The owner of an array in a block, and of every view of the array.

    Numpy keeps a reference to the object that offers an array by this interface. For a
    memoryview, it would keep one to the underlying object instead.
    """

    __slots__ = ("__array_interface__", "block", "memory", "size")

    def __init__(
        self,
        memory: ResultMemory,
        size: int,
        block: _Block,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.memory, self.size, self.block = memory, size, block
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (block.address, False),
        }

    def __del__(self) -> None:
        self.memory.keep(self.size, self.block)


def round_up(n_bytes: int) -> int:
    """Round a size up to that of a block, at most an eighth larger.

    >>> round_up(1 << 20), round_up((1 << 20) + 1)
    (1048576, 1179648)
    """
    # eighths of a power of two: a program that varies its sizes reuses blocks, and
    # wastes at most an eighth
    step = max(1 << max(n_bytes.bit_length() - 1, 0), 1) // STEPS or 1
    return -(-n_bytes // step) * step


def check_free_memory(n_bytes: int, description: str) -> None:
    """Raise unless an array of so many bytes fits into the memory, before it is there.

    Raises:
        MeasurementError: if it does not fit what is free.
    """
    if n_bytes >= CHECKED_BYTES:
        get_remembered(ResultMemory).check_room(n_bytes, description)


def make_strided(
    shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any]
) -> Array:
    """Return a new array with these strides in bytes, which may be negative or 0."""
    last = [step * (extent - 1) for step, extent in zip(strides, shape, strict=True)]
    first = -sum(offset for offset in last if offset < 0)
    n_bytes = first + sum(offset for offset in last if offset > 0) + dtype.itemsize
    memory = make_aligned((n_bytes,), np.dtype(np.uint8))
    return np.ndarray(tuple(shape), dtype, memory, first, tuple(strides))


def make_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array; a large one is in reused memory."""
    n_bytes = prod(shape) * dtype.itemsize
    # glibc itself reuses freed memory of such sizes
    if n_bytes < LARGE_BYTES:
        return np.empty(shape, dtype)
    return get_remembered(ResultMemory).array(shape, dtype)
