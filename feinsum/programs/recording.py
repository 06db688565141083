"""The statements recorded from a traced function.

Axes of extent 1 from ``keepdims`` or a new axis exist only in views: statements have no
index for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir import Extent, IndexList, parse_subscripts
from feinsum.programs.body import operand_name
from feinsum.programs.builder import ProgramBuilder, Tensor
from feinsum.words import counted

__all__ = [
    "View",
    "as_result",
    "axis_of",
    "dotted",
    "einsum",
    "expanded",
    "mapped",
    "mean",
    "multiplied",
    "reduced",
    "refuse",
    "swapped",
    "where",
]


@dataclass(frozen=True, eq=False)
class View:
    """A tensor with permuted axes, and with additional axes of extent 1.

    Attributes:
        axes: for each axis, that of the tensor; None for an additional one of extent 1.
    """

    tensor: Tensor
    axes: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[Extent, ...]:
        return tuple(1 if a is None else self.tensor.shape[a] for a in self.axes)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.operand.dtype


def refuse(what: str) -> NoReturn:
    raise ProgramError(
        f"the function uses {what}, which programs do not support; see "
        "docs/reference/programs.md for what can be traced"
    )


def axis_of(axis: Any, rank: int) -> int:
    if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
        refuse(f"axis {axis!r} of an array with {counted(rank, 'axis')}")
    return int(axis) % rank


def mapped(form: str, args: Sequence[Any]) -> View:
    """A body over arrays and numbers; axes are aligned from the last one."""
    arrays = [arg for arg in args if isinstance(arg, View)]
    names: list[str] = []
    n_arrays = 0
    for arg in args:
        if isinstance(arg, View):
            names.append(operand_name(n_arrays))
            n_arrays += 1
        else:
            names.append(_number(arg))
    indices = _letters(max(array.ndim for array in arrays))
    terms = [indices[len(indices) - array.ndim :] for array in arrays]
    return _stated(arrays, terms, indices, form.format(*names))


def _number(value: Any) -> str:
    """A number of the function itself, as a part of a body."""
    if isinstance(value, bool | np.bool_):
        return repr(bool(value))
    if isinstance(value, int | np.integer):
        text = repr(int(value))
    elif isinstance(value, float | np.floating):
        text = repr(float(value))
    else:
        refuse(f"a {type(value).__name__} of its own (make it an operand)")
    if text == "nan":
        refuse("the number nan")
    return f"({text})" if text.startswith("-") else text


def reduced(
    reduction: str, array: View, axis: Any = None, keepdims: bool = False
) -> View:
    if reduction in ("sum", "prod") and array.dtype.kind in "biu":
        refuse(f"a {reduction} of {array.dtype}, which numpy widens")
    return _without(array, axis, keepdims, "", reduction)


def mean(array: View, axis: Any = None, *, keepdims: bool = False) -> View:
    gone = _gone(array, axis)
    extents = [array.shape[a] for a in gone]
    if not all(isinstance(extent, int) for extent in extents):
        refuse("a mean along an axis whose extent is not known")
    n = prod(extent for extent in extents if isinstance(extent, int))
    return _without(array, axis, keepdims, f"x0 / {n}.0", "sum")


def _gone(array: View, axis: Any) -> list[int]:
    if axis is None:
        return [*range(array.ndim)]
    given = axis if isinstance(axis, Sequence) else [axis]
    return [axis_of(a, array.ndim) for a in given]


def _without(array: View, axis: Any, keepdims: bool, body: str, reduction: str) -> View:
    gone = _gone(array, axis)
    indices = _letters(array.ndim)
    output = tuple(i for a, i in enumerate(indices) if a not in gone)
    found = _stated([array], [indices], output, body, reduction)
    if not keepdims:
        return found
    left = list(found.axes)
    axes = [None if a in gone else left.pop(0) for a in range(array.ndim)]
    return replace(found, axes=tuple(axes))


def multiplied(left: Any, right: Any) -> View:
    for one in (left, right):
        if not isinstance(one, View):
            refuse(f"a {type(one).__name__} of its own (make it an operand)")
        if not one.ndim:
            refuse("a product of matrices with a scalar")
    batch = _letters(max(left.ndim, right.ndim, 2) - 2)
    first = (*batch[len(batch) - left.ndim + 2 :], "i", "k")
    second = (*batch[len(batch) - right.ndim + 2 :], "k", "j")
    terms = [first if left.ndim > 1 else ("k",), second if right.ndim > 1 else ("k",)]
    rows = ["i"] if left.ndim > 1 else []
    columns = ["j"] if right.ndim > 1 else []
    return _stated([left, right], terms, (*batch, *rows, *columns))


def dotted(left: Any, right: Any) -> View:
    """Like ``numpy.dot``, which treats stacks of matrices unlike ``matmul``."""
    if isinstance(right, View) and right.ndim > 2:
        refuse(f"numpy.dot by an array with {counted(right.ndim, 'axis')}")
    return multiplied(left, right)


def einsum(subscripts: Any, *operands: Any, **more: Any) -> View:
    if not isinstance(subscripts, str) or set(more) - {"optimize"}:
        refuse(f"numpy.einsum with {sorted(more) or 'lists of indices'}")
    arrays = [one for one in operands if isinstance(one, View)]
    if len(arrays) != len(operands):
        refuse("an array of its own in numpy.einsum (pass it as an operand)")
    try:
        terms, output = parse_subscripts(subscripts, [one.ndim for one in arrays])
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
    return _stated(arrays, terms, output)


def where(condition: Any, then: Any, other: Any) -> View:
    return mapped("({1} if {0} else {2})", (condition, then, other))


def _stated(
    arrays: Sequence[View],
    terms: Sequence[IndexList],
    output: IndexList,
    body: str = "",
    reduction: str = "sum",
) -> View:
    """A statement; axes of extent one that a tensor lacks have no index in it."""
    builder = arrays[0].tensor.owner
    extents: dict[str, Extent] = {}
    for array, term in zip(arrays, terms, strict=True):
        for index, extent in zip(term, array.shape, strict=True):
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
    there = {index for term in inputs for index in term}
    kept = tuple(index for index in output if index in there)
    subscripts = f"{', '.join(map(' '.join, inputs))} -> {' '.join(kept)}"
    tensor = builder.einsum(
        subscripts, *(a.tensor for a in arrays), body=body, reduction=reduction
    )
    axes = tuple(kept.index(i) if i in there else None for i in output)
    return replace(arrays[0], tensor=tensor, axes=axes)


def _without_ones(array: View, term: IndexList, extents: Mapping[str, Extent]) -> View:
    """Without axes of the tensor that are broadcast along an index."""
    ones = [
        a
        for a, index in zip(array.axes, term, strict=True)
        if a is not None and array.tensor.shape[a] == 1 and extents[index] != 1
    ]
    if not ones:
        return array
    tensor = array.tensor.owner.reduce("max", array.tensor, ones)
    left = [a for a in range(array.tensor.rank) if a not in ones]
    axes = (None if a is None or a in ones else left.index(a) for a in array.axes)
    return replace(array, tensor=tensor, axes=tuple(axes))


def as_result(builder: ProgramBuilder, one: View) -> Tensor:
    """The tensor itself, or a copy if it is only a view."""
    if None in one.axes:
        refuse("an axis of extent 1, kept by keepdims or new, in a result")
    is_view = one.axes != tuple(range(one.tensor.rank))
    is_input = any(one.tensor.name == x.name for x in builder.inputs)
    if not is_view and not is_input:
        return one.tensor
    indices = _letters(one.ndim)
    return _stated([one], [indices], indices).tensor


def _letters(rank: int) -> IndexList:
    return tuple("abcdefghlmnopqrstuvwxyz"[:rank])


def swapped(rank: int, one: int, other: int) -> list[int]:
    order = [*range(rank)]
    a, b = axis_of(one, rank), axis_of(other, rank)
    order[a], order[b] = order[b], order[a]
    return order


def expanded(array: View, axis: int) -> View:
    at = axis_of(axis, array.ndim + 1)
    return replace(array, axes=(*array.axes[:at], None, *array.axes[at:]))
