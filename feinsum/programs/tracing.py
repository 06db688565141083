"""Programs traced from numpy functions: calls are recorded, not computed.

Source: NumPy Enhancement Proposals 13 (``__array_ufunc__``) and 18
(``__array_function__``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir import Extent, IndexList, Operand, parse_subscripts
from feinsum.programs.body import operand_name
from feinsum.programs.builder import ProgramBuilder, Tensor, program
from feinsum.programs.program import Program

__all__ = ["trace"]

OPERATORS: Mapping[Any, str] = {
    np.add: "({} + {})",
    np.subtract: "({} - {})",
    np.multiply: "({} * {})",
    np.divide: "({} / {})",
    np.floor_divide: "({} // {})",
    np.remainder: "({} % {})",
    np.power: "({} ** {})",
    np.negative: "(-{})",
    np.equal: "({} == {})",
    np.not_equal: "({} != {})",
    np.less: "({} < {})",
    np.less_equal: "({} <= {})",
    np.greater: "({} > {})",
    np.greater_equal: "({} >= {})",
}
"""Ufuncs that have an operator; others are called by their names."""


def trace(function: Callable[..., Any], **operands: Operand) -> Program:
    """The program that a function of numpy arrays computes.

    Args:
        function: takes arrays by the names of ``operands``, and gives one array, or a
            tuple or dictionary of arrays. It may use numpy's arithmetic, ufuncs,
            ``einsum``, ``matmul``, ``dot``, ``where``, sums and other reductions,
            transposition and new axes. What depends on values it may not.
        operands: made by :func:`feinsum.array`, with shapes and dtypes.

    Raises:
        ProgramError: naming what the function does that is none of this.

    >>> from feinsum.ir import array
    >>> def weights(Q, K):
    ...     scores = Q @ K.T / 2.0
    ...     powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    ...     return powers / powers.sum(axis=1, keepdims=True)
    >>> print(trace(weights, Q=array("Q", (6, 4)), K=array("K", (8, 4))))
    Q[6,4]:<f8
    K[8,4]:<f8
    r0[i,j] = sum x0*x1 : Q[i,k], K[j,k]
    r1[a,b] = map (x0 / 2.0) : r0[a,b]
    r2[a] = max x0 : r1[a,b]
    r3[a,b] = map (x0 - x1) : r1[a,b], r2[a]
    r4[a,b] = map exp(x0) : r3[a,b]
    r5[a] = sum x0 : r4[a,b]
    r6[a,b] = map (x0 / x1) : r4[a,b], r5[a]
    -> r6
    """
    builder = program()
    arrays = {}
    for name, operand in operands.items():
        tensor = builder.input(operand.name, operand.shape, operand.dtype)
        arrays[name] = Traced(tensor, tuple(range(tensor.rank)))
    for one in _results(function(**arrays)):
        if not isinstance(one, Traced):
            raise ProgramError(
                f"the function gives {type(one).__name__}; it has to give arrays that "
                "it computed from its arguments"
            )
        builder.output(_result_of(builder, one))
    return builder.build()


def _results(found: Any) -> list[Any]:
    if isinstance(found, Mapping):
        return [*found.values()]
    return [*found] if isinstance(found, tuple | list) else [found]


@dataclass(frozen=True, eq=False)
class Traced(NDArrayOperatorsMixin):
    """An array of a program while a function is traced.

    Attributes:
        axes: for each axis that of the tensor; None for one of extent 1 that it lacks.
    """

    tensor: Tensor
    axes: tuple[int | None, ...]

    __array_priority__ = 1000

    @property
    def shape(self) -> tuple[Extent, ...]:
        return tuple(1 if a is None else self.tensor.shape[a] for a in self.axes)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.operand.dtype

    @property
    def T(self) -> Traced:  # noqa: N802  (numpy's name)
        return Traced(self.tensor, self.axes[::-1])

    def transpose(self, *order: Any) -> Traced:
        axes = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
        chosen = [_axis(a, self.ndim) for a in axes or range(self.ndim)[::-1]]
        return Traced(self.tensor, tuple(self.axes[a] for a in chosen))

    def __getitem__(self, key: Any) -> Traced:
        """New axes, and all of old ones; entries are not known."""
        parts = key if isinstance(key, tuple) else (key,)
        n_given = sum(part is not None and part is not Ellipsis for part in parts)
        axes: list[int | None] = []
        left = list(self.axes)
        for part in parts:
            if part is None:
                axes.append(None)
            elif part is Ellipsis:
                n = self.ndim - n_given
                axes += left[:n]
                left = left[n:]
            elif isinstance(part, slice) and part == slice(None) and left:
                axes.append(left.pop(0))
            else:
                _refuse(f"the subscript {part!r}")
        return Traced(self.tensor, (*axes, *left))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Traced:
        return _reduced("sum", self, axis, keepdims)

    def prod(self, axis: Any = None, *, keepdims: bool = False) -> Traced:
        return _reduced("prod", self, axis, keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Traced:
        return _reduced("max", self, axis, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Traced:
        return _reduced("min", self, axis, keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Traced:
        return _mean(self, axis, keepdims=keepdims)

    def dot(self, other: Any) -> Traced:
        return _matmul(self, other)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *args: Any, **more: Any
    ) -> Any:
        if method == "reduce" and ufunc in REDUCING:
            axis, keepdims = more.pop("axis", 0), more.pop("keepdims", False)
            if not any(value is not None for value in more.values()):
                return _reduced(REDUCING[ufunc], args[0], axis, keepdims)
        if method != "__call__" or any(value is not None for value in more.values()):
            _refuse(f"numpy.{ufunc.__name__} with {method} and {sorted(more)}")
        if ufunc is np.matmul:
            return _matmul(*args)
        if ufunc.signature is not None or ufunc.nout != 1:
            _refuse(f"numpy.{ufunc.__name__}")
        form = OPERATORS.get(ufunc)
        call = f"{ufunc.__name__}({', '.join(['{}'] * ufunc.nin)})"
        return _mapped(form or call, args)

    def __array_function__(
        self, function: Any, types: Any, args: Any, more: Mapping[str, Any]
    ) -> Any:
        known = FUNCTIONS.get(function)
        if known is None:
            _refuse(f"numpy.{function.__name__}")
        return known(*args, **more)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("the values of an array, as numbers")

    def __bool__(self) -> NoReturn:
        _refuse("a decision on values")

    def __iter__(self) -> NoReturn:
        _refuse("a loop over the entries of an array")

    __float__ = __int__ = __index__ = __len__ = __bool__


def _refuse(what: str) -> NoReturn:
    raise ProgramError(
        f"the function uses {what}, which programs do not support; see "
        "docs/programs.md for what can be traced"
    )


def _axis(axis: Any, rank: int) -> int:
    if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
        _refuse(f"axis {axis!r} of an array with {rank} axes")
    return int(axis) % rank


def _mapped(form: str, args: Sequence[Any]) -> Traced:
    """A body over arrays and numbers; axes are matched from the last one."""
    arrays = [arg for arg in args if isinstance(arg, Traced)]
    names: list[str] = []
    n_arrays = 0
    for arg in args:
        if isinstance(arg, Traced):
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
        _refuse(f"a {type(value).__name__} of its own (make it an operand)")
    if text == "nan":
        _refuse("the number nan")
    return f"({text})" if text.startswith("-") else text


def _reduced(
    reduction: str, array: Traced, axis: Any = None, keepdims: bool = False
) -> Traced:
    if reduction in ("sum", "prod") and array.dtype.kind in "biu":
        _refuse(f"a {reduction} of {array.dtype}, which numpy widens")
    return _without(array, axis, keepdims, "", reduction)


def _mean(array: Traced, axis: Any = None, *, keepdims: bool = False) -> Traced:
    gone = _gone(array, axis)
    extents = [array.shape[a] for a in gone]
    if not all(isinstance(extent, int) for extent in extents):
        _refuse("a mean along an axis whose extent is not known")
    n = prod(extent for extent in extents if isinstance(extent, int))
    return _without(array, axis, keepdims, f"x0 / {n}.0", "sum")


def _gone(array: Traced, axis: Any) -> list[int]:
    if axis is None:
        return [*range(array.ndim)]
    given = axis if isinstance(axis, Sequence) else [axis]
    return [_axis(a, array.ndim) for a in given]


def _without(
    array: Traced, axis: Any, keepdims: bool, body: str, reduction: str
) -> Traced:
    gone = _gone(array, axis)
    indices = _letters(array.ndim)
    output = tuple(i for a, i in enumerate(indices) if a not in gone)
    found = _stated([array], [indices], output, body, reduction)
    if not keepdims:
        return found
    left = list(found.axes)
    axes = [None if a in gone else left.pop(0) for a in range(array.ndim)]
    return Traced(found.tensor, tuple(axes))


def _matmul(left: Any, right: Any) -> Traced:
    for one in (left, right):
        if not isinstance(one, Traced):
            _refuse(f"a {type(one).__name__} of its own (make it an operand)")
        if not one.ndim:
            _refuse("a product of matrices with a scalar")
    batch = _letters(max(left.ndim, right.ndim, 2) - 2)
    first = (*batch[len(batch) - left.ndim + 2 :], "i", "k")
    second = (*batch[len(batch) - right.ndim + 2 :], "k", "j")
    terms = [first if left.ndim > 1 else ("k",), second if right.ndim > 1 else ("k",)]
    rows = ["i"] if left.ndim > 1 else []
    columns = ["j"] if right.ndim > 1 else []
    return _stated([left, right], terms, (*batch, *rows, *columns))


def _einsum(subscripts: Any, *operands: Any, **more: Any) -> Traced:
    if not isinstance(subscripts, str) or set(more) - {"optimize"}:
        _refuse(f"numpy.einsum with {sorted(more) or 'lists of indices'}")
    arrays = [one for one in operands if isinstance(one, Traced)]
    if len(arrays) != len(operands):
        _refuse("an array of its own in numpy.einsum (make it an operand)")
    try:
        terms, output = parse_subscripts(subscripts, [one.ndim for one in arrays])
    except InvalidEinsumError as error:
        raise ProgramError(str(error), rules=("term",)) from None
    for array, term in zip(arrays, terms, strict=True):
        if len(term) != array.ndim:
            raise ProgramError(
                f"numpy.einsum of {subscripts!r}: an operand has {array.ndim} axes, "
                f"its term {' '.join(term)!r} has {len(term)} indices",
                rules=("term",),
            )
    return _stated(arrays, terms, output)


def _where(condition: Any, then: Any, other: Any) -> Traced:
    return _mapped("({1} if {0} else {2})", (condition, then, other))


def _stated(
    arrays: Sequence[Traced],
    terms: Sequence[IndexList],
    output: IndexList,
    body: str = "",
    reduction: str = "sum",
) -> Traced:
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
    return Traced(tensor, tuple(kept.index(i) if i in there else None for i in output))


def _without_ones(
    array: Traced, term: IndexList, extents: Mapping[str, Extent]
) -> Traced:
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
    return Traced(tensor, tuple(axes))


def _result_of(builder: ProgramBuilder, one: Traced) -> Tensor:
    """The tensor itself, or a copy of what is a view of it."""
    if None in one.axes:
        _refuse("an axis of extent 1, kept by keepdims or new, in a result")
    is_view = one.axes != tuple(range(one.tensor.rank))
    is_input = any(one.tensor.name == x.name for x in builder.inputs)
    if not is_view and not is_input:
        return one.tensor
    indices = _letters(one.ndim)
    return _stated([one], [indices], indices).tensor


def _letters(rank: int) -> IndexList:
    return tuple("abcdefghlmnopqrstuvwxyz"[:rank])


REDUCING: Mapping[Any, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_or: "any",
    np.logical_and: "all",
}

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.einsum: _einsum,
    np.dot: _matmul,
    np.where: _where,
    np.sum: lambda a, axis=None, keepdims=False: _reduced("sum", a, axis, keepdims),
    np.prod: lambda a, axis=None, keepdims=False: _reduced("prod", a, axis, keepdims),
    np.max: lambda a, axis=None, keepdims=False: _reduced("max", a, axis, keepdims),
    np.min: lambda a, axis=None, keepdims=False: _reduced("min", a, axis, keepdims),
    np.any: lambda a, axis=None, keepdims=False: _reduced("any", a, axis, keepdims),
    np.all: lambda a, axis=None, keepdims=False: _reduced("all", a, axis, keepdims),
    np.mean: lambda a, axis=None, keepdims=False: _mean(a, axis, keepdims=keepdims),
    np.transpose: lambda a, axes=None: a.transpose(*(axes or ())),
    np.swapaxes: lambda a, one, other: a.transpose(_swapped(a.ndim, one, other)),
    np.expand_dims: lambda a, axis: _expanded(a, axis),
}
"""Functions of numpy that are no ufuncs, and can be traced."""


def _swapped(rank: int, one: int, other: int) -> list[int]:
    order = [*range(rank)]
    a, b = _axis(one, rank), _axis(other, rank)
    order[a], order[b] = order[b], order[a]
    return order


def _expanded(array: Traced, axis: int) -> Traced:
    at = _axis(axis, array.ndim + 1)
    return Traced(array.tensor, (*array.axes[:at], None, *array.axes[at:]))
