"""Where the temporaries of a kernel lie that are too large for the stack."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from loopy.kernel.data import AddressSpace

__all__ = ["ALIGNMENT", "bytes_in_scratch", "global_temporaries", "scratch_places"]

LARGE_BYTES = 16 * 1024
"""Private arrays of this size or more are in the scratch memory of a thread, since its
stack may not hold them."""

ALIGNMENT = 64
"""Alignment of arrays allocated for a kernel, in bytes: a cache line."""


def global_temporaries(kernel: Any) -> list[Any]:
    """Those that work-groups share, by name."""
    return sorted(
        (
            t
            for t in kernel.temporary_variables.values()
            if t.address_space == AddressSpace.GLOBAL
        ),
        key=lambda t: str(t.name),
    )


def scratch_places(kernel: Any) -> dict[str, int]:
    """Where each large private array begins in the scratch memory, in bytes."""
    places, end = {}, 0
    for name in sorted(kernel.temporary_variables):
        size = bytes_in_scratch(kernel.temporary_variables[name])
        if size:
            places[name] = end
            end += size
    return places


def bytes_in_scratch(temporary: Any) -> int:
    """Size of a large private array, rounded up; 0 if it is not large."""
    is_private = temporary.address_space == AddressSpace.PRIVATE
    if not is_private or temporary.initializer is not None or temporary.base_storage:
        return 0
    shape = temporary.shape
    if not all(isinstance(extent, int | np.integer) for extent in shape):
        return 0
    size = int(prod(shape)) * temporary.dtype.numpy_dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT if size >= LARGE_BYTES else 0
