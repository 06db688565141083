"""Layouts of the arguments of a Loopy kernel at given sizes: shapes and strides.

An array of shape (2, 3) whose rows are padded to 4 entries lies in a flat buffer::

    shape (2, 3)    a00 a01 a02  .  a10 a11 a12
    strides (4, 1)  |<---- 4 ---->|              n_entries = 7
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import loopy as lp
import numpy as np
from loopy.diagnostic import LoopyError
from loopy.kernel.array import (
    FixedStrideArrayDimTag,
    VectorArrayDimTag,
    get_strides,
)
from pymbolic.mapper.evaluator import UnknownVariableError, evaluate
from pymbolic.primitives import Variable

from feinsum.errors import BuildError, MeasurementError
from feinsum.words import get_first_lines

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Layout:
    """The positions of the entries of an array in a flat buffer.

    Args:
        shape: number of entries per axis.
        strides: distance of neighbours along each axis, in entries.
        dtype: dtype of the entries.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @cached_property
    def n_entries(self) -> int:
        """Length of the buffer, padding included; at least one."""
        if 0 in self.shape:
            # OpenCL has no empty buffers
            return 1
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((extent - 1) * stride for extent, stride in steps)

    @property
    def strides_bytes(self) -> tuple[int, ...]:
        return tuple(stride * self.dtype.itemsize for stride in self.strides)

    def pack(self, array: Array) -> Array:
        """Copy ``array`` to a flat buffer, with zeros in the padding."""
        buffer = np.zeros(self.n_entries, self.dtype)
        self.unpack(buffer)[...] = array
        return buffer

    def unpack(self, buffer: Array) -> Array:
        """Return the array that a flat buffer holds, as a view."""
        return np.lib.stride_tricks.as_strided(buffer, self.shape, self.strides_bytes)


def get_entry_kernel(t_unit: Any) -> Any:
    """Return the only entry point of a translation unit.

    Raises:
        BuildError: if it has none or several.
    """
    if len(t_unit.entrypoints) != 1:
        raise BuildError(
            f"the translation unit has the entry points {sorted(t_unit.entrypoints)}, "
            "expected exactly one"
        )
    return t_unit.default_entrypoint


def infer_types(t_unit: Any) -> Any:
    """Infer the dtype of every argument of a translation unit.

    Loopy infers the dtypes of arrays; sizes get the kernel's index dtype.

    Raises:
        BuildError: naming the arguments whose dtype cannot be inferred.
    """
    kernel = get_entry_kernel(t_unit)
    if all(arg.dtype is not None for arg in kernel.args):
        return t_unit
    params = kernel.outer_params()
    open_sizes = {
        arg.name: kernel.index_dtype
        for arg in kernel.args
        if isinstance(arg, lp.ValueArg) and arg.dtype is None and arg.name in params
    }
    try:
        inferred = lp.infer_unknown_types(lp.add_dtypes(t_unit, open_sizes))
    except LoopyError as error:
        raise BuildError(
            f"the dtypes of kernel {kernel.name!r} cannot be inferred: "
            f"{get_first_lines(error)}"
        ) from error
    unknown = [arg.name for arg in get_entry_kernel(inferred).args if arg.dtype is None]
    if unknown:
        raise BuildError(
            f"the dtypes of the arguments {unknown} of {kernel.name!r} cannot be "
            "inferred; set them with loopy.add_dtypes"
        )
    return inferred


def bind_sizes_of(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Collect the integer arguments, and those that follow from shapes.

    An axis whose extent is one name determines the value of that name.

    Raises:
        MeasurementError: if two axes disagree.
    """
    sizes = {
        arg.name: int(arguments[arg.name])
        for arg in kernel.args
        if isinstance(arg, lp.ValueArg)
        and isinstance(arguments.get(arg.name), (int, np.integer))
    }
    for arg in kernel.args:
        if isinstance(arg, lp.ValueArg) or arg.name not in arguments or not arg.shape:
            continue
        # only plain names: expressions such as 2*n + 1 would have to be solved for n
        shape = np.shape(arguments[arg.name])
        for axis, (extent, value) in enumerate(zip(arg.shape, shape, strict=False)):
            if not isinstance(extent, Variable):
                continue
            if sizes.setdefault(extent.name, value) != value:
                raise MeasurementError(
                    f"axis {axis} of {arg.name!r} has extent {value}, expected "
                    f"{extent.name} = {sizes[extent.name]}"
                )
    return sizes


def compute_layout(arg: Any, sizes: Mapping[str, int]) -> Layout:
    """Return the layout of an array argument of a typed kernel.

    Raises:
        MeasurementError: if a size has no value, an extent is negative, or the argument
            is not an array of known shape with one stride per axis.
    """
    tags = getattr(arg, "dim_tags", None)
    if not isinstance(arg.shape, tuple) or (arg.shape and not tags):
        raise MeasurementError(
            f"argument {arg.name!r} has shape {arg.shape!r}; expected an array whose "
            "shape and strides are known, see loopy.GlobalArg"
        )
    strided = FixedStrideArrayDimTag, VectorArrayDimTag
    if not all(isinstance(tag, strided) for tag in tags or ()):
        raise MeasurementError(
            f"argument {arg.name!r} has the axes {tags}; expected a stride on each"
        )
    try:
        shape = tuple(int(evaluate(extent, dict(sizes))) for extent in arg.shape)
        strides = tuple(int(evaluate(x, dict(sizes))) for x in get_strides(arg))
    except UnknownVariableError as error:
        raise MeasurementError(
            f"the shape ({', '.join(map(str, arg.shape))}) of {arg.name!r} needs the "
            f"size {error}: give it a value"
        ) from error
    if shape and min(shape) < 0:
        raise MeasurementError(
            f"the shape ({', '.join(map(str, arg.shape))}) of {arg.name!r} is {shape}; "
            "expected extents from 0"
        )
    return Layout(shape, strides, arg.dtype.numpy_dtype)
