"""Functions of indices, which numpy evaluates over boxes into given memory.

An operand such as ``alpha*A[k,i] + 1`` of the indices i and k becomes an expression of
:mod:`feinsum.ir` over its sources::

    body  x0*x1 + 1.0       x0  the scalar alpha        x1  A read at (k, i)

The grammar is closed: floating-point arrays read at the indices themselves or at a
number, floating-point scalars, arithmetic, the functions of :data:`feinsum.ir.UFUNCS`,
comparisons and conditions. Nothing in a kernel is executed as Python.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper import Mapper

from feinsum.contraction import Affine
from feinsum.errors import TransformError
from feinsum.ir import (
    UFUNCS,
    Extent,
    IndexList,
    SizeParam,
    evaluate_body,
    evaluate_into,
)
from feinsum.ir.expressions import split_linear

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Expression: TypeAlias = Any
Box = Mapping[str, slice]
"""A range of each index; a missing index has its whole extent."""
Positions: TypeAlias = tuple[str | int, ...]
"""For each axis of an array, the index along it or a fixed position."""


@dataclass(frozen=True)
class ArrayRead:
    """An array that is read along indices, or at fixed positions."""

    name: str
    positions: Positions

    def view(self, values: Mapping[str, Any], order: IndexList, box: Box) -> Array:
        """Return the part of the array in a box, with an axis for each index."""
        everything = slice(None)
        ranges = (
            box.get(x, everything) if isinstance(x, str) else x for x in self.positions
        )
        axes, expanded = _order_axes(self.positions, order)
        # with an ellipsis, the result is a view even if it has no axes
        boxed: Array = values[self.name][(*ranges, ...)]
        view: Array = boxed.transpose(axes)[expanded]
        return view


@lru_cache(maxsize=1024)
def _order_axes(
    positions: Positions, order: IndexList
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return the permutation of an array's axes, and a subscript that adds axes.

    Axes at fixed positions are gone already. Indices that the array lacks get an axis
    of length 1.

    >>> _order_axes(("k", 0, "i"), ("i", "j", "k"))
    ((1, 0), (slice(None, None, None), None, slice(None, None, None), Ellipsis))
    """
    indices = [x for x in positions if isinstance(x, str)]
    axes = tuple(indices.index(i) for i in order if i in indices)
    return axes, (*(slice(None) if i in indices else None for i in order), ...)


@dataclass(frozen=True)
class ArrayFunction:
    """An expression over the arguments of a kernel, as a function of indices.

    Attributes:
        body: an expression in the names x0, x1 and so on.
        sources: the arrays, or names of scalars, that these names stand for.
    """

    body: str
    sources: tuple[ArrayRead | str, ...]

    @property
    def read(self) -> ArrayRead | None:
        """The array, if the function is just an array; else None."""
        first = self.sources[0] if self.body == "x0" else None
        return first if isinstance(first, ArrayRead) else None

    @property
    def is_variable(self) -> bool:
        """Whether the function is just a scalar."""
        return self.body == "x0" and self.read is None

    @property
    def arrays(self) -> tuple[ArrayRead, ...]:
        """The arrays that the function reads."""
        return tuple(x for x in self.sources if isinstance(x, ArrayRead))

    def find_affine(
        self, source: ArrayRead | str, values: Mapping[str, Any]
    ) -> Affine | None:
        """Return ``scale*x + shift`` if the function is that of one source and scalars.

        Args:
            source: the source x, whose value is not needed.
            values: the arguments of the kernel by name.
        """
        name = f"x{self.sources.index(source)}"
        linear = split_linear(self.body, name, is_distributed=False)
        if linear is None or any(x != source for x in self.arrays):
            return None
        scalars = {
            f"x{k}": values[x]
            for k, x in enumerate(self.sources)
            if isinstance(x, str) and x != source
        }
        scale, shift = (float(evaluate_body(text, scalars)) for text in linear)
        return Affine(scale, shift)

    def into(
        self, out: Array, values: Mapping[str, Any], order: IndexList, box: Box
    ) -> None:
        """Evaluate over a box into an array.

        Args:
            out: memory for the values, with an axis for each index of ``order``.
            values: the arguments of the kernel by name. In place of a scalar, there may
                be an array with the axes of ``out``.
            order: index of each axis of ``out``.
            box: the range of each index.
        """
        names = {
            f"x{k}": x.view(values, order, box)
            if isinstance(x, ArrayRead)
            else values[x]
            for k, x in enumerate(self.sources)
        }
        arrays = {name: x for name, x in names.items() if isinstance(x, np.ndarray)}
        shared = [n for n, x in arrays.items() if np.may_share_memory(x, out)]
        if not shared:
            evaluate_into(self.body, names, out)
        elif len(shared) == 1 and _is_same(arrays[shared[0]], out):
            evaluate_into(self.body, names, out, spent=shared[0])
        else:  # evaluate first: the output may overwrite entries still to be read
            out[...] = evaluate_body(self.body, names)


def _is_same(first: Array, second: Array) -> bool:
    """Return whether two arrays are views of the same memory in the same order."""
    interfaces = (x.__array_interface__ for x in (first, second))
    layouts = [(x["data"], x["shape"], x["typestr"]) for x in interfaces]
    return layouts[0] == layouts[1] and first.strides == second.strides


def read_function(
    kernel: lp.LoopKernel,
    expression: Expression,
    indices: Mapping[str, str],
    extents: Mapping[str, Extent],
    extra: Collection[str] = (),
) -> ArrayFunction:
    """Return an expression of a kernel as a function of indices.

    Args:
        kernel: the kernel of the expression.
        expression: a Loopy expression without substitution rules.
        indices: maps variables of the expression to indices of the einsum.
        extents: the extent of each index in terms of the kernel.
        extra: names of further variables, whose values are known at evaluation.

    Raises:
        TransformError: naming the subexpression that is not in the grammar.
    """
    reader = _Reader(kernel, indices, extents, extra)
    body = str(reader(expression))
    return ArrayFunction(body, tuple(reader.sources))


class _Reader(Mapper[Any, []]):  # type: ignore[misc]
    """Numbers the sources of an expression; refuses what the grammar lacks."""

    def __init__(
        self,
        kernel: lp.LoopKernel,
        indices: Mapping[str, str],
        extents: Mapping[str, Extent],
        extra: Collection[str],
    ) -> None:
        super().__init__()
        self.kernel, self.indices, self.extents = kernel, indices, extents
        self.extra = extra
        self.sources: list[ArrayRead | str] = []

    def _number_source(self, source: ArrayRead | str) -> p.Variable:
        if source not in self.sources:
            self.sources.append(source)
        return var(f"x{self.sources.index(source)}")

    def map_constant(self, expr: Any) -> Any:
        return expr.item() if isinstance(expr, np.generic) else expr

    def map_variable(self, expr: p.Variable) -> p.Variable:
        arg = self.kernel.arg_dict.get(expr.name)
        is_scalar = isinstance(arg, lp.ValueArg) and _is_inexact(arg)
        if not is_scalar and expr.name not in self.extra:
            raise _make_refusal(expr, "is not a floating-point scalar")
        return self._number_source(expr.name)

    def map_subscript(self, expr: p.Subscript) -> p.Variable:
        arg = self.kernel.arg_dict.get(getattr(expr.aggregate, "name", ""))
        if not isinstance(arg, lp.ArrayArg) or not _is_inexact(arg):
            raise _make_refusal(
                expr, "reads something other than a floating-point array of the caller"
            )
        shape = arg.shape if isinstance(arg.shape, tuple) else ()
        if len(shape) != len(expr.index_tuple):
            raise _make_refusal(expr, f"reads an array of the shape {arg.shape}")
        axes = zip(expr.index_tuple, shape, strict=True)
        positions = tuple(self._read_position(expr, *axis) for axis in axes)
        named = [x for x in positions if isinstance(x, str)]
        if len(set(named)) != len(named):
            raise _make_refusal(expr, "reads a diagonal")
        return self._number_source(ArrayRead(arg.name, positions))

    def _read_position(
        self, expr: p.Subscript, subscript: Expression, extent: Any
    ) -> str | int:
        """Return the index along an axis, which it must cover, or a fixed position."""
        if isinstance(subscript, (int, np.integer)):
            return int(subscript)
        index = self.indices.get(getattr(subscript, "name", ""))
        if index is None:
            raise _make_refusal(expr, f"is read at {subscript}")
        length = self.extents[index]
        expected = length.name if isinstance(length, SizeParam) else length
        is_longer = isinstance(extent, int) and isinstance(expected, int)
        if str(extent) != str(expected) and not (is_longer and extent > expected):
            raise _make_refusal(
                expr, f"has {extent} entries along {subscript}, not {expected}"
            )
        return index

    def map_sum(self, expr: p.Sum) -> Expression:
        return p.Sum(self._visit_all(expr.children))

    def map_product(self, expr: p.Product) -> Expression:
        return p.Product(self._visit_all(expr.children))

    def map_quotient(self, expr: p.Quotient) -> Expression:
        if isinstance(expr.numerator, int) and isinstance(expr.denominator, int):
            raise _make_refusal(expr, "divides integers")
        return p.Quotient(*self._visit_all((expr.numerator, expr.denominator)))

    def map_power(self, expr: p.Power) -> Expression:
        # as a call, since pymbolic writes a power of a power as a**b**c
        return p.Call(var("pow"), self._visit_all((expr.base, expr.exponent)))

    def map_call(self, expr: p.Call) -> Expression:
        self._refuse_complex(expr)
        name = getattr(expr.function, "name", None)
        if name not in UFUNCS:
            raise _make_refusal(expr, f"calls {expr.function}")
        return p.Call(var(name), self._visit_all(expr.parameters))

    def map_comparison(self, expr: p.Comparison) -> Expression:
        self._refuse_complex(expr)
        left, right = self._visit_all((expr.left, expr.right))
        return p.Comparison(left, expr.operator, right)

    def map_if(self, expr: p.If) -> Expression:
        return p.If(*self._visit_all((expr.condition, expr.then, expr.else_)))

    def _refuse_complex(self, expr: Expression) -> None:
        """Refuse complex arguments: functions and comparisons differ for them."""
        dtypes = (arg.dtype for arg in self.kernel.args if arg.dtype is not None)
        if any(dtype.numpy_dtype.kind == "c" for dtype in dtypes):
            raise _make_refusal(
                expr, "is not arithmetic, which complex arguments require"
            )

    def _visit_all(self, children: Sequence[Expression]) -> tuple[Expression, ...]:
        return tuple(self.rec(child) for child in children)

    def handle_unsupported_expression(self, expr: Any) -> None:
        raise _make_refusal(expr, f"is a {type(expr).__name__}")


def _is_inexact(arg: Any) -> bool:
    return arg.dtype is not None and arg.dtype.numpy_dtype.kind in "fc"


def _make_refusal(expr: Expression, why: str) -> TransformError:
    return TransformError(f"numpy cannot evaluate {expr}, which {why}")
