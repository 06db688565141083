"""An assigned expression, taken apart: shift, scale, sum and product of factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from loopy.library.reduction import SumReductionOperation
from loopy.symbolic import Reduction, WalkMapper
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.raising.nest import Expression

Test: TypeAlias = Callable[[Expression], bool]


@dataclass(frozen=True)
class ShiftedSum:
    """``shift + scale * sum(inames, product of factors)``.

    Every factor depends on an index; what depends on none is in the scale.

    Attributes:
        outer: the part of the scale that stands outside of all sums.
        n_outer: how many factors, the first ones, do so.
    """

    shift: Expression
    outer: tuple[Expression, ...]
    inner: tuple[Expression, ...]
    inames: tuple[str, ...]
    factors: tuple[Expression, ...]
    n_outer: int

    @property
    def scale(self) -> tuple[Expression, ...]:
        return (*self.outer, *self.inner)


def take_apart(
    expression: Expression, is_operand: Test, reads_output: Test, instruction: str
) -> ShiftedSum:
    """Read ``expression`` as a shifted and scaled sum of one product.

    Nested sums are one sum; a factor outside of a sum is a factor inside.

    Args:
        is_operand: whether a factor is an operand, and not part of the scale.
        reads_output: whether an expression reads what the instruction assigns.

    Raises:
        NotAnEinsumError: for a reduction other than a sum, or several sums.
    """
    is_shift = _is_without_sum if has_reduction(expression) else reads_output
    shift, rest = _split_shift(expression, is_shift, instruction)
    scale: list[Expression] = []
    inames: list[str] = []
    operands: list[Expression] = []
    n_outer: tuple[int, int] | None = None
    todo: list[Expression] = [rest]
    while todo:
        factors = [f for e in todo for f in _factors(e)]
        sums = [f for f in factors if isinstance(f, Reduction)]
        if len(sums) > 1:
            raise _refuse("product-of-sums", "it multiplies several sums", instruction)
        for factor in factors:
            if not isinstance(factor, Reduction):
                _refuse_inner_reduction(factor, instruction)
                (operands if is_operand(factor) else scale).append(factor)
        todo, n_outer = [], n_outer or (len(scale), len(operands))
        for reduction in sums:
            _check_is_sum(reduction, instruction)
            inames += reduction.inames
            todo.append(reduction.expr)
    if len(set(inames)) != len(inames):
        raise _refuse(
            "repeated-sum", f"it sums twice over one of {inames}", instruction
        )
    at, n_factors = n_outer or (0, 0)
    outer, inner = tuple(scale[:at]), tuple(scale[at:])
    return ShiftedSum(shift, outer, inner, tuple(inames), tuple(operands), n_factors)


def multiply(factors: tuple[Expression, ...]) -> Expression:
    """The product; the number 1 for no factors."""
    if not factors:
        return 1
    return factors[0] if len(factors) == 1 else p.Product(factors)


def _split_shift(
    expression: Expression, is_shift: Test, instruction: str
) -> tuple[Expression, Expression]:
    """A shift and the rest; factors of a shifted sum are multiplied into both."""
    if isinstance(expression, p.Sum):
        return _split_terms(expression, is_shift, instruction)
    if isinstance(expression, p.Quotient):
        shift, rest = _split_shift(expression.numerator, is_shift, instruction)
        if _is_zero(shift):
            return 0, expression
        divisor = expression.denominator
        return p.Quotient(shift, divisor), p.Quotient(rest, divisor)
    if isinstance(expression, p.Product):
        for k, child in enumerate(expression.children):
            shift, rest = _split_shift(child, is_shift, instruction)
            if not _is_zero(shift):
                before, after = expression.children[:k], expression.children[k + 1 :]
                return p.Product((*before, shift, *after)), p.Product(
                    (*before, rest, *after)
                )
    return 0, expression


def _split_terms(
    expression: p.Sum, is_shift: Test, instruction: str
) -> tuple[Expression, Expression]:
    terms = list(_terms(expression))
    shifts = [term for term in terms if is_shift(term)]
    others = [term for term in terms if not is_shift(term)]
    if not shifts and not has_reduction(expression):
        return 0, expression
    if not others:
        return 0, expression
    if len(others) > 1 and has_reduction(expression):
        raise _refuse("nested-reduction", "it adds several sums", instruction)
    inner, rest = _split_shift(_add(others), is_shift, instruction)
    return _add([*shifts, *([] if _is_zero(inner) else [inner])]), rest


def _terms(expression: Expression) -> list[Expression]:
    if not isinstance(expression, p.Sum):
        return [expression]
    return [term for child in expression.children for term in _terms(child)]


def _add(terms: list[Expression]) -> Expression:
    if not terms:
        return 0
    return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))


def _is_zero(expression: Expression) -> bool:
    return isinstance(expression, int) and expression == 0


def _is_without_sum(expression: Expression) -> bool:
    return not has_reduction(expression)


def _factors(expression: Expression, is_divisor: bool = False) -> list[Expression]:
    """The factors of nested products and quotients, without the integer 1."""
    if isinstance(expression, p.Product):
        return [f for child in expression.children for f in _factors(child, is_divisor)]
    if isinstance(expression, p.Quotient):
        above = _factors(expression.numerator, is_divisor)
        return [*above, *_factors(expression.denominator, not is_divisor)]
    if isinstance(expression, int) and expression == 1:
        return []
    return [p.Quotient(1, expression) if is_divisor else expression]


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
            f"the factor {factor} contains a reduction, so it is not an operand "
            "function",
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
