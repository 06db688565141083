"""The structure of a call: the properties that calls share if one kernel computes them.

A kernel on the host gets addresses, strides and long extents when it is called. So
products of matrices with 600 and with 700 rows have one structure::

    ij,jk->ik   (600, 40) (40, 30)    i0 i1, i1 i2 -> i0 i2    a0[n0,40] a1[40,30]
    ij,jk->ik   (700, 40) (40, 30)    i0 i1, i1 i2 -> i0 i2    a0[n0,40] a1[40,30]
    ...a,ab     (9, 80, 40) (40, 30)  likewise, once its first two axes are one

An array is addressed from its first entry, in strides of whole entries. So views,
including transposed, reversed, broadcast and strided arrays, are read in place. Arrays
of another dtype or byte order, or with strides that are not multiples of the entry
size, are copied.

This module loads no code generator. So a process can call a kernel that another process
has built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from constantdict import constantdict

from feinsum.calling.einsum_call import (
    Argument,
    EinsumCall,
    StridedTerm,
    compute_c_steps,
    normalize_terms,
    parse_call,
    with_terms,
)
from feinsum.calling.operands import (
    ArrayForm,
    DType,
    as_array,
    find_first_uses,
    get_form,
)
from feinsum.calling.terms import Shape
from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.result_memory import check_free_memory

if TYPE_CHECKING:  # kernels of other processes run without a code generator
    from feinsum.codegen import Strides
    from feinsum.targets.protocol import Array

OUTPUT = "out"
"""The name of the result in a kernel of one row."""
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
Layouts = Mapping[str, ArgumentLayout]
"""The layouts of arguments, and perhaps of the result, by name."""


def choose_operand_layout(
    argument: Argument, form: ArrayForm, dtype: DType
) -> ArgumentLayout:
    """Return the layout with which a kernel of some dtype reads an operand of a form.

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


def list_strides(layouts: Layouts) -> dict[str, Strides]:
    """Return the strides of the arrays that are not in C order, by array name."""
    return {
        n: layout.strides for n, layout in layouts.items() if layout.strides is not None
    }


def list_stride_values(layouts: Layouts) -> dict[str, int]:
    """Return the values of all named strides."""
    return {name: value for x in layouts.values() for name, value in x.values.items()}


@dataclass(frozen=True)
class LaidOutCall:
    """A call as an einsum of arrays that a kernel addresses.

    Attributes:
        layouts: the layout of each argument, and of the result, by name.
        terms: the same as terms with strides, of a normalized call; else empty.
    """

    parsed: EinsumCall
    layouts: Layouts
    terms: Mapping[str, StridedTerm] = constantdict()

    @property
    def constants(self) -> dict[str, int]:
        """The values of sizes and strides that a kernel gets, by name."""
        return {**self.parsed.sizes, **list_stride_values(self.layouts)}


@dataclass(frozen=True, eq=False)
class CallStructure:
    """A call of host arrays, and the layout of its memory.

    Attributes:
        forms: forms of the operands.
        target: the form of ``out``; None for a new result.
    """

    parsed: EinsumCall
    forms: tuple[ArrayForm, ...]
    target: ArrayForm | None = None

    @cached_property
    def written(self) -> LaidOutCall:
        """The einsum as it was written, and how a kernel addresses its arrays."""
        dtype, target = self.parsed.work_dtype, self.target
        layouts = {
            x.name: choose_operand_layout(x, self.forms[x.position], dtype)
            for x in self.parsed.arguments
        }
        layouts[OUTPUT] = (
            IN_ORDER if target is None else choose_output_layout(OUTPUT, target, dtype)
        )
        return LaidOutCall(self.parsed, layouts)

    @cached_property
    def normal(self) -> LaidOutCall:
        """The same einsum over the same memory, with as few axes as possible."""
        parsed = self.parsed
        terms_in_memory = [
            self._make_strided_term(term, parsed.arguments[k])
            for k, term in zip(parsed.uses, parsed.inputs, strict=True)
        ]
        output = StridedTerm(parsed.output, parsed.shape, compute_c_steps(parsed.shape))
        if self.target is not None and self.written.layouts[OUTPUT].is_in_place:
            itemsize = self.target.dtype.itemsize
            steps = tuple(step // itemsize for step in self.target.strides)
            output = replace(output, steps=steps)
        inputs, output, varying = normalize_terms(
            terms_in_memory, output, parsed.varying
        )
        normal = with_terms(parsed, inputs, output, varying)
        names = [normal.arguments[k].name for k in normal.uses]
        terms = {**dict(zip(names, inputs, strict=True)), OUTPUT: output}
        layouts = {name: make_strided_layout(name, x) for name, x in terms.items()}
        return LaidOutCall(normal, layouts, terms)

    def _make_strided_term(
        self, term: tuple[str, ...], argument: Argument
    ) -> StridedTerm:
        """Return the memory layout of the array that a kernel reads."""
        shape = argument.shape
        if not self.written.layouts[argument.name].is_in_place:
            return StridedTerm(term, shape, compute_c_steps(shape))
        form = self.forms[argument.position]
        steps = iter(
            step // form.dtype.itemsize
            for step, extent in zip(form.strides, form.shape, strict=True)
            if extent != 1
        )
        return StridedTerm(
            term, shape, tuple(1 if extent == 1 else next(steps) for extent in shape)
        )

    @property
    def text(self) -> str:
        """A text that is equal for calls that one kernel can compute, at any sizes."""
        descriptions = [
            (
                call.parsed.structure,
                call.parsed.has_wide_sums,
                [(x.is_in_place, x.strides) for x in call.layouts.values()],
            )
            for call in (self.written, self.normal)
        ]
        return f"{self.parsed.dtype} {descriptions}"

    def get_call(self, *, is_normal: bool) -> LaidOutCall:
        """Return the normalized call, or the one as it was written."""
        return self.normal if is_normal else self.written


def read_call(subscripts: str, *operands: Any) -> EinsumCall:
    """Return the einsum to tune for a call: the same one with as few axes as possible.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: arrays, or anything that numpy can convert to arrays; an object passed
            twice is one operand.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.

    >>> import numpy as np
    >>> u = np.ones((1000, 3))
    >>> call = read_call("ei,ej->eij", u, u)
    >>> print(call.einsum)
    {i0}{i1}, {i0}{i2} -> {i0}{i1}{i2} of (a0 a0) with a0[n0,3]:<f8
    >>> dict(call.sizes), call.shape
    ({'n0': 1000}, (1000, 3, 3))
    """
    forms = tuple(get_form(as_array(x, k)) for k, x in enumerate(operands))
    return _normalize(subscripts, forms, find_first_uses(operands))


def find_call_of(einsum: BatchedEinsum) -> EinsumCall | None:
    """Return the einsum to tune for a call of C-contiguous arrays.

    None for what is no call on the host: several rows, a sparse operand, sizes that are
    not known, and arrays that no kernel supports.

    >>> from feinsum.ir import array, einsum
    >>> scaled = einsum("bij,b->bij", array("A", (9, 2, 3)), array("x", 9))
    >>> find_call_of(scaled).einsum.subscripts
    '{i0}{i1}, {i0} -> {i0}{i1}'
    """
    is_sparse = einsum.sparse_position is not None
    if einsum.batch_size > 1 or is_sparse or einsum.size_params:
        return None
    (row,) = einsum.rows
    names = [operand.name for operand in row]
    forms = []
    for operand in row:
        shape = tuple(n for n in operand.shape if isinstance(n, int))
        steps = (n * operand.dtype.itemsize for n in compute_c_steps(shape))
        forms.append(ArrayForm(shape, tuple(steps), operand.dtype, True))
    try:
        return _normalize(einsum.subscripts, forms, [names.index(n) for n in names])
    except FeinsumError:
        return None


def _normalize(
    subscripts: str, forms: Sequence[ArrayForm], first: Sequence[int]
) -> EinsumCall:
    shapes = [(form.shape, form.dtype) for form in forms]
    parsed = parse_call(subscripts, shapes, first)
    if parsed.is_empty:
        return parsed
    return CallStructure(parsed, tuple(forms)).normal.parsed
