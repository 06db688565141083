"""Functional batched einsums: operands that are functions of the indices.

Source: paper, section 7 (functional and idealized functional batched einsum).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.evaluate import evaluate
from feinsum.ir.functions import function_of
from feinsum.ir.operand import shape_at
from feinsum.reprs import brief
from feinsum.subscripts import IndexList
from feinsum.words import counted, reason_of

__all__ = ["FunctionalBatchedEinsum", "OperandFunction", "body_value"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class OperandFunction:
    """A function of indices, as an expression over arrays and scalars.

    Args:
        parameters: one name per axis of the operand.
        body: an arithmetic expression: ``+ - * / // % **``, comparisons,
            ``x if c else y``, subscripts of arrays, and numpy's functions of
            one or two numbers by name.

    >>> f = OperandFunction(("e", "j"), "0.5*(um[e, j] + up[e, j])")
    >>> ones = np.ones((2, 3))
    >>> f.tabulate((2, 3), {"um": ones, "up": 3 * ones})[1, 2]
    np.float64(2.0)
    """

    parameters: IndexList
    body: str

    def tabulate(self, shape: tuple[int, ...], arrays: Mapping[str, Any]) -> Array:
        """The values of the function at every index tuple of ``shape``.

        Raises:
            InvalidEinsumError: if the body uses what is not in its grammar.
        """
        grid = np.indices(shape, sparse=True)
        names = dict(arrays) | dict(zip(self.parameters, grid, strict=True))
        return np.array(np.broadcast_to(body_value(self.body, names), shape))

    def is_plain_read(self) -> bool:
        """Whether the body is one array subscripted by the parameters in order."""
        node = expression_of(self.body)
        if isinstance(node, ast.Name):
            return not self.parameters
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            return False
        subscript = node.slice
        parts = subscript.elts if isinstance(subscript, ast.Tuple) else [subscript]
        names = tuple(part.id for part in parts if isinstance(part, ast.Name))
        return len(names) == len(parts) and names == self.parameters

    def __str__(self) -> str:
        return f"({', '.join(self.parameters)}) -> {self.body}"


@dataclass(frozen=True)
class FunctionalBatchedEinsum:
    """A batched einsum and a function for each of its operands.

    The workload key is that of :attr:`einsum`: functions do not enter it.

    Raises:
        InvalidEinsumError: if an operand has no function or one of another arity.
    """

    einsum: BatchedEinsum
    functions: constantdict[str, OperandFunction]

    def __post_init__(self) -> None:
        for operand in self.einsum.operands:
            function = self.functions.get(operand.name)
            if function is None or len(function.parameters) != operand.rank:
                raise InvalidEinsumError(
                    f"operand {operand} needs a function of "
                    f"{counted(operand.rank, 'index')}, got {function}",
                    rules=("function",),
                )

    def __repr__(self) -> str:
        functions = ", ".join(f"{name}: {f}" for name, f in self.functions.items())
        return brief(self, f"{self.einsum}; {functions}")

    @classmethod
    def idealized(cls, einsum: BatchedEinsum) -> FunctionalBatchedEinsum:
        """The case where every function reads its array (paper, section 7)."""
        return cls(
            einsum,
            constantdict(
                {op.name: _plain_read(op.name, op.rank) for op in einsum.operands}
            ),
        )

    def evaluate(
        self,
        arrays: Mapping[str, Any],
        sizes: Mapping[str, int],
        *,
        optimize: bool = False,
    ) -> tuple[Array, ...]:
        """The results of all rows, by tabulating every function.

        Args:
            arrays: what the bodies read: arrays and scalars by name.
            sizes: the value of each size parameter.
            optimize: see :func:`feinsum.ir.evaluate`.
        """
        tables = {}
        for operand in self.einsum.operands:
            shape = shape_at(operand.shape, sizes)
            table = self.functions[operand.name].tabulate(shape, arrays)
            tables[operand.name] = table.astype(operand.dtype)
        return evaluate(self.einsum, tables, optimize=optimize)


def body_value(body: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression of :class:`OperandFunction`'s grammar.

    Args:
        names: what the expression may use: arrays that broadcast, and scalars.

    Raises:
        InvalidEinsumError: if the body uses what is not in the grammar.

    >>> body_value("max(x, 0.0) - 1", {"x": np.array([-2.0, 3.0])}).tolist()
    [-1.0, 2.0]
    """
    with np.errstate(all="ignore"):  # a condition may guard a division
        return evaluate_node(expression_of(body), names)


def _plain_read(name: str, rank: int) -> OperandFunction:
    parameters = tuple(f"{name}_{axis}" for axis in range(rank))
    body = f"{name}[{', '.join(parameters)}]" if rank else name
    return OperandFunction(parameters, body)


@lru_cache(maxsize=1024)
def expression_of(body: str) -> ast.expr:
    """The expression of a body; parts of an array are evaluated one after the other."""
    try:
        return ast.parse(body.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise InvalidEinsumError(
            f"operand function {body!r} is not an expression: {reason_of(error)}",
            rules=("function",),
        ) from None


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

    Args:
        live: where the value is used; what conditions guard need not exist elsewhere.
    """
    match node:
        case ast.Constant(value=bool() | int() | float() | complex() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            sides = (evaluate_node(side, names, live) for side in (left, right))
            return _BINARY[type(op)](*sides)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if (
            type(op) in _BINARY
        ):
            sides = (evaluate_node(side, names, live) for side in (left, right))
            return _BINARY[type(op)](*sides)
        case ast.BoolOp(op=op, values=[first, *rest]):
            value = evaluate_node(first, names, live)
            for other in rest:
                decided = value if isinstance(op, ast.Or) else np.logical_not(value)
                here = np.logical_and(live, np.logical_not(decided))
                value = _BINARY[type(op)](value, evaluate_node(other, names, here))
            return value
        case ast.UnaryOp(op=op, operand=inner) if type(op) in _UNARY:
            return _UNARY[type(op)](evaluate_node(inner, names, live))
        case ast.IfExp(test=test, body=then, orelse=other):
            condition = np.asarray(evaluate_node(test, names, live), np.bool_)
            return np.where(
                condition,
                evaluate_node(then, names, np.logical_and(live, condition)),
                evaluate_node(other, names, np.logical_and(live, ~condition)),
            )
        case ast.Subscript(value=ast.Name(id=name), slice=index) if name in names:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            place = tuple(evaluate_node(p, names, live) for p in parts)
            return _read(name, np.asarray(names[name]), place, live)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            function = function_of(name, len(args))
            if function is not None:
                return function(*(evaluate_node(arg, names, live) for arg in args))
    raise InvalidEinsumError(
        f"operand function: cannot evaluate {ast.unparse(node)!r}; known names are "
        f"{sorted(names)}",
        rules=("function",),
    )


def _read(name: str, array: Array, place: tuple[Any, ...], live: Any) -> Any:
    """The entries of an array; outside of it there are none, also before it."""
    if len(place) != array.ndim:
        raise _unreadable(name, array, f"{len(place)} subscripts")
    inside = []
    for index, extent in zip(place, array.shape, strict=True):
        if np.asarray(index).dtype.kind not in "iu":
            raise _unreadable(name, array, f"the subscript {index}")
        is_inside = np.logical_and(index >= 0, index < extent)
        if np.any(np.logical_and(live, ~is_inside)):
            raise _unreadable(name, array, f"the subscript {index}")
        inside.append(np.where(is_inside, index, 0))
    if 0 in array.shape:
        return np.zeros(np.broadcast_shapes(*map(np.shape, place)), array.dtype)
    return array[tuple(inside)]


def _unreadable(name: str, array: Array, what: str) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"operand function: array {name!r} of shape {array.shape} is read with {what}",
        rules=("function",),
    )
