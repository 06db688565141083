"""Scalar expressions: the body of a statement, or of a function that is an operand.

An expression is text in Python's syntax; its tree is that of :mod:`ast`. The grammar is
what :func:`feinsum.ir.evaluate_body` evaluates: arithmetic, comparisons, conditions,
subscripts of arrays, and functions by their names in C.

In a statement ``y[i] = sum exp(x0) - s*x1 : A[i,k], b[k]`` the operands are ``x0`` and
``x1``, in order, and indices have their own names. The default body is the product of
all operands.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import lru_cache

from feinsum.errors import InvalidEinsumError
from feinsum.words import get_reason


def get_operand_name(position: int) -> str:
    """Return the name of an operand in the body of a statement."""
    return f"x{position}"


@lru_cache(maxsize=1024)
def parse_expression(text: str) -> ast.expr:
    """Parse an expression; the tree is cached, so callers must not change it.

    Raises:
        InvalidEinsumError: if the text is not an expression.

    >>> ast.dump(parse_expression("-x0"))
    "UnaryOp(op=USub(), operand=Name(id='x0', ctx=Load()))"
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidEinsumError(
            f"{text!r:.200} is not an expression: {get_reason(error)}",
            rules=("function",),
        ) from None


def write_product(n_operands: int) -> str:
    """Return the body that multiplies all operands.

    >>> write_product(3)
    'x0*x1*x2'
    """
    return "*".join(map(get_operand_name, range(n_operands)))


def find_factor(body: str, n_operands: int) -> float | None:
    """Return the number by which a body multiplies the product of all operands.

    None if the body is not such a product, with each operand once.

    >>> find_factor("x1 * x0", 2), find_factor("0.5 * x0 / 4", 1)
    (1.0, 0.125)
    >>> find_factor("x0 * x0", 2), find_factor("x0 - x1", 2)
    (None, None)
    """
    names: list[str] = []
    factor = _multiply_factors(parse_expression(body), names)
    is_product = sorted(names) == sorted(map(get_operand_name, range(n_operands)))
    return factor if is_product else None


def list_names(body: str) -> tuple[str, ...]:
    """Return the names used in a body, in order of first use, without called functions.

    Raises:
        InvalidEinsumError: if the body is not an expression.

    >>> list_names("exp(x0 - x1) if s >= t else 0.0")
    ('s', 't', 'x0', 'x1')
    """
    names: dict[str, None] = {}
    _collect_names(parse_expression(body), names)
    return tuple(names)


def normalize_body(body: str, renamed: Mapping[str, str]) -> str:
    """Return a body with names replaced, in normal form.

    >>> normalize_body("( x0-x1 )* s", {"s": "_0"})
    '(x0 - x1) * _0'
    """
    return _rewrite(body, _Replacer(renamed))


def _rewrite(body: str, rewriter: ast.NodeTransformer) -> str:
    # Rewriters change their tree, so they get a copy of the cached one. The output of
    # ast.unparse is the normal form: equal trees have equal texts.
    return ast.unparse(rewriter.visit(deepcopy(parse_expression(body))))


def _multiply_factors(node: ast.expr, names: list[str]) -> float | None:
    """Return the numeric factor of a product; appends the other ones to ``names``."""
    match node:
        case ast.Name(id=name):
            names.append(name)
            return 1.0
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            factor = _multiply_factors(inner, names)
            return None if factor is None else -factor
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = (
                _multiply_factors(left, names),
                _multiply_factors(right, names),
            )
            return None if first is None or second is None else first * second
        case ast.BinOp(
            left=left,
            op=ast.Div(),
            right=ast.Constant(value=int() | float() as divisor),
        ):
            factor = _multiply_factors(left, names)
            return factor / divisor if factor is not None and divisor else None
    return None


def _collect_names(node: ast.AST, names: dict[str, None]) -> None:
    """Collect the names of an expression in the order of evaluation."""
    if isinstance(node, ast.Name):
        names.setdefault(node.id)
        return
    # the name of a called function is no variable
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    for child in children:
        _collect_names(child, names)


class _Replacer(ast.NodeTransformer):
    """Replaces names by expressions, except for names of called functions."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        text = self._texts.get(node.id)
        return node if text is None else parse_expression(text)


def substitute_names(body: str, texts: Mapping[str, str]) -> str:
    """Return a body with expressions in place of names.

    >>> substitute_names("0.5*(x0 + x1)", {"x0": "u[i]", "x1": "-v"})
    '0.5 * (u[i] + -v)'
    """
    return _rewrite(body, _KernelReplacer(texts))


@lru_cache(maxsize=1024)
def split_linear(
    body: str, name: str, *, is_distributed: bool = True
) -> tuple[str, str] | None:
    """Return scale and shift of a body ``shift + scale * name``; None for others.

    Args:
        body: the expression.
        name: the name in which it may be linear.
        is_distributed: whether a factor of a sum may become one of its terms. That
            rounds otherwise where ``name`` and the shift nearly cancel.

    >>> split_linear("x1 - 0.5*x0", "x0"), split_linear("x0*x0", "x0")
    (('(-1.0) * (0.5)', 'x1'), None)
    >>> split_linear("s*(x0 - x1)", "x0")
    ('s', '(s) * ((-1.0) * (x1))')
    >>> split_linear("s*(x0 - x1)", "x0", is_distributed=False)
    """
    linear = _split_linear_node(parse_expression(body), name, is_distributed)
    return None if linear is None or linear[0] == "0" else linear


def is_cheap(body: str, indices: Collection[str]) -> bool:
    """Return whether compilers generate fast vector code for a body.

    >>> is_cheap("max(x0, 0.0) if t <= s else x1 / 2", "st"), is_cheap("exp(x0)", ())
    (True, False)
    """
    return _is_cheap(parse_expression(body), frozenset(indices))


_CHEAP_CALLS = frozenset({"max", "min", "fmax", "fmin", "sqrt", "fabs"})


def _is_cheap(node: ast.AST, indices: frozenset[str]) -> bool:
    match node:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float()):
            return True
        case ast.Name(id=name):
            return name not in indices and name not in ("inf", "pi")
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
            return _is_cheap(node.left, indices) and _is_cheap(node.right, indices)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_cheap(inner, indices)
        case ast.IfExp(test=ast.Compare(left=left, comparators=[right])):
            is_test_cheap = all(
                isinstance(side, ast.Name) or _is_cheap(side, indices)
                for side in (left, right)
            )
            return is_test_cheap and all(
                _is_cheap(branch, indices) for branch in (node.body, node.orelse)
            )
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _CHEAP_CALLS and all(_is_cheap(x, indices) for x in args)
    return False


def _split_linear_node(
    node: ast.expr, name: str, is_distributed: bool
) -> tuple[str, str] | None:
    """Return scale and shift of a node; the scale is "0" if the name is not in it."""
    # without the name, the whole node is the shift
    if all(not isinstance(x, ast.Name) or x.id != name for x in ast.walk(node)):
        return "0", ast.unparse(node)
    match node:
        case ast.Name():
            return "1", "0"
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            terms = _split_linear_node(inner, name, is_distributed)
            return terms and _scale_terms("-1.0", terms)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = (
                _split_linear_node(x, name, is_distributed) for x in (left, right)
            )
            if first is None or second is None:
                return None
            is_factor = isinstance(op, ast.Mult | ast.Div)
            if is_factor and not is_distributed and _is_sum(first, second):
                return None
            match op:
                case ast.Add() | ast.Sub():
                    if isinstance(op, ast.Sub):
                        second = _scale_terms("-1.0", second)
                    scale = _write_plus(first[0], second[0])
                    return scale, _write_plus(first[1], second[1])
                # a product of two factors with the name is not linear
                case ast.Mult() if first[0] == "0":
                    return _scale_terms(first[1], second)
                case ast.Mult() if second[0] == "0":
                    return _scale_terms(second[1], first)
                case ast.Div() if second[0] == "0":
                    return _scale_terms(f"(1.0 / ({second[1]}))", first)
    return None


def _is_sum(*factors: tuple[str, str]) -> bool:
    """Return whether a factor has both scale and shift."""
    return any(scale != "0" and shift != "0" for scale, shift in factors)


def _scale_terms(factor: str, terms: tuple[str, str]) -> tuple[str, str]:
    return _write_times(factor, terms[0]), _write_times(factor, terms[1])


def _write_times(left: str, right: str) -> str:
    # zeros and ones are folded, so that the text stays readable and the compiler sees
    # no multiplication by one
    if "0" in (left, right):
        return "0"
    if "1" in (left, right):
        return right if left == "1" else left
    return f"({left}) * ({right})"


def _write_plus(left: str, right: str) -> str:
    if "0" in (left, right):
        return right if left == "0" else left
    return f"({left}) + ({right})"


class _KernelReplacer(_Replacer):
    """Replaces names in a body for a kernel in C."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Convert integers to floating-point numbers, because C truncates quotients."""
        match node.value:
            case bool():
                return node
            case int() as value:
                return ast.Constant(float(value))
        return node
