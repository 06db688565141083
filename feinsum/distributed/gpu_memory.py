"""Blocks of ranks in the memory of GPUs, as arrays of CuPy.

Buffers of a rank are where its blocks are. Leaves, sums and copies then run on the GPU,
by the functions of numpy that CuPy implements, and messages go from GPU to GPU if MPI
can read their memory, else through the host::

    rank 0, GPU 0                        rank 1, GPU 1
    A: cupy.ndarray                      B: cupy.ndarray
      |  Isend (CUDA-aware MPI)  --->      A: cupy.ndarray
      |  or: copy to the host, Isend, copy from the host

Arrays of other libraries are converted by ``cupy.from_dlpack``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from feinsum.errors import PlanError
from feinsum.extras import require_extra

_QUERIES = ("MPIX_Query_cuda_support", "MPIX_GPU_query_support")
"""Functions of Open MPI and of MPICH that report whether they read memory of GPUs."""

_MPICH_CUDA = 0
"""``MPIX_GPU_SUPPORT_CUDA`` of MPICH."""


def is_on_gpu(value: Any) -> bool:
    """Return whether an array is in the memory of a GPU."""
    return hasattr(value, "__cuda_array_interface__")


def check_gpu_array(value: Any) -> Any:
    """Return an array on a GPU, which must be CuPy's.

    Raises:
        PlanError: with the rule ``blocks``, for an array of another library.
    """
    # what buffers need of it: numpy's functions, and copies to the host
    if not (hasattr(value, "get") and hasattr(value, "__array_function__")):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise PlanError(
            f"a block on a GPU is a {kind}; plans take arrays of CuPy there: convert "
            "it by cupy.from_dlpack(block)",
            rules=("blocks",),
        )
    return value


def make_prototype(block: Any = None) -> Any:
    """Return an empty array on the GPU of a block; by default, on the current one.

    Arrays made ``like`` it are on that GPU, and it keeps no block alive.

    Raises:
        PlanError: with the rule ``gpu``, if no block is given and CuPy is missing.
    """
    if block is not None:
        return np.empty(0, like=block)
    refusal = partial(PlanError, rules=("gpu",))
    with require_extra("cupy", "cuda", "a plan with blocks on GPUs", refusal):
        import cupy
    return cupy.empty(0)


def find_prototype(arrays: Mapping[str, Any], owner: str) -> Any:
    """Return an empty array on the GPU that has all arrays; None if the host has them.

    Args:
        arrays: blocks or operands by name.
        owner: whose arrays they are, for the message.

    Raises:
        PlanError: with the rule ``blocks``, if only some are on a GPU.
    """
    on_gpu = [name for name, array in arrays.items() if is_on_gpu(array)]
    if not on_gpu:
        return None
    on_host = [name for name in arrays if name not in on_gpu]
    if on_host:
        raise PlanError(
            f"{owner}: {', '.join(on_gpu)} on a GPU, {', '.join(on_host)} on the host; "
            "pass all of them on the GPU (cupy.asarray), or none",
            rules=("blocks",),
        )
    return make_prototype(arrays[on_gpu[0]])


def to_host(array: Any) -> Any:
    """Copy an array from a GPU to the host; others are returned as they are."""
    return array.get() if is_on_gpu(array) else array


def get_free_gpu_bytes(array: Any) -> int:
    """Return the free memory of the GPU of an array."""
    free, _total = array.device.mem_info
    return int(free)


def synchronize(array: Any) -> None:
    """Wait for the GPU of an array; on the host, nothing is under way."""
    if is_on_gpu(array):
        array.device.synchronize()


@cache
def is_mpi_cuda_aware() -> bool:
    """Return whether the loaded MPI sends from memory of GPUs, as far as it reports."""
    library = ctypes.CDLL(None)
    open_mpi, mpich = (getattr(library, name, None) for name in _QUERIES)
    if open_mpi is not None:
        return bool(open_mpi())
    if mpich is None:
        return False
    is_supported = ctypes.c_int(0)
    return mpich(_MPICH_CUDA, ctypes.byref(is_supported)) == 0 and bool(is_supported)
