"""Arrays and compilers of other libraries, recognized without importing them.

A library whose arrays a call gets has been imported by the caller, so a look into
``sys.modules`` suffices. No function here loads anything: ``feinsum.einsum`` calls them
before each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

CUDA = 2
"""``kDLCUDA`` of DLPack."""

ALIGNMENT = 16
"""Alignment of arrays on a GPU in bytes, as kernels expect it: the most that one
instruction moves. Arrays with a smaller alignment are copied.
"""


def is_cuda_array(value: object) -> bool:
    """Return whether this is an array of any library on a CUDA GPU, by DLPack.

    Arrays on several devices, or on none, do not count: their libraries name no device.
    """
    device_of = getattr(value, "__dlpack_device__", None)
    try:
        # DLPack gives the type and the number of the device
        return device_of is not None and int(device_of()[0]) == CUDA
    except (BufferError, RuntimeError, TypeError, ValueError):  # as libraries differ
        return False


def is_device_array(value: object) -> bool:
    """Return whether this is a :class:`pyopencl.array.Array`, without an import."""
    module = sys.modules.get("pyopencl.array")  # another thread may still import it
    return isinstance(value, getattr(module, "Array", ()))


def resolve_entries(array: Any) -> Any:
    """Return an array whose memory holds its actual entries.

    A tensor of torch may have a flag that its entries are to be negated or conjugated.
    DLPack drops the first flag, and refuses tensors with the second.
    """
    if getattr(array, "is_neg", bool)():
        array = array.resolve_neg()
    if getattr(array, "is_conj", bool)():
        array = array.resolve_conj()
    return array


P = ParamSpec("P")
R = TypeVar("R")


def is_compiling() -> bool:
    """Return whether ``torch.compile`` is tracing the program."""
    compiler: Any = sys.modules.get("torch.compiler")
    if compiler is None:
        return False
    # another thread may still import it
    is_dynamo_compiling = getattr(compiler, "is_dynamo_compiling", None)
    return is_dynamo_compiling is not None and bool(is_dynamo_compiling())


def exclude_from_compilers(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that ``torch.compile`` calls as it is, between two graphs.

    This does not import torch: a program that compiles has imported it.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        # torch would trace into numpy calls, and break the graph at each of them
        if is_compiling():
            untraced = sys.modules["torch.compiler"].disable(function)
            return cast("R", untraced(*arguments, **options))
        return function(*arguments, **options)

    return call
