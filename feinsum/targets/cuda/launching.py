"""Repeated launches of a kernel, for which the host does as little as it can."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

__all__ = ["Launcher"]

SLOT_BYTES = 8
"""Of one argument: a pointer, or a number that is no longer."""


class Launcher:
    """A kernel with its sizes, and room for its arguments.

    Args:
        launch: ``cuLaunchKernel``, with addresses as numbers.
        function: the kernel; its ``ptr`` is its handle.
        sizes: of grid and block, and bytes of shared memory.
        values: the arguments in their order; None for an array.
    """

    def __init__(
        self,
        launch: Callable[..., None],
        function: Any,
        sizes: Sequence[int],
        values: Sequence[np.generic | None],
    ) -> None:
        slots = (ctypes.c_uint64 * len(values))()
        start = ctypes.addressof(slots)
        places = [start + SLOT_BYTES * k for k in range(len(values))]
        for place, value in zip(places, values, strict=True):
            if value is not None:
                # the driver reads as many bytes of a slot as the parameter has
                ctypes.memmove(place, value.tobytes(), value.nbytes)
        self._function = function  # which keeps its module loaded
        self._launch, self._head = launch, (function.ptr, *sizes)
        self._slots, self._turn = slots, Lock()
        self._places = (ctypes.c_void_p * len(values))(*places)
        self._tail = ctypes.addressof(self._places), 0
        self._arrays = [k for k, value in enumerate(values) if value is None]

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on a stream, with the addresses of the arrays."""
        slots = self._slots
        # the driver copies the arguments before it returns: then the slots are free
        with self._turn:
            for k, address in zip(self._arrays, addresses, strict=True):
                slots[k] = address
            self._launch(*self._head, stream, *self._tail)
