"""Programs traced from numpy functions: calls are recorded, not computed.

Source: NumPy Enhancement Proposals 13 (``__array_ufunc__``) and 18
(``__array_function__``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from feinsum.errors import ProgramError
from feinsum.ir import Operand
from feinsum.programs.builder import program
from feinsum.programs.program import Program
from feinsum.programs.recording import (
    View,
    as_result,
    axis_of,
    dotted,
    einsum,
    expanded,
    mapped,
    mean,
    multiplied,
    reduced,
    refuse,
    swapped,
    where,
)

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
        function: takes arrays named as in ``operands``, and returns one array, or a
            tuple or dictionary of arrays. It may use numpy's arithmetic, ufuncs,
            ``einsum``, ``matmul``, ``dot``, ``where``, sums and other reductions,
            transposition and new axes, but nothing that depends on values.
        operands: made by :func:`feinsum.array`, with shapes and dtypes.

    Raises:
        ProgramError: for any other operation, which it names.

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
                f"the function returns {type(one).__name__}; it must return arrays "
                "computed from its arguments"
            )
        builder.output(as_result(builder, one))
    return builder.build()


def _results(found: Any) -> list[Any]:
    if isinstance(found, Mapping):
        return [*found.values()]
    return [*found] if isinstance(found, tuple | list) else [found]


@dataclass(frozen=True, eq=False)
class Traced(View, NDArrayOperatorsMixin):
    """An array of a program while a function is traced: it looks like numpy's."""

    __array_priority__ = 1000

    @property
    def T(self) -> Traced:  # noqa: N802  (numpy's name)
        return Traced(self.tensor, self.axes[::-1])

    def transpose(self, *order: Any) -> Traced:
        axes = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
        chosen = [axis_of(a, self.ndim) for a in axes or range(self.ndim)[::-1]]
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
                refuse(f"the subscript {part!r}")
        return Traced(self.tensor, (*axes, *left))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> View:
        return reduced("sum", self, axis, keepdims)

    def prod(self, axis: Any = None, *, keepdims: bool = False) -> View:
        return reduced("prod", self, axis, keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> View:
        return reduced("max", self, axis, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> View:
        return reduced("min", self, axis, keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> View:
        return mean(self, axis, keepdims=keepdims)

    def dot(self, other: Any) -> View:
        return dotted(self, other)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *args: Any, **more: Any
    ) -> Any:
        if method == "reduce" and ufunc in REDUCING:
            axis, keepdims = more.pop("axis", 0), more.pop("keepdims", False)
            if not any(value is not None for value in more.values()):
                return reduced(REDUCING[ufunc], args[0], axis, keepdims)
        if method != "__call__" or any(value is not None for value in more.values()):
            refuse(f"numpy.{ufunc.__name__} with {method} and {sorted(more)}")
        if ufunc is np.matmul:
            return multiplied(*args)
        if ufunc.signature is not None or ufunc.nout != 1:
            refuse(f"numpy.{ufunc.__name__}")
        form = OPERATORS.get(ufunc)
        call = f"{ufunc.__name__}({', '.join(['{}'] * ufunc.nin)})"
        return mapped(form or call, args)

    def __array_function__(
        self, function: Any, types: Any, args: Any, more: Mapping[str, Any]
    ) -> Any:
        known = FUNCTIONS.get(function)
        if known is None:
            refuse(f"numpy.{function.__name__}")
        try:
            signature(known).bind(*args, **more)
        except TypeError as error:
            refuse(f"numpy.{function.__name__} with other arguments ({error})")
        return known(*args, **more)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("the values of an array, as numbers")

    def __bool__(self) -> NoReturn:
        refuse("a decision on values")

    def __iter__(self) -> NoReturn:
        refuse("a loop over the entries of an array")

    __float__ = __int__ = __index__ = __len__ = __bool__


REDUCING: Mapping[Any, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_or: "any",
    np.logical_and: "all",
}

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.einsum: einsum,
    np.dot: dotted,
    np.where: where,
    np.sum: lambda a, axis=None, keepdims=False: reduced("sum", a, axis, keepdims),
    np.prod: lambda a, axis=None, keepdims=False: reduced("prod", a, axis, keepdims),
    np.max: lambda a, axis=None, keepdims=False: reduced("max", a, axis, keepdims),
    np.min: lambda a, axis=None, keepdims=False: reduced("min", a, axis, keepdims),
    np.any: lambda a, axis=None, keepdims=False: reduced("any", a, axis, keepdims),
    np.all: lambda a, axis=None, keepdims=False: reduced("all", a, axis, keepdims),
    np.mean: lambda a, axis=None, keepdims=False: mean(a, axis, keepdims=keepdims),
    np.transpose: lambda a, axes=None: a.transpose(*(axes or ())),
    np.swapaxes: lambda a, one, other: a.transpose(swapped(a.ndim, one, other)),
    np.expand_dims: lambda a, axis: expanded(a, axis),
}
"""Functions of numpy that are no ufuncs, and can be traced."""
