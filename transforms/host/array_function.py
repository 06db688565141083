"""Functions of indices, evaluated by numpy over boxes into given memory.

The grammar is closed: floating-point arrays read at the indices themselves or at a
number, floating-point scalars, arithmetic, the functions of :data:`feinsum.ir.UFUNCS`,
comparisons and conditions. Nothing in a kernel is executed as Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from pymbolic import primitives as p
from pymbolic.mapper import Mapper

from feinsum.errors import TransformError
from feinsum.ir import UFUNCS, Extent, IndexList, SizeParam

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Expression: TypeAlias = Any
Box = Mapping[str, slice]
"""A range of each index; all of it where an index is left out."""

_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


@dataclass(frozen=True)
class ArrayFunction:
    """An expression over the arguments of a kernel, as a function of indices.

    Args:
        expression: a Loopy expression without substitution rules.
        indices: the index of the einsum that each of its variables stands for.
    """

    expression: Expression
    indices: Mapping[str, str]
    _readings: dict[IndexList, _Reading] = field(
        default_factory=dict, compare=False, repr=False
    )

    @cached_property
    def is_read(self) -> bool:
        """Whether the function is an array itself."""
        return isinstance(self.expression, p.Subscript)

    @property
    def is_variable(self) -> bool:
        """Whether the function is a single given value."""
        return isinstance(self.expression, p.Variable)

    def view(self, values: Mapping[str, Any], order: IndexList, box: Box) -> Array:
        """Return the part of the array in a box, with an axis for each index."""
        reading = self._readings.get(order)
        if reading is None:
            reading = _Reading.of(self.expression, self.indices, order)
            self._readings[order] = reading
        return reading.view(values, box)

    def into(
        self,
        out: Array,
        values: Mapping[str, Any],
        order: IndexList,
        box: Box,
        extra: Mapping[str, Any] | None = None,
        *,
        is_scratch: bool = False,
    ) -> None:
        """Evaluate over a box.

        Args:
            out: memory for the values, an axis for each index of ``order``.
            values: the arguments of the kernel by name.
            given: additional values, with the axes of ``out``.
            is_scratch: whether ``out`` is not an argument and may hold intermediate
                values.
        """
        evaluate = _Evaluator(values, self.indices, order, box, extra or {})
        with np.errstate(all="ignore"):  # as OpenCL does
            evaluate.rec(self.expression, _Target(out, is_scratch))


def read_function(
    kernel: lp.LoopKernel,
    expression: Expression,
    indices: Mapping[str, str],
    extents: Mapping[str, Extent],
) -> ArrayFunction:
    """Check an expression of a kernel and return it as a function of indices.

    Args:
        extents: the extent of each index in terms of the kernel.

    Raises:
        TransformError: naming what is not in the grammar.
    """
    _Checker(kernel, indices, extents)(expression)
    return ArrayFunction(expression, dict(indices))


@dataclass(frozen=True)
class _Reading:
    """How an array is read along indices.

    Attributes:
        places: of each axis of the array, the index along it, or a number.
        axes: the axes that are left, in the order of the indices.
        expanded: for each index what makes an axis for it.
    """

    name: str
    positions: tuple[Any, ...]
    axes: tuple[int, ...]
    expanded: tuple[Any, ...]

    @classmethod
    def of(
        cls, read: p.Subscript, indices: Mapping[str, str], order: IndexList
    ) -> _Reading:
        named = [indices.get(getattr(x, "name", "")) for x in read.index_tuple]
        positions = (
            x if name is None else name
            for name, x in zip(named, read.index_tuple, strict=True)
        )
        left = [name for name in named if name is not None]
        axes = (left.index(name) for name in order if name in left)
        expanded = (slice(None) if name in left else None for name in order)
        # an ellipsis makes a view of what has no axes, too
        return cls(read.aggregate.name, (*positions,), (*axes,), (*expanded, ...))

    def view(self, values: Mapping[str, Any], box: Box) -> Array:
        whole = slice(None)
        positions = (
            box.get(x, whole) if isinstance(x, str) else x for x in self.positions
        )
        part: Array = values[self.name][(*positions, ...)]
        view: Array = part.transpose(self.axes)[self.expanded]
        return view


@dataclass(frozen=True)
class _Target:
    """Where a value has to be, or may be.

    Attributes:
        is_scratch: the array may hold values on the way, too.
        is_needed: the value has to be there at the end.
    """

    array: Array
    is_scratch: bool
    is_needed: bool = True

    @property
    def on_the_way(self) -> _Target | None:
        return replace(self, is_needed=False) if self.is_scratch else None

    def takes(self, values: Sequence[Any]) -> bool:
        """Tell whether an operation on these values may write its result here."""
        shape = np.broadcast_shapes(*map(np.shape, values))
        is_like = self.array.dtype == np.result_type(*values)
        return self.is_needed or (is_like and self.array.shape == shape)


class _Evaluator(Mapper[Any, [Any]]):  # type: ignore[misc]
    """The value of an expression; the last operation writes to memory if given."""

    def __init__(
        self,
        values: Mapping[str, Any],
        indices: Mapping[str, str],
        order: IndexList,
        box: Box,
        extra: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.indices, self.order, self.box = indices, order, box
        self.values = {**values, **extra}

    def rec(self, expr: Expression, out: _Target | None = None) -> Any:
        return super().rec(expr, out)

    def map_constant(self, expr: Any, out: _Target | None) -> Any:
        return _stored(expr, out)

    def map_variable(self, expr: p.Variable, out: _Target | None) -> Any:
        return _stored(self.values[expr.name], out)

    def map_subscript(self, expr: p.Subscript, out: _Target | None) -> Any:
        reading = _Reading.of(expr, self.indices, self.order)
        return _stored(reading.view(self.values, self.box), out)

    def map_sum(self, expr: p.Sum, out: _Target | None) -> Any:
        return self._folded(np.add, expr.children, out)

    def map_product(self, expr: p.Product, out: _Target | None) -> Any:
        return self._folded(np.multiply, expr.children, out)

    def map_quotient(self, expr: p.Quotient, out: _Target | None) -> Any:
        return self._folded(np.true_divide, (expr.numerator, expr.denominator), out)

    def map_power(self, expr: p.Power, out: _Target | None) -> Any:
        return self._folded(np.power, (expr.base, expr.exponent), out)

    def map_call(self, expr: p.Call, out: _Target | None) -> Any:
        values = [self.rec(x) for x in expr.parameters]
        return _called(UFUNCS[expr.function.name], values, out)

    def map_comparison(self, expr: p.Comparison, out: _Target | None) -> Any:
        values = [self.rec(expr.left), self.rec(expr.right)]
        return _called(_COMPARISONS[str(expr.operator)], values, out)

    def map_if(self, expr: p.If, out: _Target | None) -> Any:
        parts = (self.rec(x) for x in (expr.condition, expr.then, expr.else_))
        return _stored(np.where(*parts), out)

    def _folded(
        self,
        ufunc: Callable[..., Any],
        parts: Sequence[Expression],
        out: _Target | None,
    ) -> Any:
        """Combine the parts from left to right, with intermediate values in ``out``."""
        first, *others = parts
        if not others:
            return self.rec(first, out)
        on_the_way = out.on_the_way if out else None
        value = self.rec(first, on_the_way)
        for other in others[:-1]:
            value = _called(ufunc, [value, self.rec(other)], on_the_way)
        return _called(ufunc, [value, self.rec(others[-1])], out)


def _called(ufunc: Callable[..., Any], values: list[Any], out: _Target | None) -> Any:
    if out is None or not out.takes(values):
        return ufunc(*values)
    return ufunc(*values, out=out.array, casting="same_kind")


def _stored(value: Any, out: _Target | None) -> Any:
    if out is None or not out.is_needed:
        return value
    np.copyto(out.array, value, casting="same_kind")
    return out.array


class _Checker(Mapper[None, []]):  # type: ignore[misc]
    """Raises an error where an expression leaves the grammar."""

    def __init__(
        self,
        kernel: lp.LoopKernel,
        indices: Mapping[str, str],
        extents: Mapping[str, Extent],
    ) -> None:
        super().__init__()
        self.kernel, self.indices, self.extents = kernel, indices, extents

    def map_constant(self, expr: Any) -> None:
        """Accept any number."""

    def map_variable(self, expr: p.Variable) -> None:
        arg = self.kernel.arg_dict.get(expr.name)
        if not isinstance(arg, lp.ValueArg) or not _is_inexact(arg):
            raise _refused(expr, "is not a floating-point scalar")

    def map_subscript(self, expr: p.Subscript) -> None:
        arg = self.kernel.arg_dict.get(getattr(expr.aggregate, "name", ""))
        if not isinstance(arg, lp.ArrayArg) or not _is_inexact(arg):
            raise _refused(
                expr, "reads something other than a floating-point array of the caller"
            )
        seen = [self._index(expr, *axis) for axis in _axes(expr, arg)]
        named = [index for index in seen if index is not None]
        if len(set(named)) != len(named):
            raise _refused(expr, "reads a diagonal")

    def _index(self, expr: p.Subscript, at: Expression, extent: Any) -> str | None:
        """Return the index that runs along a whole axis; None for a number."""
        if isinstance(at, (int, np.integer)):
            return None
        index = self.indices.get(getattr(at, "name", ""))
        if index is None:
            raise _refused(expr, f"is read at {at}")
        length = self.extents[index]
        expected = length.name if isinstance(length, SizeParam) else length
        is_longer = isinstance(extent, int) and isinstance(expected, int)
        if str(extent) != str(expected) and not (is_longer and extent > expected):
            raise _refused(expr, f"has {extent} entries along {at}, not {expected}")
        return index

    def map_sum(self, expr: Any) -> None:
        self._all(expr.children)

    map_product = map_sum

    def map_quotient(self, expr: p.Quotient) -> None:
        if isinstance(expr.numerator, int) and isinstance(expr.denominator, int):
            raise _refused(expr, "divides integers")
        self._all((expr.numerator, expr.denominator))

    def map_power(self, expr: p.Power) -> None:
        self._all((expr.base, expr.exponent))

    def map_call(self, expr: p.Call) -> None:
        self._refuse_complex(expr)
        if getattr(expr.function, "name", None) not in UFUNCS:
            raise _refused(expr, f"calls {expr.function}")
        self._all(expr.parameters)

    def map_comparison(self, expr: p.Comparison) -> None:
        self._refuse_complex(expr)
        self._all((expr.left, expr.right))

    def map_if(self, expr: p.If) -> None:
        self._all((expr.condition, expr.then, expr.else_))

    def _refuse_complex(self, expr: Expression) -> None:
        """Functions and comparisons of complex numbers mean different things."""
        dtypes = (arg.dtype for arg in self.kernel.args if arg.dtype is not None)
        if any(dtype.numpy_dtype.kind == "c" for dtype in dtypes):
            raise _refused(expr, "is not arithmetic, which complex arguments require")

    def _all(self, parts: Sequence[Expression]) -> None:
        for part in parts:
            self.rec(part)

    def handle_unsupported_expression(self, expr: Any) -> None:
        raise _refused(expr, f"is a {type(expr).__name__}")


def _axes(expr: p.Subscript, arg: Any) -> Iterator[tuple[Expression, Any]]:
    shape = arg.shape if isinstance(arg.shape, tuple) else ()
    if len(shape) != len(expr.index_tuple):
        raise _refused(expr, f"reads an array of the shape {arg.shape}")
    return zip(expr.index_tuple, shape, strict=True)


def _is_inexact(arg: Any) -> bool:
    return arg.dtype is not None and arg.dtype.numpy_dtype.kind in "fc"


def _refused(expr: Expression, why: str) -> TransformError:
    return TransformError(f"numpy cannot evaluate {expr}, which {why}")
