"""Prepared calls: the kernel, and how it reads the operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.structure import pack_array
from feinsum.result_memory import make_aligned, make_strided
from feinsum.subscripts import write_subscripts
from feinsum.words import format_brief

if TYPE_CHECKING:  # kernels of other processes run without a code generator
    from feinsum.calling.einsum_call import Argument, EinsumCall
    from feinsum.calling.kernel import CallKernel
    from feinsum.targets.protocol import Array, Caller

Conversion = Callable[[Any], Any]
"""Converts a given operand to the array that a kernel gets."""


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """The state kept for calls with the same subscripts and memory layouts.

    Attributes:
        kernel: the kernel. None if another process has built it; also None if there is
            nothing to compute, since an extent is zero or the result is a view.
        inputs: for each array of the kernel, the position of an operand, and its
            conversion; None to pass the operand itself.
        caller: the kernel with its scalars; None if there is nothing to compute.
        writes_out: whether the kernel writes directly into ``out``.
        convert_output: converts a result array to the one that the kernel takes.
        view: returns the result as a view of the operand, if it is one; see
            :func:`build_view`.
        names: names of the arrays that the kernel gets.
        scalars: for each size and stride that the kernel gets, by name, the name in the
            structure of the call.
        is_normal: whether these are names of the normalized call, see
            :mod:`feinsum.calling.structure`.
        built_recipe: the recipe of a kernel that another process has built.
    """

    parsed: EinsumCall
    kernel: CallKernel | None
    inputs: tuple[tuple[int, Conversion | None], ...] = ()
    caller: Caller | None = None
    writes_out: bool = False
    convert_output: Conversion | None = None
    view: Conversion | None = None
    names: tuple[str, ...] = ()
    scalars: Mapping[str, str] = field(default_factory=dict)
    is_normal: bool = False
    built_recipe: str = ""

    def __repr__(self) -> str:
        subscripts = write_subscripts(self.parsed.inputs, self.parsed.output)
        if not self.recipe:
            return format_brief(self, subscripts)
        return format_brief(self, f"{subscripts}: {self.recipe}")

    @property
    def recipe(self) -> str:
        """The recipe of its kernel, in words; empty without a kernel."""
        return self.built_recipe if self.kernel is None else self.kernel.recipe

    def run(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Compute the result: a new array where the operands are, or ``out``.

        Arrays have the prepared shapes, dtypes and strides, and are all on the host or
        all in one context.
        """
        # the most frequent case, in as few steps as possible
        if out is None and self.is_direct:
            result = make_aligned(self.parsed.shape, self.parsed.dtype)
            assert self.caller is not None
            self.caller([arrays[position] for position, _ in self.inputs], result)
            return result
        return self._run(arrays, out)

    def _run(self, arrays: Sequence[Any], out: Any) -> Any:
        caller, parsed = self.caller, self.parsed
        if self.view is not None and out is None:
            return self.view(arrays[0])
        if caller is None:
            return _copy_to(self._make_zeros(arrays), out)
        inputs = [
            arrays[position] if convert is None else convert(arrays[position])
            for position, convert in self.inputs
        ]
        if out is not None and self.writes_out:
            # if out overlaps an operand, the kernel would read its own results
            target = out
            if any(np.may_share_memory(out, array) for array in inputs):
                target = make_strided(out.shape, out.strides, out.dtype)
            caller(inputs, self._get_output(target))
            return out if target is out else _copy_to(target, out)
        if self.is_on_device:
            result = caller(inputs)
        else:
            result = make_aligned(parsed.shape, parsed.work_dtype)
            caller(inputs, self._get_output(result))
        if parsed.dtype != parsed.work_dtype:
            is_truth = parsed.dtype.kind == "b"
            result = np.asarray(result != 0) if is_truth else _round_half(result)
        return _copy_to(result, out)

    def _get_output(self, result: Array) -> Array:
        """Return the array that the kernel writes, in the memory of the result."""
        convert = self.convert_output
        return result if convert is None else convert(result)

    @cached_property
    def is_direct(self) -> bool:
        """Whether the kernel takes arguments and result without conversion."""
        is_plain = self.convert_output is None and all(
            convert is None for _, convert in self.inputs
        )
        is_same = self.parsed.dtype == self.parsed.work_dtype
        has_kernel = self.caller is not None and not self.is_on_device
        return has_kernel and is_plain and is_same

    @property
    def is_on_device(self) -> bool:
        """Whether arrays are on a device, or are copied to one."""
        kernel = self.kernel
        return kernel is not None and not kernel.compiled.opened.reads_in_place

    def _make_zeros(self, arrays: Sequence[Any]) -> Any:
        parsed, queue = self.parsed, getattr(arrays[0], "queue", None)
        if queue is None:
            return np.zeros(parsed.shape, parsed.dtype)
        from feinsum.targets.opencl.device import allocate_zeros

        return allocate_zeros(queue, parsed.shape, parsed.dtype)


def _round_half(result: Any) -> Any:
    """Round a result to half precision, on the host or on the device."""
    from feinsum.targets.host.halves import narrow

    on_host = isinstance(result, np.ndarray)
    return narrow(result) if on_host else result.astype(np.float16)


def _copy_to(result: Any, out: Any) -> Any:
    """Copy the result into ``out``, if it is given."""
    if out is None:
        return result
    out[...] = result.get() if hasattr(result, "get") else result
    return out


def build_view(parsed: EinsumCall) -> Conversion | None:
    """Return a function that views a single operand; None if there are sums or more.

    >>> from feinsum.calling.einsum_call import parse_call
    >>> A = np.eye(3)
    >>> build_view(parse_call("ij->ji", [(A.shape, A.dtype)], (0,)))(A).base is A
    True
    """
    term, output = parsed.einsum.inputs[0], parsed.einsum.output
    if parsed.einsum.n_operands != 1 or {*term} != {*output}:
        return None
    shape = parsed.arguments[0].shape
    axes = tuple(term.index(index) for index in output)
    if len(term) == len(output):

        def view(array: Array) -> Array:
            shaped = array if array.shape == shape else array.reshape(shape)
            return shaped.transpose(axes)

        return view
    # with a repeated index, numpy's einsum returns a view of the diagonal
    numbers = [[term.index(index) for index in indices] for indices in (term, output)]
    return lambda array: np.einsum(array.reshape(shape), *numbers)


def copy_from_host(argument: Argument, dtype: np.dtype[Any]) -> Conversion:
    """Return a function that copies an operand that a kernel cannot read."""
    return partial(pack_array, shape=argument.shape, dtype=dtype)


def convert_on_device(argument: Argument, dtype: np.dtype[Any]) -> Conversion:
    """Return a function that converts a device array to a kernel's shape and dtype."""
    shape = argument.shape

    def convert(array: Any) -> Any:
        shaped = array if array.shape == shape else array.reshape(shape)
        return shaped if shaped.dtype == dtype else shaped.astype(dtype)

    return convert
