"""An assigned expression, taken apart: a scale, a sum, a product of factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loopy.library.reduction import SumReductionOperation
from loopy.symbolic import Reduction, WalkMapper
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.raising.nest import Expression

__all__ = ["ScaledSum", "has_quotient", "has_reduction", "multiply", "take_apart"]


@dataclass(frozen=True)
class ScaledSum:
    """``scale * sum(inames, product of factors)``.

    Every factor depends on an index; what depends on none is in the scale.
    """

    scale: tuple[Expression, ...]
    inames: tuple[str, ...]
    factors: tuple[Expression, ...]


def take_apart(
    expression: Expression, is_operand: Callable[[Expression], bool], instruction: str
) -> ScaledSum:
    """Read ``expression`` as a scaled sum of one product.

    Nested sums are one sum; a factor outside of a sum is a factor inside.

    Args:
        is_operand: whether a factor is an operand, and not part of the scale.

    Raises:
        NotAnEinsumError: for a reduction other than a sum, or several sums.
    """
    scale: list[Expression] = []
    inames: list[str] = []
    operands: list[Expression] = []
    todo: list[Expression] = [expression]
    while todo:
        factors = [f for e in todo for f in _factors(e)]
        sums = [f for f in factors if isinstance(f, Reduction)]
        if len(sums) > 1:
            raise _refuse("product-of-sums", "it multiplies several sums", instruction)
        for factor in factors:
            if not isinstance(factor, Reduction):
                _refuse_inner_reduction(factor, instruction)
                (operands if is_operand(factor) else scale).append(factor)
        todo = []
        for reduction in sums:
            _check_is_sum(reduction, instruction)
            inames += reduction.inames
            todo.append(reduction.expr)
    if len(set(inames)) != len(inames):
        raise _refuse(
            "repeated-sum", f"it sums twice over one of {inames}", instruction
        )
    return ScaledSum(tuple(scale), tuple(inames), tuple(operands))


def multiply(factors: tuple[Expression, ...]) -> Expression:
    """The product; the number 1 for no factors."""
    if not factors:
        return 1
    return factors[0] if len(factors) == 1 else p.Product(factors)


def _factors(expression: Expression) -> list[Expression]:
    """The factors of nested products, without the integer 1."""
    if isinstance(expression, p.Product):
        return [f for child in expression.children for f in _factors(child)]
    if isinstance(expression, p.Quotient) and has_reduction(expression.numerator):
        return [*_factors(expression.numerator), p.Quotient(1, expression.denominator)]
    if isinstance(expression, int) and expression == 1:
        return []
    return [expression]


def _check_is_sum(reduction: Reduction, instruction: str) -> None:
    if not isinstance(reduction.operation, SumReductionOperation):
        raise _refuse(
            "reduction", f"it reduces with {reduction.operation}, not sum", instruction
        )
    if isinstance(reduction.expr, tuple):
        raise _refuse(
            "reduction", "it reduces several expressions at once", instruction
        )


def has_reduction(expression: Expression) -> bool:
    """Whether a reduction stands anywhere in ``expression``."""
    finder = _ReductionFinder()
    finder(expression)
    return finder.has_found


def _refuse_inner_reduction(factor: Expression, instruction: str) -> None:
    if has_reduction(factor):
        raise _refuse(
            "nested-reduction",
            f"the factor {factor} contains a reduction, so it is no operand function",
            instruction,
        )


def has_quotient(expression: Expression) -> bool:
    """Whether a quotient stands anywhere in ``expression``."""
    finder = _QuotientFinder()
    finder(expression)
    return finder.has_found


class _QuotientFinder(WalkMapper):  # type: ignore[misc]
    """Looks for a quotient anywhere in an expression."""

    def __init__(self) -> None:
        super().__init__()
        self.has_found = False

    def map_quotient(self, expr: p.Quotient, /) -> None:
        self.has_found = True


class _ReductionFinder(WalkMapper):  # type: ignore[misc]
    """Looks for a reduction anywhere in an expression."""

    def __init__(self) -> None:
        super().__init__()
        self.has_found = False

    def map_reduction(
        self, expr: Reduction, /, *args: object, **kwargs: object
    ) -> None:
        self.has_found = True


def _refuse(rule: str, what: str, instruction: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"instruction {instruction!r}: {what}", rule=rule, instructions=(instruction,)
    )
