"""Evaluation of expressions by numpy, for all entries at once, also in place.

``evaluate_body("max(x0, 0) - x1", names)`` makes an array for each operation;
``evaluate_into(body, names, out, spent="x0")`` computes intermediate values in ``out``,
which may be the memory of an operand that is not needed afterwards::

    max(x0, 0) -> out;  out - x1 -> out         no other memory is allocated
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError
from feinsum.ir.expressions import parse_expression

Array = np.ndarray[Any, np.dtype[Any]]


def evaluate_body(body: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression of :class:`OperandFunction`'s grammar.

    Args:
        body: the expression.
        names: values of the names in the body: scalars, and arrays that broadcast.

    Raises:
        InvalidEinsumError: if the body uses anything that is not in the grammar.

    >>> evaluate_body("max(x, 0.0) - 1", {"x": np.array([-2.0, 3.0])}).tolist()
    [-1.0, 2.0]
    """
    with np.errstate(all="ignore"):  # a condition may guard a division
        return evaluate_node(parse_expression(body), names)


_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}

_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: np.logical_not,
    ast.Invert: operator.invert,
}


def evaluate_node(node: ast.AST, names: Mapping[str, Any], live: Any = True) -> Any:
    """Evaluate one node; anything outside the grammar is refused.

    ``live`` masks the entries that are used; elsewhere, reads may be out of bounds.
    """
    match node:
        case ast.Constant(value=bool() | int() | float() | complex() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case (
            ast.BinOp(left=left, op=op, right=right)
            | ast.Compare(left=left, ops=[op], comparators=[right])
        ) if type(op) in _BINARY:
            sides = (evaluate_node(side, names, live) for side in (left, right))
            return _BINARY[type(op)](*sides)
        case ast.BoolOp(op=op, values=[first, *rest]):
            value = evaluate_node(first, names, live)
            # as in Python, later operands count only where the result is undecided
            for other in rest:
                decided = value if isinstance(op, ast.Or) else np.logical_not(value)
                undecided = np.logical_and(live, np.logical_not(decided))
                value = _BINARY[type(op)](value, evaluate_node(other, names, undecided))
            return value
        case ast.UnaryOp(op=op, operand=inner) if type(op) in _UNARY:
            return _UNARY[type(op)](evaluate_node(inner, names, live))
        case ast.IfExp(test=test, body=then, orelse=other):
            # both branches are computed everywhere; `live` masks the entries in use
            condition = np.asarray(evaluate_node(test, names, live), np.bool_)
            return np.where(
                condition,
                evaluate_node(then, names, np.logical_and(live, condition)),
                evaluate_node(other, names, np.logical_and(live, ~condition)),
            )
        case ast.Subscript(value=ast.Name(id=name), slice=index) if name in names:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            subscripts = tuple(evaluate_node(p, names, live) for p in parts)
            return _read(name, np.asarray(names[name]), subscripts, live)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            function = find_function(name, len(args))
            if function is not None:
                return function(*(evaluate_node(arg, names, live) for arg in args))
    raise InvalidEinsumError(
        f"operand function: cannot evaluate {ast.unparse(node)!r}; known names are "
        f"{sorted(names)}",
        rules=("function",),
    )


def _read(name: str, array: Array, subscripts: tuple[Any, ...], live: Any) -> Any:
    """Return the entries of an array; negative subscripts are out of bounds, too."""
    if len(subscripts) != array.ndim:
        raise _make_read_error(name, array, f"{len(subscripts)} subscripts")
    clipped = []
    for index, extent in zip(subscripts, array.shape, strict=True):
        if np.asarray(index).dtype.kind not in "iu":
            raise _make_read_error(name, array, f"the subscript {index}")
        is_inside = np.logical_and(index >= 0, index < extent)
        if np.any(np.logical_and(live, ~is_inside)):
            raise _make_read_error(name, array, f"the subscript {index}")
        # numpy must read some entry; the condition drops it
        clipped.append(np.where(is_inside, index, 0))
    # an empty array has no entry to read, and every subscript is guarded
    if 0 in array.shape:
        return np.zeros(np.broadcast_shapes(*map(np.shape, subscripts)), array.dtype)
    return array[tuple(clipped)]


def _make_read_error(name: str, array: Array, problem: str) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"operand function: array {name!r} of shape {array.shape} is read with "
        f"{problem}",
        rules=("function",),
    )


UFUNCS: Mapping[str, np.ufunc] = {
    "abs": np.absolute,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "fabs": np.absolute,
    "floor": np.floor,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "log": np.log,
    "log10": np.log10,
    "max": np.fmax,
    "min": np.fmin,
    "pow": np.power,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
"""Functions of real numbers, by their names in C.

As in C, ``max`` and ``min`` of a number and NaN are the number.
"""

_OTHERS: Mapping[str, Callable[..., Any]] = {
    "conj": np.conj,
    "imag": np.imag,
    "real": np.real,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}

_CASTS: Mapping[str, Callable[..., Any]] = {
    dtype.__name__: lambda x, dtype=dtype: np.asarray(x).astype(dtype)
    for dtype in (
        *(np.bool_, np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    )
}
"""Conversions of arrays, and of numbers, to a dtype."""

FUNCTIONS = frozenset({*UFUNCS, *_OTHERS})
"""Functions of floating point numbers that raised operand functions may call."""


def find_function(name: str, n_args: int) -> Callable[..., Any] | None:
    """Find the function with a name and a number of arguments; None if there is none.

    >>> find_function("sqrt", 1)(4.0), find_function("open", 1)
    (np.float64(2.0), None)
    """
    if (function_of_name := {**_OTHERS, **_CASTS}.get(name)) and n_args == 1:
        return function_of_name
    # A ufunc of numpy, by its name in C or its own. The number of arguments is checked,
    # because numpy would take one more as the array to write to.
    function = UFUNCS.get(name) or getattr(np, name, None)
    if not isinstance(function, np.ufunc) or function.signature is not None:
        return None
    return function if (function.nin, function.nout) == (n_args, 1) else None


_BINARY_UFUNCS: Mapping[type[ast.AST], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}


def evaluate_into(
    body: str, names: Mapping[str, Any], out: Array, spent: str = ""
) -> None:
    """Evaluate an expression like :func:`evaluate_body`, into an array.

    Intermediate values are computed in ``out`` where that is possible.

    Args:
        body: the expression.
        names: values of the names, as for :func:`evaluate_body`.
        out: array of the shape to which the arrays broadcast.
        spent: the name of an array that is ``out``, or has the same memory in the same
            order, and is overwritten.

    Raises:
        InvalidEinsumError: if the body uses anything that is not in the grammar.

    >>> x = np.array([-2.0, 3.0])
    >>> evaluate_into("max(x, 0.0) - 1", {"x": x}, x, spent="x")
    >>> x.tolist()
    [-1.0, 2.0]
    """
    values = {**names, spent: out} if spent else names
    with np.errstate(all="ignore"):  # a condition may guard a division
        value = _InPlace(values, out, spent).value(parse_expression(body), out)
        # a constant, or an expression of another shape or dtype
        if value is not out:
            out[...] = value


@dataclass(frozen=True)
class _InPlace:
    """Evaluates nodes of one expression in the memory of the result.

    Attributes:
        names: values of the names.
        out: the array for the result.
        spent: the name of the array whose memory ``out`` has; empty for none.
    """

    names: Mapping[str, Any]
    out: Array
    spent: str

    def value(self, node: ast.expr, into: Array | None) -> Any:
        """Evaluate a node, in the array ``into`` if shape and dtype agree."""
        if not self._is_whole(node):
            return evaluate_node(node, self.names)
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY_UFUNCS:
                return self._apply(_BINARY_UFUNCS[type(op)], [left, right], into)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self._apply(np.negative, [inner], into)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
                name in UFUNCS and UFUNCS[name].nin == len(args)
            ):
                return self._apply(UFUNCS[name], args, into)
            case ast.IfExp(test=test, body=then, orelse=other):
                # the condition is computed before either branch overwrites what it
                # reads
                is_then = np.asarray(evaluate_node(test, self.names), np.bool_)

                return self._apply(
                    partial(_choose_branch, is_then), [then, other], into
                )
        return evaluate_node(node, self.names)

    def _apply(
        self, function: Callable[..., Any], sides: Sequence[ast.expr], into: Any
    ) -> Any:
        """Apply a function to the values of some nodes.

        One of them may be computed in ``into``. If a single one reads the spent array,
        it is this one, and it is computed first.
        """
        reads = [self._reads_spent(side) for side in sides]
        is_free = sum(reads) < 2
        # the side that reads the spent array first, before another one overwrites it
        order = sorted(range(len(sides)), key=lambda k: not reads[k])
        values: dict[int, Any] = {}
        for k in order:
            values[k] = self.value(sides[k], into if is_free else None)
            # at most one value may be stored in `into`
            is_free = is_free and not any(reads) and values[k] is not into
        if into is None:
            into = np.empty_like(self.out)
        result: Array = function(*(values[k] for k in range(len(sides))), out=into)
        return result

    def _reads_spent(self, node: ast.expr) -> bool:
        return self.spent != "" and self.spent in _list_names(node)

    def _is_whole(self, node: ast.expr) -> bool:
        """Return whether a value is an array of floating point numbers like ``out``."""
        # integers keep numpy's promotion, which an output array would hide
        if self.out.dtype.kind not in "fc" or isinstance(node, ast.Name):
            return False
        read = (self.names.get(name) for name in _list_read_names(node))
        arrays = [value for value in read if isinstance(value, np.ndarray)]
        return (
            bool(arrays)
            and all(array.dtype == self.out.dtype for array in arrays)
            and bool(np.broadcast_shapes(*(a.shape for a in arrays)) == self.out.shape)
        )


def _choose_branch(is_then: Array, then: Any, other: Any, out: Array) -> Any:
    # copy only what differs: one of the branches may already be in place
    if then is out:
        np.copyto(out, other, where=~is_then)
        return out
    if other is not out:
        np.copyto(out, other)
    np.copyto(out, then, where=is_then)
    return out


@lru_cache(maxsize=4096)
def _list_names(node: ast.AST) -> frozenset[str]:
    return frozenset(
        child.id for child in ast.walk(node) if isinstance(child, ast.Name)
    )


@lru_cache(maxsize=4096)
def _list_read_names(node: ast.AST) -> frozenset[str]:
    """Return the names in a node, without those of functions and conditions."""
    match node:
        case ast.Name(id=name):
            return frozenset({name})
        case ast.Call(args=args):
            inner: Sequence[ast.AST] = args
        case ast.IfExp(body=then, orelse=other):
            inner = [then, other]
        case _:
            inner = [*ast.iter_child_nodes(node)]
    return frozenset().union(*map(_list_read_names, inner))
