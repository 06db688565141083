"""Where the arrays of a call lie: on the host, or on an OpenCL device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feinsum.device_arrays import is_device_array
from feinsum.errors import MeasurementError
from feinsum.targets.opencl.device import OpenCLDevice, describe
from feinsum.targets.opencl.door import pyopencl
from feinsum.words import type_in_words


def check_device_arrays(arrays: Sequence[Any]) -> None:
    """Refuse what a kernel of one context cannot be given.

    Raises:
        MeasurementError: if an array is on the host, in another context than the first,
            without a queue, of booleans, or not C-contiguous from the start of its
            buffer.
    """
    for position, array in enumerate(arrays):
        if not is_device_array(array):
            raise MeasurementError(
                f"operand {position} is {type_in_words(array)} on the host, while "
                "others are on a device; pass arrays of one kind"
            )
        if array.queue is None or array.context != arrays[0].context:
            raise MeasurementError(
                f"operand {position} has no queue, or a different context than operand "
                "0; see pyopencl.array.Array.with_queue"
            )
        if not array.flags.c_contiguous or array.offset:
            raise MeasurementError(
                f"operand {position} has strides {array.strides} and offset "
                f"{array.offset} on the device; give a C-contiguous copy"
            )
        if array.dtype.kind == "b":
            raise MeasurementError(
                f"operand {position} has booleans on the device, which pyopencl does "
                "not convert; pass integers"
            )


def device_of(array: Any) -> OpenCLDevice:
    """The device on which an array lies, with the array's own context and queue."""
    queue = array.queue
    return OpenCLDevice(describe(queue.device), queue.context, queue)


def device_zeros(queue: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array of zeros on a device."""
    return pyopencl().array.zeros(queue, shape, dtype)
