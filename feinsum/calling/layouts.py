"""The memory layout of arguments, and which of them a kernel can read in place.

A kernel on the host addresses an array from its first entry, in strides of whole
entries. So views, including transposed, reversed, broadcast and strided arrays, are
read in place. Arrays of another dtype or byte order, or with strides that are not
multiples of the entry size, are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from constantdict import constantdict

from feinsum.calling.einsum_call import StridedTerm, compute_c_steps
from feinsum.calling.operands import ArrayForm, DType
from feinsum.calling.terms import Shape
from feinsum.result_memory import check_free_memory

if TYPE_CHECKING:  # kernels of other processes run without a code generator
    from feinsum.calling.einsum_call import Argument
    from feinsum.codegen import Strides
    from feinsum.targets.protocol import Array

MAX_SPAN = 2**31
"""Maximum distance, in entries, between two entries of an array read in place."""


@dataclass(frozen=True)
class ArgumentLayout:
    """The layout with which a kernel addresses an array.

    Attributes:
        is_in_place: whether the array itself is passed, not a copy.
        strides: strides for :func:`feinsum.codegen.generate_loopy`; None for C order.
        values: values of the named strides, in entries.
    """

    is_in_place: bool
    strides: tuple[int | str, ...] | None = None
    values: Mapping[str, int] = constantdict()


IN_ORDER = ArgumentLayout(is_in_place=True)
COPIED = ArgumentLayout(is_in_place=False)


def choose_operand_layout(
    argument: Argument, form: ArrayForm, dtype: DType
) -> ArgumentLayout:
    """Return the layout with which a kernel reads an operand.

    Args:
        argument: the argument of the call that the kernel reads.
        form: form of the operand as given, including broadcast axes.
        dtype: dtype of the kernel's array.

    >>> from feinsum.calling.einsum_call import Argument
    >>> from feinsum.calling.operands import get_form
    >>> transposed = np.ones((3, 2)).T
    >>> argument = Argument("a0", 0, (2, 3))
    >>> choose_operand_layout(argument, get_form(transposed), transposed.dtype).strides
    (1, 'a0_step1')
    """
    steps = [
        step
        for step, extent in zip(form.strides, form.shape, strict=True)
        if extent != 1
    ]
    long_extents = [extent for extent in argument.shape if extent != 1]
    # an axis was broadcast from extent 1, or dropped: only a copy can be reshaped
    if long_extents != [extent for extent in form.shape if extent != 1]:
        return COPIED
    remaining_steps = iter(steps)
    full = tuple(
        0 if extent == 1 else next(remaining_steps) for extent in argument.shape
    )
    return _choose_layout(
        argument.name,
        ArrayForm(argument.shape, full, form.dtype, form.is_aligned),
        dtype,
    )


def make_strided_layout(name: str, array: StridedTerm) -> ArgumentLayout:
    """Return the layout of an array; see :func:`choose_operand_layout`."""
    if array.steps == compute_c_steps(array.extents):
        return IN_ORDER
    return _name_steps(name, array.steps)


def choose_output_layout(name: str, form: ArrayForm, dtype: DType) -> ArgumentLayout:
    """Return the layout with which a kernel writes an array.

    The result is copied to an array that a kernel cannot write in place. Entries that
    share memory cannot be written in parallel.
    """
    layout = _choose_layout(name, form, dtype)
    order = sorted(
        (abs(step), extent)
        for step, extent in zip(form.strides, form.shape, strict=True)
        if extent > 1
    )
    last_offset = 0
    for step, extent in order:
        # two entries may share an address
        if step <= last_offset:
            return COPIED
        last_offset += step * (extent - 1)
    return layout


def _choose_layout(name: str, form: ArrayForm, dtype: DType) -> ArgumentLayout:
    size = dtype.itemsize
    is_readable = form.dtype == dtype and form.dtype.isnative and form.is_aligned
    if not is_readable or any(step % size for step in form.strides):
        return COPIED
    if _is_in_order(form):
        return IN_ORDER
    steps = [step // size for step in form.strides]
    spans = (abs(s) * (n - 1) for s, n in zip(steps, form.shape, strict=True))
    # offsets are 32-bit integers in kernels
    if sum(spans) >= MAX_SPAN:
        return COPIED
    return _name_steps(name, steps)


def _name_steps(name: str, steps: Sequence[int]) -> ArgumentLayout:
    """Name the steps, except 0 and 1, for which other code is fast."""
    names = {f"{name}_step{axis}": step for axis, step in enumerate(steps)}
    strides: list[int | str] = [
        # a unit step allows vector loads, and a zero step lets the compiler hoist the
        # load; so both are literals in the generated code
        step if step in (0, 1) else named
        for named, step in names.items()
    ]
    values = {named: step for named, step in names.items() if named in strides}
    return ArgumentLayout(True, tuple(strides), constantdict(values))


def _is_in_order(form: ArrayForm) -> bool:
    """Return whether an array is in C order; an axis of extent 1 may have any step."""
    expected = form.dtype.itemsize
    for extent, step in zip(form.shape[::-1], form.strides[::-1], strict=True):
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def pack_array(array: Array, shape: Shape, dtype: DType) -> Array:
    """Copy an array, aligned, in C order and native byte order.

    Raises:
        MeasurementError: if it does not fit into memory.
    """
    check_free_memory(prod(shape) * dtype.itemsize, "a copy of an operand")
    shaped = array.reshape(shape)
    # numpy converts half precision entry by entry, without vector instructions
    if array.dtype == np.float16 and dtype == np.float32:
        from feinsum.targets.host.halves import widen

        return widen(shaped)
    return np.require(shaped, dtype, ["C", "A"])


def list_strides(layouts: Mapping[str, ArgumentLayout]) -> dict[str, Strides]:
    """Return the strides of the arrays that are not in C order, by array name."""
    return {
        n: layout.strides for n, layout in layouts.items() if layout.strides is not None
    }


def list_stride_values(layouts: Mapping[str, ArgumentLayout]) -> dict[str, int]:
    """Return the values of all named strides."""
    return {name: value for x in layouts.values() for name, value in x.values.items()}
