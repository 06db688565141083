"""Dtypes and sizes that a kernel leaves open, taken from the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import loopy as lp
import numpy as np
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.words import counted

__all__ = ["shape_and_dtype", "sizes_of_arguments", "specialize"]


def specialize(
    t_unit: lp.TranslationUnit,
    arguments: Mapping[str, Any],
    kernel_name: str,
    long_extent: int,
) -> lp.TranslationUnit:
    """The kernel with the dtypes of ``arguments`` and their short extents.

    A size that is at least ``long_extent`` stays a parameter.

    Args:
        arguments: arrays or scalars, or ``{name: (shape, dtype)}``.

    Raises:
        NotAnEinsumError: with the rule ``arguments`` if the arguments do not
            fit the kernel.
    """
    if not isinstance(arguments, Mapping):
        raise _refuse(f"expected arguments by name, got {type(arguments).__name__}")
    if not arguments:
        return t_unit
    kernel = t_unit[kernel_name]
    sizes: dict[str, int] = {}
    dtypes = {}
    for name, given in arguments.items():
        shape, dtype = shape_and_dtype(name, given)
        arg = kernel.arg_dict.get(name)
        if arg is None:
            raise _refuse(
                f"the kernel has no argument {name!r}: {sorted(kernel.arg_dict)}"
            )
        if isinstance(arg, lp.ValueArg):
            _bind_value(sizes, name, given)
            if arg.dtype is not None:
                continue
        else:
            _bind_shape(sizes, name, arg.shape, shape)
        if arg.dtype is not None and arg.dtype.numpy_dtype != dtype:
            raise _refuse(
                f"argument {name!r} has dtype {dtype}, the kernel declares {arg.dtype}"
            )
        if dtype.kind not in "biufc":
            raise _refuse(f"argument {name!r} has dtype {dtype}; give numbers")
        dtypes[name] = dtype
    short = {
        name: size
        for name, size in sizes.items()
        if size < long_extent and name in kernel.arg_dict
    }
    t_unit = lp.add_dtypes(t_unit, _with_sizes(kernel, sizes, short, dtypes))
    return lp.fix_parameters(t_unit, **short) if short else t_unit


def sizes_of_arguments(
    kernel: lp.LoopKernel, arguments: Mapping[str, Any]
) -> dict[str, int]:
    """The values of a kernel's parameters that arguments tell."""
    sizes: dict[str, int] = {}
    for name, given in arguments.items():
        arg = kernel.arg_dict.get(name)
        if isinstance(arg, lp.ValueArg):
            _bind_value(sizes, name, given)
        elif arg is not None:
            _bind_shape(sizes, name, arg.shape, shape_and_dtype(name, given)[0])
    return sizes


def shape_and_dtype(name: str, given: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Those of an array, or of what stands for one.

    Raises:
        NotAnEinsumError: with the rule ``arguments``, if it is neither.
    """
    try:
        if isinstance(given, tuple) and len(given) == 2:
            return tuple(given[0]), np.dtype(given[1])
        if hasattr(given, "shape") and hasattr(given, "dtype"):
            return tuple(given.shape), np.dtype(given.dtype)
        scalar = np.asarray(given)
    except (TypeError, ValueError):
        raise _refuse(f"argument {name!r} is {given!r}; give an array") from None
    return scalar.shape, scalar.dtype


def _bind_value(sizes: dict[str, int], name: str, given: Any) -> None:
    if isinstance(given, (int, np.integer)):
        sizes[name] = int(given)


def _bind_shape(
    sizes: dict[str, int], name: str, declared: Any, given: tuple[int, ...]
) -> None:
    if not isinstance(declared, tuple):
        return
    if len(declared) != len(given):
        raise _refuse(
            f"argument {name!r} has {counted(len(given), 'axis')}, the kernel "
            f"declares {declared}"
        )
    for extent, size in zip(declared, given, strict=True):
        if isinstance(extent, p.Variable):
            known = sizes.setdefault(extent.name, size)
        else:
            known = extent if isinstance(extent, int) else size
        if known != size:
            raise _refuse(f"argument {name!r} has extent {size}, expected {known}")


def _with_sizes(
    kernel: lp.LoopKernel,
    sizes: Mapping[str, int],
    short: Mapping[str, int],
    dtypes: Mapping[str, np.dtype[Any]],
) -> dict[str, np.dtype[Any]]:
    """Dtypes of arguments, and index dtypes of sizes that stay parameters."""
    index = kernel.index_dtype.numpy_dtype
    long = {
        name: index
        for name in sizes
        if name in kernel.arg_dict and name not in short
        if kernel.arg_dict[name].dtype is None
    }
    return {**{n: d for n, d in dtypes.items() if n not in short}, **long}


def _refuse(what: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"arguments do not fit the kernel: {what}", rule="arguments"
    )
