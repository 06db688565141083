"""Which expressions are functions of indices: the grammar of operand functions.

What is left out is what Loopy's C code and the reference evaluator take differently:
integers that C divides, promotes or wraps, and constructs that are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.kernel.array import ArrayBase, FixedStrideArrayDimTag
from loopy.symbolic import (
    IdentityMapper,
    ResolvedFunction,
    TypeCast,
    UncachedWalkMapper,
)
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import FUNCTIONS
from feinsum.raising.nest import Expression
from feinsum.words import type_in_words

DtypeOf = Callable[[Expression], np.dtype[Any]]

_NUMBERS = (int, float, complex, np.number, np.bool_)
_ARITHMETIC = (p.Sum, p.Product, p.Quotient, p.FloorDiv, p.Remainder, p.Power)
_CONDITIONS = (p.Comparison, p.LogicalAnd, p.LogicalOr, p.LogicalNot, p.If)
_KNOWN = (
    *_NUMBERS,
    *_ARITHMETIC,
    *_CONDITIONS,
    p.Variable,
    p.Subscript,
    p.Call,
    TypeCast,
    ResolvedFunction,
)
_PLAIN_INTEGERS: frozenset[np.dtype[Any]] = frozenset(
    {np.dtype(np.int32), np.dtype(np.int64)}
)
_COMPARED_INTEGERS = _PLAIN_INTEGERS.union(
    map(np.dtype, (np.bool_, np.int8, np.int16, np.uint8, np.uint16))
)
"""Those that C compares by their values: a conversion to signed ones keeps them."""


def check_function(
    expression: Expression,
    kernel: lp.LoopKernel,
    dtype_of: DtypeOf,
    instruction: str,
) -> None:
    """Refuse an expression, rules expanded, that is no function of indices.

    Raises:
        NotAnEinsumError: with the rule ``operand-function``.
    """
    try:
        _Checker(kernel, dtype_of)(expression)
    except _NoFunction as error:
        raise NotAnEinsumError(
            f"instruction {instruction!r}: {expression} is not a function of indices: "
            f"{error}",
            rule="operand-function",
            instructions=(instruction,),
        ) from None


def has_literal(expression: Expression) -> bool:
    """Whether a number that is no integer, of no dtype, stands in ``expression``."""
    finder = _LiteralFinder()
    finder(expression)
    return finder.has_found


def sized(expression: Expression, dtype: np.dtype[Any]) -> Expression:
    """The expression with its literals in a real dtype.

    Outside of sums, they are written in the precision of what is assigned, though
    Loopy infers the least one that holds them: 0.1 is double for it.

    >>> from pymbolic import parse
    >>> half, _ = sized(parse("0.5*a"), np.dtype(np.float32)).children
    >>> half.dtype
    dtype('float32')
    """
    return _Sizer(dtype)(expression)


def function_text(expression: Expression) -> str:
    """The body of a :class:`feinsum.ir.OperandFunction`."""
    return str(_Texter()(expression))


def unresolved(expression: Expression) -> Expression:
    """The expression with functions by name, as a user writes them."""
    return _Unresolver()(expression)


def without_tags(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """The kernel without the tags of variables: they say nothing of the values."""
    untag = _Untagger()
    rules = {
        name: rule.copy(expression=untag(rule.expression))
        for name, rule in kernel.substitutions.items()
    }
    return kernel.copy(
        instructions=[
            i.with_transformed_expressions(untag) for i in kernel.instructions
        ],
        substitutions=constantdict(rules),
    )


class _NoFunction(Exception):  # noqa: N818
    """Says what is outside of the grammar."""


class _Checker(UncachedWalkMapper):  # type: ignore[misc]
    """Walks over all nodes; each kind has its conditions."""

    def __init__(self, kernel: lp.LoopKernel, dtype_of: DtypeOf) -> None:
        super().__init__()
        self._kernel = kernel
        self._inames = kernel.all_inames()
        self._dtype_of = dtype_of
        self._is_index = False

    def visit(self, expr: Expression, /) -> bool:
        if not isinstance(expr, _KNOWN):
            raise _NoFunction(f"{expr} is {type_in_words(expr)}")
        return True

    def map_variable(self, expr: p.Variable, /) -> None:
        name = expr.name
        if name in self._inames:
            return
        known = self._kernel.arg_dict.get(name)
        known = known or self._kernel.temporary_variables.get(name)
        if known is None:
            raise _NoFunction(f"{name} is neither an array, a scalar nor an iname")
        dtype = getattr(known.dtype, "numpy_dtype", None)
        if dtype is not None and dtype.kind not in "biufc":
            raise _NoFunction(f"{name} is of the dtype {dtype}, which is no number")
        if isinstance(known, ArrayBase) and not is_plain_array(known):
            raise _NoFunction(f"{name} has axes without a stride")

    def map_subscript(self, expr: p.Subscript, /) -> None:
        self.rec(expr.aggregate)
        outer, self._is_index = self._is_index, True
        for index in expr.index_tuple:
            self.rec(index)
            if not self._is_integer(index):
                raise _NoFunction(
                    f"the subscript {index} of {expr.aggregate} is no integer"
                )
        self._is_index = outer

    def map_call(self, expr: p.Call, /) -> None:
        name = getattr(expr.function, "name", None)
        if name not in FUNCTIONS:
            raise _NoFunction(f"the function {name} is not known")
        kinds = "c" if name in ("conj", "real", "imag") else "fc"
        for argument in expr.parameters:
            self.rec(argument)
            if (dtype := self._dtype_of(argument)).kind not in kinds:
                raise _NoFunction(f"{name} is called with a number of dtype {dtype}")

    def map_quotient(self, expr: p.Quotient, /) -> None:
        super().map_quotient(expr)
        if not (
            self._is_integer(expr.numerator) and self._is_integer(expr.denominator)
        ):
            return
        if self._is_index or not all(
            map(_is_number, (expr.numerator, expr.denominator))
        ):
            raise _NoFunction(f"{expr} divides integers")

    def map_floor_div(self, expr: p.FloorDiv | p.Remainder, /) -> None:
        self.rec(expr.numerator)
        self.rec(expr.denominator)
        if not (
            self._is_integer(expr.numerator) and self._is_integer(expr.denominator)
        ):
            raise _NoFunction(f"{expr} is no division of integers")
        self._check_integers((expr.numerator, expr.denominator), expr)

    map_remainder = map_floor_div

    def map_sum(self, expr: p.Sum | p.Product, /) -> None:
        for child in expr.children:
            self.rec(child)
        self._check_integers(expr.children, expr)

    map_product = map_sum

    def map_power(self, expr: p.Power, /) -> None:
        self.rec(expr.base)
        self.rec(expr.exponent)
        if self._is_integer(expr.base):
            is_natural = isinstance(expr.exponent, int) and expr.exponent >= 0
            if not is_natural:
                raise _NoFunction(f"{expr} is a power of an integer")
            self._check_integers((expr.base,), expr)

    def map_comparison(self, expr: p.Comparison, /) -> None:
        self.rec(expr.left)
        self.rec(expr.right)
        self._check_integers((expr.left, expr.right), expr, _COMPARED_INTEGERS)

    def map_type_cast(self, expr: TypeCast, /) -> None:
        self.rec(expr.child)
        old, new = self._dtype_of(expr.child), expr.type.numpy_dtype
        if new.kind not in "fc" or not np.can_cast(old, new, "same_kind"):
            raise _NoFunction(f"{expr.child} is cast from {old} to {new}")

    def _is_integer(self, expr: Expression) -> bool:
        return self._dtype_of(expr).kind in "biu"

    def _check_integers(
        self,
        children: tuple[Expression, ...],
        whole: Expression,
        known: frozenset[np.dtype[Any]] = _PLAIN_INTEGERS,
    ) -> None:
        """C promotes and wraps small and unsigned integers; numpy keeps them."""
        dtypes = [self._dtype_of(c) for c in children if not _is_number(c)]
        if all(d.kind in "biu" for d in dtypes) and not set(dtypes) <= known:
            raise _NoFunction(
                f"{whole} computes with integers of {set(map(str, dtypes))}"
            )


def is_plain_array(array: ArrayBase) -> bool:
    """Whether every axis of an array has a stride (or none is said yet)."""
    tags = array.dim_tags or ()
    return all(isinstance(tag, FixedStrideArrayDimTag) for tag in tags)


def _is_number(expr: Expression) -> bool:
    return isinstance(expr, _NUMBERS)


class _LiteralFinder(UncachedWalkMapper):  # type: ignore[misc]
    """Looks for Python's numbers other than integers."""

    def __init__(self) -> None:
        super().__init__()
        self.has_found = False

    def map_constant(self, expr: Any, /) -> None:
        self.has_found |= isinstance(expr, (float, complex))


class _Sizer(IdentityMapper):  # type: ignore[misc]
    """Gives literals a dtype; subscripts have none.

    Loopy writes those of a comparison, of a call and of a sum in a dtype of their own.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self._dtype = dtype

    def map_constant(self, expr: Any, /) -> Any:
        return self._dtype.type(expr) if isinstance(expr, float) else expr

    def map_comparison(self, expr: Expression, /) -> Expression:
        return expr

    map_call = map_reduction = map_comparison


class _Unresolver(IdentityMapper):  # type: ignore[misc]
    """Loopy's type inference ties functions to implementations; this unties them."""

    def map_resolved_function(self, expr: ResolvedFunction, /) -> p.Variable:
        return p.Variable(expr.name)


class _Untagger(IdentityMapper):  # type: ignore[misc]
    """Makes tagged variables plain ones."""

    def map_tagged_variable(self, expr: p.Variable, /) -> p.Variable:
        return p.Variable(expr.name)


class _Texter(_Unresolver):
    """Writes numpy's numbers as Python's, casts and powers of powers as calls."""

    def map_power(self, expr: p.Power, /) -> Expression:
        base, exponent = self.rec(expr.base), self.rec(expr.exponent)
        if isinstance(base, p.Power):  # pymbolic would write a**b**c
            return p.Call(p.Variable("pow"), (base, exponent))
        return p.Power(base, exponent)

    def map_constant(self, expr: Any, /) -> Any:
        return expr.item() if isinstance(expr, np.generic) else expr

    def map_type_cast(self, expr: TypeCast, /) -> p.Call:
        dtype = expr.type.numpy_dtype
        return p.Call(p.Variable(dtype.name), (self.rec(expr.child),))
