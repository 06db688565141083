"""Conversion of bodies to C, with the same values as in numpy.

Operands are real numbers of one dtype. Expressions without an exact equivalent are
refused, and the stage is computed by numpy.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import isfinite, pi
from typing import Literal, NamedTuple

from feinsum.errors import ProgramError
from feinsum.ir.expressions import parse_expression

FUNCTIONS = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil"),
        *("copysign", "cos", "cosh", "exp", "exp2", "expm1", "fabs", "floor", "hypot"),
        *("log", "log10", "log1p", "log2", "pow", "rint", "sin", "sinh", "sqrt"),
        *("tan", "tanh", "trunc"),
    }
)
"""Functions with one name in numpy, in operand functions and in C."""
_C_NAMES = {
    "abs": "fabs",
    "absolute": "fabs",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "power": "pow",
    "max": "feinsum_fmax",
    "fmax": "feinsum_fmax",
    "maximum": "feinsum_maximum",
    "min": "feinsum_fmin",
    "fmin": "feinsum_fmin",
    "minimum": "feinsum_minimum",
}
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_COMPARISONS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
PAIRS = frozenset({"atan2", "copysign", "hypot", "pow"})


class CExpression(NamedTuple):
    """An expression in C: a real number, an index, or a truth value."""

    text: str
    kind: Literal["real", "index", "truth"]


def convert_to_c(body: str, names: Mapping[str, CExpression], itemsize: int) -> str:
    """Convert a body over names in C to C, for real numbers of 4 or 8 bytes.

    Functions have their names for double precision; the source redefines them for
    single precision.

    Raises:
        ProgramError: if a part of it might not have the same value in C as in numpy.

    >>> names = {"x0": CExpression("a[i]", "real"), "s": CExpression("i", "index")}
    >>> convert_to_c("exp(x0) if s >= 3 else 0.5", names, 8)
    '((i >= 3LL) ? exp(a[i]) : 0.5)'
    """
    writer = _Writer(names, itemsize)
    node = parse_expression(body)
    term = writer.term(node)
    if term.kind == "truth":
        raise _make_conversion_error(node)
    return term.text


def _make_conversion_error(node: ast.expr) -> ProgramError:
    return ProgramError(f"{ast.unparse(node)!r} has no equivalent in C")


class _Writer:
    def __init__(self, names: Mapping[str, CExpression], itemsize: int) -> None:
        self.names, self.itemsize = names, itemsize

    def term(self, node: ast.expr) -> CExpression:
        match node:
            # complex()): | bool before int: True is an int for Python
            case ast.Constant(value=bool() | complex()):
                raise _make_conversion_error(node)
            # larger integers have other rules of promotion in C
            case ast.Constant(value=int() as value) if abs(value) < 1 << 31:
                return CExpression(f"{value}LL", "index")
            case ast.Constant(value=float() as value) if isfinite(value):
                return CExpression(self._write_number(value), "real")
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id="inf"):
                return CExpression("INFINITY", "real")
            case ast.Name(id="pi"):
                return CExpression(self._write_number(pi), "real")
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                term = self.term(inner)
                if term.kind == "truth":
                    raise _make_conversion_error(node)
                return CExpression(f"(-{term.text})", term.kind)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return CExpression(f"(!{self._write_truth(inner)})", "truth")
            case ast.BinOp():
                return self._write_binary(node)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if (
                type(op) in _COMPARISONS
            ):
                sides, _ = self._write_alike(left, right)
                return CExpression(
                    f"({sides[0]} {_COMPARISONS[type(op)]} {sides[1]})", "truth"
                )
            case ast.BoolOp(op=op, values=values):
                # bit operations, because && and || are branches in vector loops
                sign = " & " if isinstance(op, ast.And) else " | "
                return CExpression(
                    f"({sign.join(map(self._write_truth, values))})", "truth"
                )
            case ast.IfExp(test=test, body=then, orelse=other):
                sides, kind = self._write_alike(then, other)
                text = f"({self._write_truth(test)} ? {sides[0]} : {sides[1]})"
                return CExpression(text, kind)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._write_call(node, name, args)
        raise _make_conversion_error(node)

    def _write_binary(self, node: ast.BinOp) -> CExpression:
        if type(node.op) in _ARITHMETIC:
            sides, kind = self._write_alike(node.left, node.right)
            return CExpression(
                f"({sides[0]} {_ARITHMETIC[type(node.op)]} {sides[1]})", kind
            )
        if isinstance(node.op, ast.Div):
            left, right = self._write_real(node.left), self._write_real(node.right)
            return CExpression(f"({left} / {right})", "real")
        if isinstance(node.op, ast.Pow):
            return self._write_power(node)
        raise _make_conversion_error(node)

    def _write_power(self, node: ast.BinOp) -> CExpression:
        """Write a power; squares and roots avoid the slow pow, as in numpy."""
        base = self._write_real(node.left)
        match node.right:
            case ast.Constant(value=2 | 2.0):
                return CExpression(f"feinsum_square({base})", "real")
            case ast.Constant(value=0.5):
                return CExpression(f"sqrt({base})", "real")
        return CExpression(f"pow({base}, {self._write_real(node.right)})", "real")

    def _write_call(
        self, node: ast.expr, name: str, args: list[ast.expr]
    ) -> CExpression:
        c_name = _C_NAMES.get(name, name if name in FUNCTIONS else None)
        # numpy reads an additional argument as the array for the result
        is_pair = c_name in PAIRS or (c_name or "").startswith("feinsum_")
        if c_name is None or len(args) != (2 if is_pair else 1):
            raise _make_conversion_error(node)
        return CExpression(
            f"{c_name}({', '.join(map(self._write_real, args))})", "real"
        )

    def _write_alike(
        self, left: ast.expr, right: ast.expr
    ) -> tuple[tuple[str, str], Literal["real", "index"]]:
        """Write both operands as indices, or both as real numbers."""
        left_term, right_term = self.term(left), self.term(right)
        if left_term.kind == right_term.kind == "index":
            return (left_term.text, right_term.text), "index"
        return (
            self._as_real(left, left_term),
            self._as_real(right, right_term),
        ), "real"

    def _write_real(self, node: ast.expr) -> str:
        return self._as_real(node, self.term(node))

    def _as_real(self, node: ast.expr, term: CExpression) -> str:
        if term.kind == "real":
            return term.text
        match node:
            case ast.Constant(value=int() as value):
                return self._write_number(float(value))
        # numpy computes with an index in double precision
        if term.kind == "index" and self.itemsize == 4:
            raise _make_conversion_error(node)
        return f"((R) {term.text})"

    def _write_truth(self, node: ast.expr) -> str:
        term = self.term(node)
        return term.text if term.kind == "truth" else f"({term.text} != 0)"

    def _write_number(self, value: float) -> str:
        return repr(value) + ("f" if self.itemsize == 4 else "")
