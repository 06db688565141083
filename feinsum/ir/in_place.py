"""Expressions evaluated into given memory, with few arrays in between."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from feinsum.ir.functional import evaluate_node, expression_of
from feinsum.ir.functions import UFUNCS

__all__ = ["body_into"]

Array = np.ndarray[Any, np.dtype[Any]]

_BINARY: Mapping[type[ast.AST], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}


def body_into(body: str, names: Mapping[str, Any], out: Array, spent: str = "") -> None:
    """Evaluate an expression like :func:`body_value`, into an array.

    Intermediate values are computed in ``out`` where that is possible.

    Args:
        out: of the shape to which the arrays broadcast.
        spent: the name of an array that is ``out``, or shows the same memory in the
            same order: it is overwritten.

    Raises:
        InvalidEinsumError: if the body uses what is not in the grammar.

    >>> x = np.array([-2.0, 3.0])
    >>> body_into("max(x, 0.0) - 1", {"x": x}, x, spent="x")
    >>> x.tolist()
    [-1.0, 2.0]
    """
    known = {**names, spent: out} if spent else names
    with np.errstate(all="ignore"):  # a condition may guard a division
        value = _InPlace(known, out, spent).value(expression_of(body), out)
        if value is not out:
            out[...] = value


@dataclass(frozen=True)
class _InPlace:
    names: Mapping[str, Any]
    out: Array
    spent: str

    def value(self, node: ast.expr, into: Array | None) -> Any:
        """The value of a node, in ``into`` if it is as large and of the same dtype."""
        if not self._is_whole(node):
            return evaluate_node(node, self.names)
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._applied(_BINARY[type(op)], [left, right], into)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self._applied(np.negative, [inner], into)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
                name in UFUNCS and UFUNCS[name].nin == len(args)
            ):
                return self._applied(UFUNCS[name], args, into)
            case ast.IfExp(test=test, body=then, orelse=other):
                is_then = np.asarray(evaluate_node(test, self.names), np.bool_)

                return self._applied(partial(_chosen, is_then), [then, other], into)
        return evaluate_node(node, self.names)

    def _applied(
        self, function: Callable[..., Any], sides: Sequence[ast.expr], into: Any
    ) -> Any:
        """The function of the values of some nodes.

        One of them may be computed in ``into``: the one that reads what is spent if no
        other does, and then before the others.
        """
        reads = [self._reads_spent(side) for side in sides]
        is_free = sum(reads) < 2
        order = sorted(range(len(sides)), key=lambda k: not reads[k])
        values: dict[int, Any] = {}
        for k in order:
            values[k] = self.value(sides[k], into if is_free else None)
            is_free = is_free and not any(reads) and values[k] is not into
        if into is None:
            into = np.empty_like(self.out)
        found: Array = function(*(values[k] for k in range(len(sides))), out=into)
        return found

    def _reads_spent(self, node: ast.expr) -> bool:
        return self.spent != "" and self.spent in _names_in(node)

    def _is_whole(self, node: ast.expr) -> bool:
        """Whether a value is an array of floating point numbers like ``out``."""
        if self.out.dtype.kind not in "fc" or isinstance(node, ast.Name):
            return False
        read = (self.names.get(name) for name in _names_read(node))
        arrays = [value for value in read if isinstance(value, np.ndarray)]
        return (
            bool(arrays)
            and all(array.dtype == self.out.dtype for array in arrays)
            and bool(np.broadcast_shapes(*(a.shape for a in arrays)) == self.out.shape)
        )


def _chosen(is_then: Array, then: Any, other: Any, out: Array) -> Any:
    if then is out:
        np.copyto(out, other, where=~is_then)
        return out
    if other is not out:
        np.copyto(out, other)
    np.copyto(out, then, where=is_then)
    return out


@lru_cache(maxsize=4096)
def _names_in(node: ast.AST) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))


@lru_cache(maxsize=4096)
def _names_read(node: ast.AST) -> frozenset[str]:
    """Names in a node, without those of functions and those in conditions."""
    match node:
        case ast.Name(id=name):
            return frozenset({name})
        case ast.Call(args=args):
            inner: Sequence[ast.AST] = args
        case ast.IfExp(body=then, orelse=other):
            inner = [then, other]
        case _:
            inner = [*ast.iter_child_nodes(node)]
    return frozenset().union(*map(_names_read, inner))
