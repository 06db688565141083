"""Sums that are added: one instruction for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import loopy as lp
from loopy.library.reduction import SumReductionOperation
from loopy.symbolic import Reduction
from pymbolic import primitives as p

from feinsum.raising.nest import Expression
from feinsum.raising.normal.program import Program, is_plain, terms_of
from feinsum.raising.product import has_reduction, multiply

__all__ = ["with_single_sums"]

Refused: TypeAlias = Callable[[lp.LoopKernel], frozenset[str]]
"""The instructions of a kernel that are not einsums."""

MOST_TERMS = 32
"""Products of sums have more terms the more of them there are."""


def with_single_sums(program: Program, refused: Refused) -> Program:
    """Instructions that add several sums, as several that add one each.

    Products are multiplied out where they are refused otherwise: with a sum of terms
    that no single array has the indices of.

    Rewrite::

        out[i] = y[i] + sum(j, A[i,j]*x[j]) + 2*sum(k, B[i,k]*z[k])

        out[i] = y[i] + sum(j, A[i,j]*x[j])
        out[i] = out[i] + 2*sum(k, B[i,k]*z[k])

    Args:
        refused: the instructions of a kernel that are not einsums as they stand.
    """
    for is_fine in (False, True):
        left = refused(program.kernel)
        for insn_id in sorted(left):
            insn = program.kernel.id_to_insn[insn_id]
            if is_plain(insn) and _is_inexact(insn, program):
                program = _split(insn, program, is_fine=is_fine)
    return program


def _is_inexact(insn: lp.Assignment, program: Program) -> bool:
    """Whether an instruction computes in floating point, and only in one dtype."""
    dtype = program.dtypes.get(insn.assignee_var_names()[0])
    return insn.id in program.summable and dtype is not None and dtype.kind in "fc"


def _split(insn: lp.Assignment, program: Program, *, is_fine: bool) -> Program:
    (name,) = insn.assignee_var_names()
    terms = list(islice(_expanded(insn.expression, is_fine=is_fine), MOST_TERMS + 1))
    reads_own = [
        term for term in terms if name in program.names(term) and term != insn.assignee
    ]
    has_sums = any(map(has_reduction, terms))
    parts = (
        [t for t in terms if has_reduction(t)]
        if has_sums
        else [t for t in terms if t != insn.assignee]
    )
    is_inexact = all(map(program.is_inexact, parts))
    if len(parts) < 2 or len(terms) > MOST_TERMS or reads_own or not is_inexact:
        return program
    first = [term for term in terms if term not in parts]
    fresh = program.kernel.get_instruction_id_generator()
    ids = [str(fresh(f"{insn.id}_part")) for _ in parts[1:]]
    steps = [
        insn.copy(
            id=new,
            expression=p.Sum((*before, part)),
            depends_on=insn.depends_on | {*waits},
            depends_on_is_final=True,
        )
        for new, part, before, waits in zip(
            [*ids, insn.id],
            parts,
            [first, *([insn.assignee] for _ in ids)],
            [(), *((i,) for i in ids)],
            strict=True,
        )
    ]
    # the last one keeps the id: who waited for the whole waits for it
    kernel = program.kernel
    instructions = [
        new
        for old in kernel.instructions
        for new in (steps if old.id == insn.id else [old])
    ]
    program = replace(
        program,
        kernel=kernel.copy(instructions=instructions),
        summable=program.summable | {*ids},
    )
    for insn_id in ids:
        program = program.with_own_sums(insn_id)
    return program


def _expanded(expression: Expression, *, is_fine: bool) -> Iterator[Expression]:
    """The terms of an expression, its products with sums multiplied out.

    Args:
        is_fine: whether those of products without a reduction are multiplied out, too.

    >>> from pymbolic import parse
    >>> product = parse("(a + b)*(c - d)")
    >>> [str(term) for term in _expanded(product, is_fine=True)]
    ['a*c', 'a*(-1)*d', 'b*c', 'b*(-1)*d']
    >>> [str(term) for term in _expanded(product, is_fine=False)]
    ['(a + b)*(c + (-1)*d)']
    """
    match expression:
        case p.Sum():
            for term in terms_of(expression):
                yield from _expanded(term, is_fine=is_fine)
        case p.Product() if is_fine or has_reduction(expression):
            yield from map(multiply, _products(expression.children, is_fine=is_fine))
        case p.Quotient() if has_reduction(expression.numerator):
            divisor = p.Quotient(1, expression.denominator)
            for term in _expanded(expression.numerator, is_fine=is_fine):
                yield multiply((*_factors(term), divisor))
        case Reduction() if _is_sum(expression):
            for term in _expanded(expression.expr, is_fine=is_fine):
                yield Reduction("sum", expression.inames, term)
        case _:
            yield expression


def _products(
    factors: tuple[Expression, ...], *, is_fine: bool
) -> Iterator[tuple[Expression, ...]]:
    """The terms of a product, as their factors."""
    if not factors:
        yield ()
        return
    first, *others = factors
    is_apart = is_fine or has_reduction(first)
    for term in _expanded(first, is_fine=is_fine) if is_apart else (first,):
        for rest in _products(tuple(others), is_fine=is_fine):
            yield (*_factors(term), *rest)


def _factors(term: Expression) -> tuple[Expression, ...]:
    return term.children if isinstance(term, p.Product) else (term,)


def _is_sum(expression: Reduction) -> bool:
    return isinstance(expression.operation, SumReductionOperation) and not isinstance(
        expression.expr, tuple
    )
