"""Prepared calls: the kernel, and how it reads the operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.options import CallOptions
from feinsum.calling.reading.arguments import packed
from feinsum.result_memory import aligned_empty
from feinsum.subscripts import IndexList

if TYPE_CHECKING:  # what others have built is run without a code generator
    from feinsum.calling.kernel import CallKernel
    from feinsum.calling.reading import Feed, Reading
    from feinsum.targets.protocol import Array, Caller

Take = Callable[[Any], Any]
"""From an operand as it was given to the array that a kernel gets."""


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """The state kept for calls with the same subscripts and memory layouts.

    Attributes:
        kernel: None if there is nothing to compute, as an extent is zero or the result
            is a view, and if another process has built it.
        options: the look-up options of the kernel.
        takes: for each array of the kernel, the position of an operand, and how it is
            converted.
        caller: the kernel with its scalars; None if there is nothing to compute.
        names, constants: of the arrays and the scalars of the caller.
        writes_out: whether the kernel writes directly into ``out``.
        give: converts a result array to what the kernel takes.
        view: the result as a view of the operand, if it is a view; see :func:`view_of`.
    """

    reading: Reading
    kernel: CallKernel | None
    options: CallOptions
    takes: tuple[tuple[int, Take | None], ...] = ()
    caller: Caller | None = None
    writes_out: bool = False
    give: Take | None = None
    view: Take | None = None
    names: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settled(self) -> PreparedCall:
        """Itself: there is nothing left to try."""
        return self

    def run(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Compute the result: a new array where the operands are, or ``out``.

        Args:
            arrays: operands with the prepared shapes, dtypes and strides, all on the
                host or all in one context.
            out: an array with the shape and dtype of the result, and the prepared
                strides.
        """
        if out is None and self.is_direct:
            result = aligned_empty(self.reading.shape, self.reading.dtype)
            assert self.caller is not None
            self.caller([arrays[position] for position, _ in self.takes], result)
            return result
        return self._run(arrays, out)

    def _run(self, arrays: Sequence[Any], out: Any) -> Any:
        caller, reading = self.caller, self.reading
        if self.view is not None and out is None:
            return self.view(arrays[0])
        if caller is None:
            return _copy_to(self._zeros(arrays), out)
        inputs = [
            arrays[position] if take is None else take(arrays[position])
            for position, take in self.takes
        ]
        if out is not None and self.writes_out:
            target = _empty_like(out) if _share_memory(out, inputs) else out
            caller(inputs, target if self.give is None else self.give(target))
            return out if target is out else _copy_to(target, out)
        if self.is_on_device:
            result = caller(inputs)
        else:
            result = aligned_empty(reading.shape, reading.work_dtype)
            caller(inputs, result if self.give is None else self.give(result))
        if reading.dtype != reading.work_dtype:
            is_truth = reading.dtype.kind == "b"
            result = np.asarray(result != 0) if is_truth else _rounded(result)
        return _copy_to(result, out)

    @cached_property
    def is_direct(self) -> bool:
        """Whether the kernel takes arguments and result without conversion."""
        is_plain = all(take is None for _, take in self.takes) and self.give is None
        is_same = self.reading.dtype == self.reading.work_dtype
        has_kernel = self.caller is not None and not self.is_on_device
        return has_kernel and is_plain and is_same

    @property
    def is_on_device(self) -> bool:
        """Whether arrays are on a device, or are copied to one."""
        kernel = self.kernel
        return kernel is not None and not kernel.compiled.opened.reads_in_place

    def _zeros(self, arrays: Sequence[Any]) -> Any:
        reading, queue = self.reading, getattr(arrays[0], "queue", None)
        if queue is None:
            return np.zeros(reading.shape, reading.dtype)
        from feinsum.targets.opencl.device import device_zeros

        return device_zeros(queue, reading.shape, reading.dtype)


def _rounded(result: Any) -> Any:
    """Round to half precision, where the result is."""
    from feinsum.targets.host.halves import narrowed

    on_host = isinstance(result, np.ndarray)
    return narrowed(result) if on_host else result.astype(np.float16)


def _share_memory(out: Array, inputs: Sequence[Array]) -> bool:
    """Whether a kernel would overwrite its input."""
    return any(np.may_share_memory(out, array) for array in inputs)


def _empty_like(out: Array) -> Array:
    """A new array that lies as this one does: a kernel writes by its steps."""
    ends = [
        step * (extent - 1) for step, extent in zip(out.strides, out.shape, strict=True)
    ]
    first = -sum(end for end in ends if end < 0)
    past = sum(end for end in ends if end > 0) + out.itemsize
    memory = aligned_empty((first + past,), np.dtype(np.uint8))
    return np.ndarray(out.shape, out.dtype, memory, first, out.strides)


def _copy_to(result: Any, out: Any) -> Any:
    """The result where it was asked for."""
    if out is None:
        return result
    out[...] = result.get() if hasattr(result, "get") else result
    return out


def view_of(reading: Reading, term: IndexList, output: IndexList) -> Take | None:
    """The result for a single operand without sums: a view, as in numpy.

    Args:
        term: the indices of the operand.

    >>> from feinsum.calling.reading import read_shapes
    >>> A = np.eye(3)
    >>> reading = read_shapes("ij->ji", [(A.shape, A.dtype)], (0,))
    >>> view_of(reading, ("i", "j"), ("j", "i"))(A).base is A
    True
    """
    if set(term) != set(output):
        return None
    (feed,) = reading.feeds
    axes = tuple(term.index(index) for index in output)
    if len(term) == len(output):

        def moved(array: Array) -> Array:
            shaped = array if array.shape == feed.shape else array.reshape(feed.shape)
            return shaped.transpose(axes)

        return moved
    numbers = [[term.index(index) for index in part] for part in (term, output)]
    return lambda array: np.einsum(array.reshape(feed.shape), *numbers)


def from_host(feed: Feed, dtype: np.dtype[Any]) -> Take:
    """A copy of an operand that a kernel cannot read in place."""

    def take(array: Array) -> Array:
        return packed(array, feed.shape, dtype)

    return take


def from_device(feed: Feed, dtype: np.dtype[Any]) -> Take:
    """An operand on a device in the shape and dtype of the kernel's array."""

    def take(array: Any) -> Any:
        shaped = array if array.shape == feed.shape else array.reshape(feed.shape)
        return shaped if shaped.dtype == dtype else shaped.astype(dtype)

    return take
