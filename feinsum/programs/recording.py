"""The statements recorded from a traced function.

Permutations of axes, and axes of extent 1 from ``keepdims`` or a new axis, exist only
in views: maps and reductions have no index for the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn, Self

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir import Extent, IndexList, parse_subscripts, write_subscripts
from feinsum.ir.expressions import operand_name
from feinsum.ir.numpy_calls import constant_body
from feinsum.programs.builder import ProgramBuilder, Tensor
from feinsum.words import counted, type_in_words

MAX_CONSTANT_BYTES = 1 << 19
"""Of an array that the function makes itself: it becomes a part of the program."""


@dataclass(eq=False)
class Recording:
    """A function while it is traced.

    Attributes:
        changed: arrays of its own that it changed in place: only the results of that
            are known.
    """

    builder: ProgramBuilder
    changed: list[np.ndarray[Any, Any]] = field(default_factory=list)


@dataclass(eq=False)
class RecordedArray:
    """What an array and its views share.

    Attributes:
        version: number of changes in place; views from before one are of no use.
    """

    is_argument: bool = False
    version: int = 0


@dataclass(eq=False)
class View:
    """A tensor with permuted axes, and with additional axes of extent 1.

    Attributes:
        axes: for each axis, that of the tensor; None for an additional one of extent 1.
    """

    recording: Recording
    latest: Tensor
    axes: tuple[int | None, ...]
    memory: RecordedArray = field(default_factory=RecordedArray)
    version: int = 0

    @property
    def tensor(self) -> Tensor:
        # a view from before a change in place would show old entries
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
        """Return another array of the same traced function."""
        every = range(tensor.rank) if axes is None else axes
        return type(self)(self.recording, tensor, tuple(every))

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


def axis_of(axis: Any, rank: int) -> int:
    # np.integer) | True is an int for Python
    is_number = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
    if not is_number or not -rank <= axis < rank:
        refuse(f"axis {axis!r} of an array with {counted(rank, 'axis')}")
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
        refuse(f"{type_in_words(value)} of its own (make it an operand)")
    return like.computed(constant(np.asarray(value), like.recording))


def constant(array: np.ndarray[Any, Any], recording: Recording) -> Tensor:
    # numpy would see the change; the recorded constant would not
    if any(np.may_share_memory(array, other) for other in recording.changed):
        refuse("an array of its own after changing it in place, under another name")
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        refuse(f"an array of its own of {array.dtype}")
    body = constant_body(array)
    if len(body) > MAX_CONSTANT_BYTES:
        refuse(
            f"an array of its own with {counted(array.nbytes, 'byte', ',')} (make "
            "it an operand)"
        )
    return recording.builder.numpy(body)


def mapped(
    form: str,
    args: Sequence[Any],
    dtype: Any = None,
    numbers: slice = slice(None),
) -> Any:
    """Return a body over arrays and numbers; axes are aligned from the last one.

    Args:
        form: the body, with ``{}`` in place of each argument.
        args: arrays and numbers, at least one of them traced.
        dtype: dtype to which all are cast first.
        numbers: the arguments whose dtypes decide that of the result.
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
            names.append(operand_name(n_arrays))
            n_arrays += 1
        else:
            names.append(_number(arg, dtypes))
    if dtype is not None:
        names = [f"{np.dtype(dtype).name}({name})" for name in names]
    indices = letters_of(max(array.ndim for array in arrays))
    terms = [indices[len(indices) - array.ndim :] for array in arrays]
    return statement(arrays, terms, indices, form.format(*names))


def _number(value: Any, dtypes: Sequence[np.dtype[Any]]) -> str:
    """Return a number of the function itself, as a part of a body.

    Python's numbers take the dtype of arrays, and those of numpy have their own.
    """
    if isinstance(value, np.ndarray):
        value = value[()]
    if not isinstance(value, np.generic):
        return _python_number(value)
    dtype = value.dtype
    if dtype.kind not in "biufc" or dtype.char in "gG":
        refuse(f"a number of its own of {dtype}")
    text = _python_number(value.item())
    # a cast that changes nothing is left out, so that equal programs have equal texts
    if dtypes and np.result_type(*dtypes, dtype) == np.result_type(*dtypes):
        return text
    return f"{dtype.name}({text})"


def _python_number(value: Any) -> str:
    if not isinstance(value, bool | int | float | complex):
        refuse(f"{type_in_words(value)} of its own (make it an operand)")
    if isinstance(value, bool):
        return repr(value)
    if isinstance(value, complex):
        if not (isfinite(value.real) and isfinite(value.imag)):
            refuse(f"the complex number {value}")
        return f"({complex(value)!r})"
    text = repr(float(value)) if isinstance(value, float) else repr(int(value))
    # bodies have no name for it
    if text == "nan":
        return "(inf - inf)"
    return f"({text})" if text.startswith("-") else text


def reduced(
    reduction: str, array: View, gone: Sequence[int], keepdims: bool, dtype: Any = None
) -> Any:
    """Return a reduction over some axes.

    Args:
        reduction: name of the reduction.
        array: the array to reduce.
        gone: numbers of the axes to reduce.
        keepdims: whether reduced axes stay, with extent 1.
        dtype: dtype to which entries are cast first.
    """
    indices = letters_of(array.ndim)
    output = tuple(i for a, i in enumerate(indices) if a not in gone)
    target = np.dtype(dtype) if dtype is not None else array.dtype
    is_reduced = any(array.axes[a] is not None for a in gone)
    if reduction in ("any", "all") and not is_reduced:
        target = np.dtype(np.bool_)
    body = "" if target == array.dtype else f"{target.name}(x0)"
    result = statement([array], [indices], output, body, reduction)
    if not keepdims:
        return result
    left = list(result.axes)
    axes = [None if a in gone else left.pop(0) for a in range(array.ndim)]
    return result.viewed(result.tensor, axes)


def einsum(subscripts: Any, arrays: Sequence[View]) -> Any:
    """Return an einsum of arrays, with subscripts as one text."""
    try:
        terms, output = parse_subscripts(subscripts, [array.ndim for array in arrays])
    except InvalidEinsumError as error:
        raise ProgramError(str(error), rules=("term",)) from None
    for array, term in zip(arrays, terms, strict=True):
        if len(term) != array.ndim:
            raise ProgramError(
                f"numpy.einsum of {subscripts!r}: an operand has "
                f"{counted(array.ndim, 'axis')}, "
                f"its term {' '.join(term)!r} has "
                f"{counted(len(term), 'index')}",
                rules=("term",),
            )
    return statement(arrays, terms, output)


def statement(
    arrays: Sequence[View],
    terms: Sequence[IndexList],
    output: IndexList,
    body: str = "",
    reduction: str = "sum",
) -> Any:
    """Record a statement; axes of extent one that a tensor lacks have no index."""
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
    """Drop axes of the tensor that are broadcast along an index."""
    unit_axes = [
        a
        for a, index in zip(array.axes, term, strict=True)
        if a is not None and array.tensor.shape[a] == 1 and extents[index] != 1
    ]
    if not unit_axes:
        return array
    tensor = array.tensor.owner.reduce("max", array.tensor, unit_axes)
    left = [a for a in range(array.tensor.rank) if a not in unit_axes]
    axes = (None if a is None or a in unit_axes else left.index(a) for a in array.axes)
    return array.viewed(tensor, tuple(axes))


def whole(array: View) -> Tensor:
    """Return a tensor with exactly the axes of a view."""
    tensor, order = array.tensor, [a for a in array.axes if a is not None]
    if order != sorted(order):
        tensor = tensor.owner.numpy(f"transpose(x0, {tuple(order)})", tensor)
    if len(order) == array.ndim:
        return tensor
    key = ", ".join("None" if a is None else ":" for a in array.axes)
    return tensor.owner.numpy(f"x0[{key}]", tensor)


def called(
    function: str, arrays: Sequence[View], *literals: Any, is_view: bool = False
) -> Any:
    """Return a numpy statement."""
    names = map(operand_name, range(len(arrays)))
    text = f"{function}({', '.join([*names, *map(repr, literals)])})"
    return numpy_statement(text, arrays, is_view)


def numpy_statement(body: str, arrays: Sequence[View], is_view: bool = False) -> Any:
    builder = arrays[0].recording.builder
    tensor = builder.numpy(body, *map(whole, arrays))
    return arrays[0].viewed(tensor) if is_view else arrays[0].computed(tensor)


def as_result(array: View) -> Tensor:
    """Return an array as a tensor that can be an output of its own.

    A view, an input, or what is an output already, is copied.
    """
    builder = array.recording.builder
    tensor = whole(array) if None in array.axes else array.tensor
    view = array.viewed(tensor) if None in array.axes else array
    is_view = view.axes != tuple(range(tensor.rank))
    is_input = any(tensor.name == x.name for x in builder.inputs)
    # outputs are arrays of their own, as after a call of numpy
    if is_view or is_input or builder.is_output(tensor):
        indices = letters_of(view.ndim)
        tensor = statement([view], [indices], indices).tensor
    return tensor


def letters_of(rank: int) -> IndexList:
    letters = "abcdefghlmnopqrstuvwxyz"
    return tuple(letters[k] if k < 23 else f"a{k}" for k in range(rank))
