"""A call that is ready: what it reads, and the kernel that computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feinsum.calling.arguments import packed
from feinsum.calling.kernel import CallKernel, CallOptions
from feinsum.calling.reading import Feed, Reading
from feinsum.targets.opencl.residence import device_zeros
from feinsum.targets.protocol import Array, Caller

__all__ = ["PreparedCall", "Take", "from_device", "from_host"]

Take = Callable[[Any], Any]
"""From an operand as it was given to the array that a kernel gets."""


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """What is kept for calls of one notation, of arrays that lie alike.

    Attributes:
        kernel: None where nothing is to be computed, since an extent is zero.
        options: how the kernel was looked up.
        takes: for each array of the kernel the position of an operand, and what is
            made of it.
        caller: the kernel with its scalars; None without a kernel.
        writes_out: whether ``out`` is written by the kernel itself.
    """

    reading: Reading
    kernel: CallKernel | None
    options: CallOptions
    takes: tuple[tuple[int, Take | None], ...] = ()
    caller: Caller | None = None
    writes_out: bool = False

    def run(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """The result, a new array beside the operands, or ``out``.

        Args:
            arrays: of the shapes, dtypes and strides that were read, all on the host
                or all in one context.
            out: of the shape and dtype of the result, and of the strides that were
                read.
        """
        caller, reading = self.caller, self.reading
        if caller is None:
            return _put(self._zeros(arrays), out)
        inputs = [
            arrays[position] if take is None else take(arrays[position])
            for position, take in self.takes
        ]
        if out is not None and self.writes_out and not _share_memory(out, inputs):
            return caller(inputs, out)
        result = caller(inputs)
        if reading.dtype != reading.work_dtype:
            result = np.asarray(result != 0)
        return _put(result, out)

    def _zeros(self, arrays: Sequence[Any]) -> Any:
        reading, queue = self.reading, getattr(arrays[0], "queue", None)
        if queue is None:
            return np.zeros(reading.shape, reading.dtype)
        return device_zeros(queue, reading.shape, reading.dtype)


def _share_memory(out: Array, inputs: Sequence[Array]) -> bool:
    """Whether a kernel would write what it reads."""
    return any(np.may_share_memory(out, array) for array in inputs)


def _put(result: Any, out: Any) -> Any:
    """The result where it was asked for."""
    if out is None:
        return result
    out[...] = result.get() if hasattr(result, "get") else result
    return out


def from_host(feed: Feed, dtype: np.dtype[Any]) -> Take:
    """A copy of an operand that a kernel cannot read where it is."""

    def take(array: Array) -> Array:
        return packed(array, feed.shape, dtype)

    return take


def from_device(feed: Feed, dtype: np.dtype[Any]) -> Take:
    """An operand on a device in the shape and dtype of the kernel's array."""

    def take(array: Any) -> Any:
        shaped = array if array.shape == feed.shape else array.reshape(feed.shape)
        return shaped if shaped.dtype == dtype else shaped.astype(dtype)

    return take
