"""The recording of statements from a traced function.

Permuted axes, and axes of extent 1 from ``keepdims`` or ``None``, exist only in views,
because maps and reductions have no index for axes of extent 1::

    y = x.T              a view of the tensor x with axes (1, 0); no statement
    m = x.sum(1, keepdims=True)      r0[a] = sum x0 : x[a,b], and a view with (0, None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn, Self

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir import Extent, IndexList, parse_subscripts, write_subscripts
from feinsum.ir.expressions import get_operand_name
from feinsum.ir.numpy_calls import write_constant
from feinsum.programs.builder import ProgramBuilder, Tensor
from feinsum.words import describe_type, format_count

MAX_CONSTANT_BYTES = 1 << 19
"""Maximum bytes of an array that the function makes itself.

Such an array becomes a part of the program.
"""


@dataclass(eq=False)
class Recording:
    """The state of a function while it is traced.

    Attributes:
        builder: collects the statements.
        changed: numpy arrays of the function that it changed in place by traced values,
            so that their own entries are out of date.
    """

    builder: ProgramBuilder
    changed: list[np.ndarray[Any, Any]] = field(default_factory=list)


@dataclass(eq=False)
class RecordedArray:
    """The state that an array and its views share.

    Attributes:
        is_argument: whether the array is an argument of the traced function.
        version: number of changes in place; views of earlier versions are out of date.
    """

    is_argument: bool = False
    version: int = 0


@dataclass(eq=False)
class View:
    """A tensor with permuted axes, and with additional axes of extent 1.

    Attributes:
        recording: the recording that the tensor belongs to.
        latest: the tensor with the present entries.
        axes: the tensor's axis of each axis; None for an additional one of extent 1.
        memory: shared with all views of the array.
        version: the version of the memory that this view shows.
    """

    recording: Recording
    latest: Tensor
    axes: tuple[int | None, ...]
    memory: RecordedArray = field(default_factory=RecordedArray)
    version: int = 0

    @property
    def tensor(self) -> Tensor:
        # a view from before a change in place would have outdated entries
        if self.version != self.memory.version:
            refuse("an array that shares its memory with one changed in place")
        return self.latest

    @property
    def shape(self) -> tuple[Extent, ...]:
        return tuple(1 if a is None else self.tensor.shape[a] for a in self.axes)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.operand.dtype

    def computed(
        self, tensor: Tensor, axes: Sequence[int | None] | None = None
    ) -> Self:
        """Return a new array of the same traced function."""
        tensor_axes = range(tensor.rank) if axes is None else axes
        return type(self)(self.recording, tensor, tuple(tensor_axes))

    def viewed(self, tensor: Tensor, axes: Sequence[int | None] | None = None) -> Self:
        """Return an array that may share the memory of this one."""
        view = self.computed(tensor, axes)
        view.memory, view.version = self.memory, self.version
        return view


def refuse(feature: str, hint: str = "") -> NoReturn:
    raise ProgramError(
        f"the function uses {feature}, which programs do not support; "
        f"{hint and hint + '; '}see docs/reference/programs.md for what can be traced"
    )


def normalize_axis(axis: Any, rank: int) -> int:
    # np.integer) | True is an int for Python
    is_number = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
    if not is_number or not -rank <= axis < rank:
        refuse(f"axis {axis!r} of an array with {format_count(rank, 'axis')}")
    return int(axis) % rank


def is_array(value: Any) -> bool:
    """Return whether a value is an array rather than a number."""
    return isinstance(value, View | list | tuple) or (
        isinstance(value, np.ndarray) and value.ndim > 0
    )


def as_view(value: Any, like: View) -> View:
    """Convert an array of the function itself, or a number, to a program constant."""
    if isinstance(value, View):
        return value
    if isinstance(value, list | tuple):
        value = np.array(value)
    is_known = type(value) is np.ndarray or isinstance(
        value, np.generic | bool | int | float | complex
    )
    if not is_known:
        refuse(f"{describe_type(value)} of its own (make it an operand)")
    return like.computed(record_constant(np.asarray(value), like.recording))


def record_constant(array: np.ndarray[Any, Any], recording: Recording) -> Tensor:
    # numpy would see the change; the recorded constant would not
    if any(np.may_share_memory(array, changed) for changed in recording.changed):
        refuse("an array of its own after changing it in place, under another name")
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        refuse(f"an array of its own of {array.dtype}")
    body = write_constant(array)
    if len(body) > MAX_CONSTANT_BYTES:
        refuse(
            f"an array of its own with {format_count(array.nbytes, 'byte', ',')} (make "
            "it an operand)"
        )
    return recording.builder.numpy(body)


def record_map(
    form: str, args: Sequence[Any], dtype: Any = None, numbers: slice = slice(None)
) -> Any:
    """Record a map over arrays and numbers; axes are aligned from the last one.

    Args:
        form: the body, with ``{}`` in place of each argument.
        args: arrays and numbers, at least one of them traced.
        dtype: dtype to which all arguments are cast first.
        numbers: the slice of arguments whose dtypes determine the result's dtype.
    """
    # numbers take their program from an array
    like = next(arg for arg in args if isinstance(arg, View))
    args = [as_view(arg, like) if is_array(arg) else arg for arg in args]
    arrays = [arg for arg in args if isinstance(arg, View)]
    dtypes = [arg.dtype for arg in args[numbers] if isinstance(arg, View)]
    names: list[str] = []
    n_arrays = 0
    for arg in args:
        if isinstance(arg, View):
            names.append(get_operand_name(n_arrays))
            n_arrays += 1
        else:
            names.append(_write_number(arg, dtypes))
    if dtype is not None:
        names = [f"{np.dtype(dtype).name}({name})" for name in names]
    indices = list_letters(max(array.ndim for array in arrays))
    terms = [indices[len(indices) - array.ndim :] for array in arrays]
    return record_statement(arrays, terms, indices, form.format(*names))


def _write_number(value: Any, dtypes: Sequence[np.dtype[Any]]) -> str:
    """Return a number that the function contains as text for a body.

    Python's numbers take the dtype of arrays; numpy's numbers have their own dtype.
    """
    if isinstance(value, np.ndarray):
        value = value[()]
    if not isinstance(value, np.generic):
        return _write_python_number(value)
    dtype = value.dtype
    if dtype.kind not in "biufc" or dtype.char in "gG":
        refuse(f"a number of its own of {dtype}")
    text = _write_python_number(value.item())
    # a cast without effect is left out, so that equal programs have equal texts
    if dtypes and np.result_type(*dtypes, dtype) == np.result_type(*dtypes):
        return text
    return f"{dtype.name}({text})"


def _write_python_number(value: Any) -> str:
    if not isinstance(value, bool | int | float | complex):
        refuse(f"{describe_type(value)} of its own (make it an operand)")
    if isinstance(value, bool):
        return repr(value)
    if isinstance(value, complex):
        if not (isfinite(value.real) and isfinite(value.imag)):
            refuse(f"the complex number {value}")
        return f"({complex(value)!r})"
    text = repr(float(value)) if isinstance(value, float) else repr(int(value))
    # bodies have no name for NaN
    if text == "nan":
        return "(inf - inf)"
    return f"({text})" if text.startswith("-") else text


def record_reduction(
    reduction: str, array: View, gone: Sequence[int], keepdims: bool, dtype: Any = None
) -> Any:
    """Record a reduction over some axes, after a cast of the entries to ``dtype``."""
    indices = list_letters(array.ndim)
    output = tuple(index for axis, index in enumerate(indices) if axis not in gone)
    target = np.dtype(dtype) if dtype is not None else array.dtype
    is_reduced = any(array.axes[axis] is not None for axis in gone)
    if reduction in ("any", "all") and not is_reduced:
        target = np.dtype(np.bool_)
    body = "" if target == array.dtype else f"{target.name}(x0)"
    result = record_statement([array], [indices], output, body, reduction)
    if not keepdims:
        return result
    remaining_axes = list(result.axes)
    axes = [
        None if axis in gone else remaining_axes.pop(0) for axis in range(array.ndim)
    ]
    return result.viewed(result.tensor, axes)


def record_einsum(subscripts: Any, arrays: Sequence[View]) -> Any:
    """Record an einsum of arrays, with subscripts as one text."""
    try:
        terms, output = parse_subscripts(subscripts, [array.ndim for array in arrays])
    except InvalidEinsumError as error:
        raise ProgramError(str(error), rules=("term",)) from None
    for array, term in zip(arrays, terms, strict=True):
        if len(term) != array.ndim:
            raise ProgramError(
                f"numpy.einsum of {subscripts!r}: an operand has "
                f"{format_count(array.ndim, 'axis')}, "
                f"its term {' '.join(term)!r} has "
                f"{format_count(len(term), 'index')}",
                rules=("term",),
            )
    return record_statement(arrays, terms, output)


def record_statement(
    arrays: Sequence[View],
    terms: Sequence[IndexList],
    output: IndexList,
    body: str = "",
    reduction: str = "sum",
) -> Any:
    """Record a statement; additional axes of extent 1 in views get no index."""
    builder = arrays[0].tensor.owner
    extents: dict[str, Extent] = {}
    for array, term in zip(arrays, terms, strict=True):
        for index, extent in zip(term, array.shape, strict=True):
            # an axis of extent 1 is broadcast to the others
            if extents.get(index, 1) == 1:
                extents[index] = extent
    arrays = [
        _without_ones(array, term, extents)
        for array, term in zip(arrays, terms, strict=True)
    ]
    inputs = [
        tuple(term[array.axes.index(a)] for a in range(array.tensor.rank))
        for array, term in zip(arrays, terms, strict=True)
    ]
    indices = {index for term in inputs for index in term}
    kept_output = tuple(index for index in output if index in indices)
    tensor = builder.einsum(
        write_subscripts(inputs, kept_output),
        *(a.tensor for a in arrays),
        body=body,
        reduction=reduction,
    )
    axes = tuple(kept_output.index(i) if i in indices else None for i in output)
    return arrays[0].computed(tensor, axes)


def _without_ones(array: View, term: IndexList, extents: Mapping[str, Extent]) -> View:
    """Drop axes of extent 1 that are broadcast along an index."""
    unit_axes = [
        a
        for a, index in zip(array.axes, term, strict=True)
        if a is not None and array.tensor.shape[a] == 1 and extents[index] != 1
    ]
    if not unit_axes:
        return array
    tensor = array.tensor.owner.reduce("max", array.tensor, unit_axes)
    remaining_axes = [a for a in range(array.tensor.rank) if a not in unit_axes]
    axes = (
        None if a is None or a in unit_axes else remaining_axes.index(a)
        for a in array.axes
    )
    return array.viewed(tensor, tuple(axes))


def materialize(array: View) -> Tensor:
    """Return a tensor with exactly the axes of a view."""
    tensor, order = array.tensor, [a for a in array.axes if a is not None]
    if order != sorted(order):
        tensor = tensor.owner.numpy(f"transpose(x0, {tuple(order)})", tensor)
    if len(order) == array.ndim:
        return tensor
    key = ", ".join("None" if a is None else ":" for a in array.axes)
    return tensor.owner.numpy(f"x0[{key}]", tensor)


def record_call(
    function: str, arrays: Sequence[View], *literals: Any, is_view: bool = False
) -> Any:
    """Record a call of a numpy function as a numpy statement."""
    names = map(get_operand_name, range(len(arrays)))
    text = f"{function}({', '.join([*names, *map(repr, literals)])})"
    return record_numpy(text, arrays, is_view)


def record_numpy(body: str, arrays: Sequence[View], is_view: bool = False) -> Any:
    builder = arrays[0].recording.builder
    tensor = builder.numpy(body, *map(materialize, arrays))
    return arrays[0].viewed(tensor) if is_view else arrays[0].computed(tensor)


def as_result(array: View) -> Tensor:
    """Return a tensor with the entries of an array, to be a separate output.

    Views, inputs, and tensors that are outputs already, are copied.
    """
    builder = array.recording.builder
    tensor = materialize(array) if None in array.axes else array.tensor
    view = array.viewed(tensor) if None in array.axes else array
    is_view = view.axes != tuple(range(tensor.rank))
    is_input = any(tensor.name == x.name for x in builder.inputs)
    # outputs must not share memory, as results of numpy's functions
    if is_view or is_input or builder.is_output(tensor):
        indices = list_letters(view.ndim)
        tensor = record_statement([view], [indices], indices).tensor
    return tensor


def list_letters(rank: int) -> IndexList:
    letters = "abcdefghlmnopqrstuvwxyz"
    return tuple(letters[k] if k < 23 else f"a{k}" for k in range(rank))
