"""Bodies: the scalar function of a statement, as an expression over its operands.

Operands are ``x0``, ``x1`` and so on, in their order; indices of the statement have
their own names. A body that is not given is the product of all operands.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from feinsum.errors import ProgramError

__all__ = [
    "factor_of_product",
    "names_in",
    "normal_body",
    "operand_name",
    "product_of",
]


def operand_name(position: int) -> str:
    return f"x{position}"


def product_of(n_operands: int) -> str:
    """The body that multiplies all operands.

    >>> product_of(3)
    'x0*x1*x2'
    """
    return "*".join(map(operand_name, range(n_operands)))


def factor_of_product(body: str, n_operands: int) -> float | None:
    """The number by which a body multiplies the product of all operands, each once.

    None if it does anything else.

    >>> factor_of_product("x1 * x0", 2), factor_of_product("0.5 * x0 / 4", 1)
    (1.0, 0.125)
    >>> factor_of_product("x0 * x0", 2), factor_of_product("x0 - x1", 2)
    (None, None)
    """
    names: list[str] = []
    factor = _multiplied(_parsed(body), names)
    is_product = sorted(names) == sorted(map(operand_name, range(n_operands)))
    return factor if is_product else None


def names_in(body: str) -> tuple[str, ...]:
    """The names that a body uses, in order of first use; called functions are none.

    Raises:
        ProgramError: if it is no expression.

    >>> names_in("exp(x0 - x1) if s >= t else 0.0")
    ('s', 't', 'x0', 'x1')
    """
    found: dict[str, None] = {}
    _collect(_parsed(body), found)
    return tuple(found)


def normal_body(body: str, renamed: Mapping[str, str]) -> str:
    """A body with other names, written in one way.

    >>> normal_body("( x0-x1 )* s", {"s": "_0"})
    '(x0 - x1) * _0'
    """
    return ast.unparse(_Renamed(renamed).visit(_parsed(body)))


def _parsed(body: str) -> ast.expr:
    try:
        return ast.parse(body.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProgramError(f"body {body!r:.200} is no expression: {error}") from None


def _multiplied(node: ast.expr, names: list[str]) -> float | None:
    """The number in a product, whose other factors are added to ``names``."""
    match node:
        case ast.Name(id=name):
            names.append(name)
            return 1.0
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            factor = _multiplied(inner, names)
            return None if factor is None else -factor
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _multiplied(left, names), _multiplied(right, names)
            return None if first is None or second is None else first * second
        case ast.BinOp(
            left=left,
            op=ast.Div(),
            right=ast.Constant(value=int() | float() as divisor),
        ):
            factor = _multiplied(left, names)
            return factor / divisor if factor is not None and divisor else None
    return None


def _collect(node: ast.AST, found: dict[str, None]) -> None:
    """In the order in which an expression is evaluated."""
    if isinstance(node, ast.Name):
        found.setdefault(node.id)
        return
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    for child in children:
        _collect(child, found)


class _Renamed(ast.NodeTransformer):
    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._renamed.get(node.id, node.id), node.ctx)
