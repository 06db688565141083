"""Arrays of devices, told apart from those of the host before anything is loaded."""

from __future__ import annotations

import sys
from typing import Any

CUDA = 2
"""``kDLCUDA`` of DLPack."""

ALIGNMENT = 16
"""Of arrays on a GPU in bytes, as kernels expect it: the most that one instruction
moves. What is aligned to less is copied.
"""


def is_cuda_array(value: object) -> bool:
    """Whether this is an array on a GPU of CUDA, of whatever library; by DLPack.

    Not one in several places, or in none: of those a library does not name the device.
    """
    place = getattr(value, "__dlpack_device__", None)
    try:
        return place is not None and int(place()[0]) == CUDA
    except (BufferError, RuntimeError, TypeError, ValueError):  # as libraries differ
        return False


def is_device_array(value: object) -> bool:
    """Whether this is a :class:`pyopencl.array.Array`; pyopencl is not imported."""
    module = sys.modules.get("pyopencl.array")  # another thread may still import it
    return isinstance(value, getattr(module, "Array", ()))


def resolved(array: Any) -> Any:
    """An array whose memory has its entries.

    A tensor of torch may note that its entries are to be negated or conjugated. DLPack
    drops the first note and refuses tensors with the second.
    """
    if getattr(array, "is_neg", bool)():
        array = array.resolve_neg()
    if getattr(array, "is_conj", bool)():
        array = array.resolve_conj()
    return array
