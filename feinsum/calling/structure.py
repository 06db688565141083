"""The structure of a call: the properties that calls share if one kernel computes them.

A kernel on the host gets addresses, strides and long extents when it is called. So
products of matrices with 600 and with 700 rows have one structure::

    ij,jk->ik   (600, 40) (40, 30)    i0 i1, i1 i2 -> i0 i2    a0[n0,40] a1[40,30]
    ij,jk->ik   (700, 40) (40, 30)    i0 i1, i1 i2 -> i0 i2    a0[n0,40] a1[40,30]
    ...a,ab     (9, 80, 40) (40, 30)  likewise, once its first two axes are one

This module loads no code generator. So a process can call a kernel that another process
has built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from feinsum.calling.einsum_call import (
    Argument,
    EinsumCall,
    StridedTerm,
    compute_c_steps,
    normalize_terms,
    parse_call,
    with_terms,
)
from feinsum.calling.layouts import (
    IN_ORDER,
    ArgumentLayout,
    choose_operand_layout,
    choose_output_layout,
    list_stride_values,
    make_strided_layout,
)
from feinsum.calling.operands import ArrayForm, as_array, find_first_uses, get_form
from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum

OUTPUT = "out"
"""The name of the result in a kernel of one row."""
Layouts = Mapping[str, ArgumentLayout]


@dataclass(frozen=True)
class NormalizedCall:
    """A call as an einsum with as few axes as possible.

    Attributes:
        inputs: the memory layout of each argument's array, by its name.
        output: the memory layout of the result.
    """

    parsed: EinsumCall
    inputs: Mapping[str, StridedTerm]
    output: StridedTerm


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
    def layouts(self) -> Layouts:
        """How a kernel reads the arguments, by name."""
        dtype = self.parsed.work_dtype
        return {
            x.name: choose_operand_layout(x, self.forms[x.position], dtype)
            for x in self.parsed.arguments
        }

    @cached_property
    def output(self) -> ArgumentLayout:
        """How a kernel writes the result."""
        if self.target is None:
            return IN_ORDER
        return choose_output_layout(OUTPUT, self.target, self.parsed.work_dtype)

    @cached_property
    def normal(self) -> NormalizedCall:
        """The same einsum over the same memory, with as few axes as possible."""
        parsed = self.parsed
        terms_in_memory = [
            self._make_strided_term(term, parsed.arguments[k])
            for k, term in zip(parsed.uses, parsed.inputs, strict=True)
        ]
        output = StridedTerm(parsed.output, parsed.shape, compute_c_steps(parsed.shape))
        if self.target is not None and self.output.is_in_place:
            itemsize = self.target.dtype.itemsize
            steps = tuple(step // itemsize for step in self.target.strides)
            output = replace(output, steps=steps)
        inputs, output, varying = normalize_terms(
            terms_in_memory, output, parsed.varying
        )
        normal = with_terms(parsed, inputs, output, varying)
        names = [normal.arguments[k].name for k in normal.uses]
        return NormalizedCall(normal, dict(zip(names, inputs, strict=True)), output)

    def _make_strided_term(
        self, term: tuple[str, ...], argument: Argument
    ) -> StridedTerm:
        """Return the memory layout of the array that a kernel reads."""
        shape = argument.shape
        if not self.layouts[argument.name].is_in_place:
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

    @cached_property
    def normal_layouts(self) -> Layouts:
        """The layouts of the normalized call's arguments and result, by name."""
        normal = self.normal
        layouts = {
            x.name: make_strided_layout(x.name, normal.inputs[x.name])
            for x in normal.parsed.arguments
        }
        return {**layouts, OUTPUT: make_strided_layout(OUTPUT, normal.output)}

    @property
    def text(self) -> str:
        """A text that is equal for calls that one kernel can compute, at any sizes."""
        descriptions = [
            (
                parsed.structure,
                parsed.has_wide_sums,
                [(x.is_in_place, x.strides) for x in layouts.values()],
            )
            for parsed, layouts in (
                (self.parsed, {**self.layouts, OUTPUT: self.output}),
                (self.normal.parsed, self.normal_layouts),
            )
        ]
        return f"{self.parsed.dtype} {descriptions}"

    def constants(self, *, is_normal: bool) -> dict[str, int]:
        """Return the values of sizes and strides that a kernel gets, by name.

        Args:
            is_normal: whether the kernel computes the normalized call.
        """
        if is_normal:
            sizes, layouts = self.normal.parsed.sizes, self.normal_layouts
        else:
            sizes = self.parsed.sizes
            layouts = {**self.layouts, OUTPUT: self.output}
        return {**sizes, **list_stride_values(layouts)}


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
