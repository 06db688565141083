"""Prepared calls of arrays on a GPU: views, BLAS, cuTENSOR, CuPy's einsum, kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from feinsum.calling.einsum_call import EinsumCall
from feinsum.calling.gpu.products import Product
from feinsum.calling.terms import write_in_letters
from feinsum.dtypes import is_half
from feinsum.ir import IndexList
from feinsum.targets.cuda.cupy_errors import CudaErrors
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.device import CudaDevice
from feinsum.targets.cuda.launches import GemmLaunch, LaunchList, Prepared

if TYPE_CHECKING:
    from feinsum.calling.kernel import CallKernel

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class GpuCall(Protocol):
    """A call that can be repeated with other arrays of the same forms."""

    @property
    def parsed(self) -> EinsumCall: ...

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        """Compute the result, on the stream on which the arrays are ready."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class PreparedCall:
    """The base of all prepared calls."""

    parsed: EinsumCall
    opened: CudaDevice

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: what is prepared for this process stays here."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        """Name the kind of call, in a word or two."""
        return type(self).__name__.removesuffix("Call").lower()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which the einsum is computed."""
        return self.parsed.work_dtype

    @cached_property
    def terms(self) -> list[tuple[int, IndexList]]:
        """The number of the argument and the indices, for each operand."""
        return [*zip(self.parsed.uses, self.parsed.inputs, strict=True)]

    def prepare(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays of the kernel's arguments, in the working dtype."""
        return shape_arrays(self.parsed, arrays, self.dtype, self.opened.session)

    def finish(self, result: Any) -> Any:
        return self.opened.session.cast(result, self.parsed.dtype)


def count_result_bytes(parsed: EinsumCall) -> int:
    return prod(parsed.shape) * parsed.dtype.itemsize


def shape_arrays(
    parsed: EinsumCall,
    arrays: Sequence[Any],
    dtype: np.dtype[Any],
    session: CupySession,
) -> list[Any]:
    """Reshape and cast the arrays of a call to the kernel's arguments."""
    operands = []
    for feed in parsed.arguments:
        array = arrays[feed.position]
        if array.shape != feed.shape:
            array = array.reshape(feed.shape)
        operands.append(session.cast(array, dtype))
    return operands


def get_blas_dtype(parsed: EinsumCall) -> np.dtype[Any]:
    """Return the dtype for BLAS, which itself adds up half in single precision."""
    return parsed.dtype if is_half(parsed.dtype) else parsed.work_dtype


@dataclass(frozen=True, eq=False, repr=False)
class ZerosCall(PreparedCall):
    """Zeros: an extent is zero, so that no product is formed."""

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        session = self.opened.session
        zeros = session.empty(self.parsed.shape, self.parsed.dtype)
        session.clear(zeros, stream)
        return zeros


@dataclass(frozen=True, eq=False, repr=False)
class ViewCall(PreparedCall):
    """A single operand with its axes in another order, or its diagonal."""

    @cached_property
    def axes(self) -> tuple[int, ...] | None:
        """The axes of the operand in the order of the result; None for a diagonal."""
        ((_, term),), output = self.terms, self.parsed.einsum.output
        is_whole = len(term) == len(output)
        return tuple(term.index(index) for index in output) if is_whole else None

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        (feed,), ((_, term),) = self.parsed.arguments, self.terms
        array = arrays[0]
        if array.shape != feed.shape:
            array = array.reshape(feed.shape)
        if self.axes is not None:
            return array.transpose(self.axes)
        steps, output = (
            [*zip(term, array.strides, strict=True)],
            self.parsed.einsum.output,
        )
        # along a diagonal, all axes of an index advance together: their strides add up
        strides = [sum(step for i, step in steps if i == index) for index in output]
        return self.opened.session.strided(array, self.parsed.shape, strides)


@dataclass(frozen=True, eq=False, repr=False)
class CopyCall(ViewCall):
    """A copy of the view, in C order."""

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        return self.opened.session.packed(super().__call__(arrays, stream))


@dataclass(frozen=True, eq=False, repr=False)
class LibraryCall(PreparedCall):
    """The vendor's libraries compute everything."""

    @cached_property
    def text(self) -> str:
        """The subscripts in letters, as CuPy and torch require."""
        einsum = self.parsed.einsum
        return write_in_letters(einsum.subscripts, [*map(len, einsum.inputs)])

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        inputs = self.prepare(arrays)
        ordered = [inputs[k] for k, _ in self.terms]
        session = self.opened.session
        return self.finish(session.einsum(self.text, ordered, stream))

    @property
    def is_for_torch(self) -> bool:
        """Whether torch computes it; it multiplies no integers on a GPU."""
        return self.dtype.kind in "fc"

    def with_torch(self, torch: Any, tensors: Sequence[Any]) -> Any:
        """Evaluate the einsum of tensors with torch itself, on its own stream."""
        parsed = self.parsed
        kind = getattr(torch, str(parsed.work_dtype))
        failure = "torch's einsum {!r} with a result of {} entries of {}"
        with CudaErrors(failure, self.text, parsed.shape, parsed.dtype):
            inputs = [
                tensors[feed.position].reshape(feed.shape).to(kind)
                for feed in parsed.arguments
            ]
            result = torch.einsum(self.text, *(inputs[k] for k, _ in self.terms))
            return result.to(getattr(torch, str(parsed.dtype))).contiguous()


@dataclass(frozen=True, eq=False, repr=False)
class ProductCall(PreparedCall):
    """BLAS multiplies stacks of matrices, after copying some of them to another order.

    The axes of the result may be permuted in memory, as in results of numpy's einsum.

    Attributes:
        copies: for each operand, the call that copies it; None if it is read in place.
        added: the call that adds up the partial sums, if there are several.
    """

    product: Product
    copies: tuple[GpuCall | None, ...]
    added: GpuCall | None = None

    def __repr__(self) -> str:
        n_copies, n_parts = (
            sum(x is not None for x in self.copies),
            self.product.n_parts,
        )
        copies = f" with {n_copies} copies" if n_copies else ""
        return "gemm" + copies + (f" in {n_parts} parts" if n_parts > 1 else "")

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return get_blas_dtype(self.parsed)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes of what the product writes, in the order of the result."""
        output = self.parsed.einsum.output
        order = output if self.product.order is None else self.product.order
        return tuple(order.index(index) for index in output)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of what the product writes."""
        extent = dict(zip(self.axes, self.parsed.shape, strict=True))
        return tuple(extent[axis] for axis in range(len(extent)))

    @property
    def launch(self) -> GemmLaunch:
        """The launch of the product itself."""
        return GemmLaunch(self.product.gemm, self.dtype)

    @cached_property
    def multiply(self) -> Prepared:
        return self.launch.prepare(self.opened.session)

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        arguments = self.prepare(arrays)
        left, right = (
            arguments[k] if copy is None else copy([arguments[k]], stream)
            for (k, _), copy in zip(self.terms, self.copies, strict=True)
        )
        if self.product.gemm.is_swapped:
            left, right = right, left
        session, product = self.opened.session, self.product
        partial_shape = product.n_parts, product.n_results
        shape = self.shape if self.added is None else partial_shape
        # each part of a split sum gives a matrix; `added` adds these up
        result = session.empty(shape, self.dtype)
        self.multiply(session.addresses((left, right, result)), stream)
        if self.added is not None:
            result = self.added([result], stream).reshape(self.shape)
        return self.finish(result.transpose(self.axes))


@dataclass(frozen=True, eq=False, repr=False)
class CutensorCall(PreparedCall):
    """cuTENSOR contracts two arrays of any strides, without copies of them."""

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return get_blas_dtype(self.parsed)

    @cached_property
    def modes(self) -> list[tuple[int, ...]]:
        """Indices of both operands and of the result, as numbers."""
        number = {index: k for k, index in enumerate(self.parsed.extents)}
        terms = [*self.parsed.inputs, self.parsed.output]
        return [tuple(number[index] for index in term) for term in terms]

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        arguments = self.prepare(arrays)
        session = self.opened.session
        result = session.empty(self.parsed.shape, self.dtype)
        operands = [arguments[k] for k, _ in self.terms]
        session.contract(self.modes, [*operands, result], stream)
        return self.finish(result)


@dataclass(frozen=True, eq=False, repr=False)
class KernelCall(PreparedCall):
    """A kernel computes everything; it reads arrays in C order.

    Attributes:
        recipe: its recipe, in words.
        is_plain: whether it reads the arrays of this call without copies or casts.
        kernel: the kernel, which is kept as long as one of its calls; None if another
            process has built it.
    """

    launches: LaunchList
    recipe: str
    is_plain: bool = False
    kernel: CallKernel | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the kernel: its launches need no code generator."""
        return {**super().__getstate__(), "kernel": None}

    def __repr__(self) -> str:
        return self.recipe

    @cached_property
    def launch_all(self) -> Callable[[Sequence[Any], Any, Any], None]:
        return self.launches.prepare(self.opened.session)

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        session, parsed = self.opened.session, self.parsed
        # kernels read arrays in C order; others are copied
        packed = [session.packed(array) for array in self.prepare(arrays)]
        result = session.empty(parsed.shape, self.dtype)
        self.launch_all(packed, result, stream)
        return self.finish(result)


@dataclass(frozen=True, eq=False, repr=False)
class StepsCall(PreparedCall):
    """Steps of a few operands each, where one kernel would do far more work.

    Attributes:
        steps: for each step, its call, and the positions of its operands in the list of
            all operands followed by the results of earlier steps.
    """

    steps: tuple[tuple[tuple[int, ...], GpuCall], ...]

    def __repr__(self) -> str:
        return " | ".join(repr(call) for _, call in self.steps)

    def __call__(self, arrays: Sequence[Any], stream: Any) -> Any:
        arguments = self.prepare(arrays)
        values: list[Any] = [arguments[k] for k, _ in self.terms]
        for numbers, call in self.steps:
            chosen = [values[k] for k in numbers]
            # drop the references here, so that the memory is freed after the launch
            for k in numbers:
                values[k] = None
            values.append(call(chosen, stream))
        return self.finish(values[-1])


def make_trivial_call(
    parsed: EinsumCall, opened: CudaDevice
) -> ViewCall | ZerosCall | None:
    """Return a call that needs no choice: a view, or zeros; None for others."""
    # an empty sum is zero, and BLAS refuses empty matrices
    if parsed.is_empty:
        return ZerosCall(parsed, opened)
    term, output = parsed.einsum.inputs[0], parsed.einsum.output
    if len(parsed.einsum.inputs) > 1 or {*term} != {*output}:
        return None
    return ViewCall(parsed, opened)


def make_library_call(parsed: EinsumCall, opened: CudaDevice) -> LibraryCall | None:
    """Return a call of CuPy's einsum; None if it is empty or has too many indices."""
    # CuPy has one letter for each index
    is_short = len(parsed.einsum.indices) <= len(LETTERS)
    is_needed = is_short and not parsed.is_empty
    return LibraryCall(parsed, opened) if is_needed else None
