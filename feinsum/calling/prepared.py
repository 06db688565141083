"""A call that is ready: what it reads, and the kernel that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feinsum.calling.kernel import CallKernel, CallOptions
from feinsum.calling.reading import Reading
from feinsum.measure.residence import device_zeros, is_device_array

__all__ = ["PreparedCall"]


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """What is kept for calls of one notation, of these shapes and dtypes.

    Attributes:
        kernel: None where nothing is to be computed, since an extent is zero.
        options: how the kernel was looked up.
    """

    reading: Reading
    kernel: CallKernel | None
    options: CallOptions

    def run(self, arrays: Sequence[Any]) -> Any:
        """The result, a new array beside the operands.

        Args:
            arrays: of the shapes and dtypes that were read, all on the host or
                all in one context.
        """
        reading, kernel = self.reading, self.kernel
        queue = arrays[0].queue if is_device_array(arrays[0]) else None
        if kernel is None:
            return _zeros(reading, queue)
        dtype = reading.work_dtype
        feed = _host_array if queue is None else _device_array
        arguments = {
            x.name: feed(arrays[x.position], x.shape, dtype) for x in reading.feeds
        }
        result = kernel.run({**arguments, **reading.sizes}, queue)
        return result if reading.dtype == dtype else np.asarray(result != 0)


def _zeros(reading: Reading, queue: Any) -> Any:
    if queue is None:
        return np.zeros(reading.shape, reading.dtype)
    return device_zeros(queue, reading.shape, reading.dtype)


def _host_array(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """C-contiguous, aligned and in the machine's byte order; a copy if need be."""
    return np.require(array.reshape(shape), dtype, ["C", "A"])


def _device_array(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    shaped = array if array.shape == shape else array.reshape(shape)
    return shaped if shaped.dtype == dtype else shaped.astype(dtype)
