"""One instruction, read as one row of a functional batched einsum.

A row assigns ``shift + scale*sum(product of factors)``. The instruction ::

    v[e, i] = v[e, i] + 0.5*sum(j, w[j]*sum(r, D[r, i, j]*u[r, e, j]))

is taken apart into the shift ``v[e, i]``, the scale ``0.5``, one sum over ``j`` and
``r``, and the factors ``w[j]``, ``D[r, i, j]`` and ``u[r, e, j]``: nested sums are one
sum, and a factor outside of a sum is a factor inside. Each factor becomes an operand
(:mod:`feinsum.raising.operands`); what depends on no iname is in the scale.

Every other instruction is refused, with the rule that it breaks. A refusal is final
where the einsum would compute something else than the kernel: where iterations depend
on each other, where C rounds or converts between factors, where a domain is no box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from loopy.kernel.data import ConcurrentTag
from loopy.library.reduction import SumReductionOperation
from loopy.symbolic import Reduction
from pymbolic import primitives as p

from feinsum.ir import Extent, IndexList
from feinsum.raising.affine import Strides, are_distinct_places, box_extents, strides_of
from feinsum.raising.dependences import check_hazards, reads_exactly
from feinsum.raising.expressions import (
    Expression,
    add,
    has_quotient,
    has_reduction,
    multiply,
    terms_of,
)
from feinsum.raising.functions import size_literals, unresolved
from feinsum.raising.nest import refusal
from feinsum.raising.operands import OperandTable, RuleUse
from feinsum.raising.trees import check_compressed
from feinsum.words import type_in_words

Test: TypeAlias = Callable[[Expression], bool]


@dataclass(frozen=True)
class ShiftedSum:
    """``shift + scale * sum(inames, product of factors)``.

    Every factor depends on an index; what depends on none is in the scale.

    Attributes:
        outer: the part of the scale that is outside all sums.
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
        expression: the assigned value.
        is_operand: whether a factor is an operand, and not part of the scale.
        reads_output: whether an expression reads what the instruction assigns.
        instruction: the id of the instruction.

    Raises:
        NotAnEinsumError: for a reduction other than a sum, or several sums.
    """
    # Beside a sum, every other term is a shift. Without one, only the previous value
    # is: in y = y + x, x is the operand.
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
            raise refusal(instruction, "product-of-sums", "it multiplies several sums")
        for factor in factors:
            if not isinstance(factor, Reduction):
                _refuse_inner_reduction(factor, instruction)
                (operands if is_operand(factor) else scale).append(factor)
        # after the first round: the factors found so far are outside all sums
        todo, n_outer = [], n_outer or (len(scale), len(operands))
        for reduction in sums:
            _check_is_sum(reduction, instruction)
            inames += reduction.inames
            todo.append(reduction.expr)
    if len(set(inames)) != len(inames):
        raise refusal(
            instruction, "repeated-sum", f"it sums twice over one of {inames}"
        )
    at, n_factors = n_outer or (0, 0)
    outer, inner = tuple(scale[:at]), tuple(scale[at:])
    return ShiftedSum(shift, outer, inner, tuple(inames), tuple(operands), n_factors)


def _split_shift(
    expression: Expression, is_shift: Test, instruction: str
) -> tuple[Expression, Expression]:
    """Separate a shift from the rest, multiplying outer factors into both."""
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
    terms = terms_of(expression)
    shifts = [term for term in terms if is_shift(term)]
    others = [term for term in terms if not is_shift(term)]
    if not shifts and not has_reduction(expression):
        return 0, expression
    if not others:
        return 0, expression
    if len(others) > 1 and has_reduction(expression):
        raise refusal(instruction, "nested-reduction", "it adds several sums")
    inner, rest = _split_shift(add(others), is_shift, instruction)
    return add([*shifts, *([] if _is_zero(inner) else [inner])]), rest


def _is_zero(expression: Expression) -> bool:
    return isinstance(expression, int) and expression == 0


def _is_without_sum(expression: Expression) -> bool:
    return not has_reduction(expression)


def _factors(expression: Expression, is_divisor: bool = False) -> list[Expression]:
    """Return the factors of nested products and quotients, without the integer 1."""
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
        raise refusal(
            instruction, "reduction", f"it reduces with {reduction.operation}, not sum"
        )
    if isinstance(reduction.expr, tuple):
        raise refusal(
            instruction, "reduction", "it reduces several expressions at once"
        )


def _refuse_inner_reduction(factor: Expression, instruction: str) -> None:
    if has_reduction(factor):
        raise refusal(
            instruction,
            "nested-reduction",
            f"the factor {factor} contains a reduction, so it is not an operand "
            "function",
        )


@dataclass(frozen=True)
class RaisedRow:
    """The row that one instruction computes, in the kernel's own names."""

    instruction: str
    assignee: Expression
    output: IndexList
    summed: frozenset[str]
    accesses: tuple[RuleUse, ...]
    scale: Expression
    shift: Expression
    loops: frozenset[str]

    @property
    def pattern(self) -> tuple[object, ...]:
        """Equal for instructions that can be rows of one batch."""
        terms = tuple(sorted(access.term for access in self.accesses))
        return self.output, self.summed, terms, self.loops


def raise_row(insn: lp.InstructionBase, table: OperandTable) -> RaisedRow:
    """Read an instruction as a row.

    Raises:
        NotAnEinsumError: naming the instruction and the rule broken.
    """
    check_compressed(insn, table.levels)
    subscripts = _assigned_subscripts(insn, table)
    names = tuple(name for subscript in subscripts for name in subscript.inames)
    parts = _parts(insn, table)
    inames = frozenset(names) | frozenset(parts.inames)
    _check_tags(insn, table.kernel, inames)
    if not parts.factors:
        raise refusal(insn.id, "no-operand", _why_no_operand(insn))
    extents = box_extents(table.kernel, inames, insn.id)
    _check_distinct(insn, subscripts, extents)
    table.note_sizes(extents.values(), insn.id)
    accesses = _accesses(insn, names, parts, table, extents)
    # an index is bound if an operand has it
    bound = {iname for access in accesses for iname in access.term}
    summed = _summed(insn, parts.inames, bound, extents)
    output = _output(insn, names, bound, extents)
    _check_shift(insn, table, parts.shift)
    _check_dtypes(insn, table, parts, accesses)
    scale = multiply(parts.scale)
    table.check_function(scale, insn.id)
    check_hazards(insn, table.kernel, inames, table.expand, (*parts.factors, scale))
    return RaisedRow(
        insn.id,
        insn.assignee,
        output,
        summed,
        accesses,
        unresolved(table.expand(scale)),
        unresolved(table.expand(parts.shift)),
        insn.within_inames,
    )


def _why_no_operand(insn: lp.Assignment) -> str:
    """Explain why a row has no operand: it is a fill or a single value."""
    if insn.within_inames:
        return (
            f"it fills {insn.assignee} with one value, which depends on no operand; "
            "a fill stays the loop that it is"
        )
    return "its value depends on no operand; it is computed once, outside of all loops"


def _parts(insn: lp.Assignment, table: OperandTable) -> ShiftedSum:
    """Take an assigned value apart; refuse reductions hidden behind rules."""
    output = insn.assignee_var_names()[0]
    parts = take_apart(
        insn.expression, table.is_operand, lambda e: output in table.reads(e), insn.id
    )
    for part, role in ((multiply(parts.scale), "scale"), (parts.shift, "shift")):
        if has_reduction(table.expand(part)):
            raise refusal(
                insn.id, "nested-reduction", f"its {role} {part} contains a reduction"
            )
    dtype = _declared(insn, table)
    if dtype is None or dtype.kind not in "fc":
        return parts
    # a complex result has real literals of its own precision
    real = np.empty(0, dtype).real.dtype
    # literals are double already
    # the dtype of a literal matters only where it is narrower than Python's
    if real == np.float64:
        return parts
    return replace(
        parts,
        outer=tuple(size_literals(factor, real) for factor in parts.outer),
        shift=size_literals(parts.shift, real),
    )


def _declared(insn: lp.Assignment, table: OperandTable) -> np.dtype[Any] | None:
    """Return the dtype of what is assigned, if it is known."""
    (name,) = insn.assignee_var_names()
    dtype = getattr(table.kernel.get_var_descriptor(name).dtype, "numpy_dtype", None)
    return dtype if isinstance(dtype, np.dtype) else None


def _assigned_subscripts(
    insn: lp.InstructionBase, table: OperandTable
) -> list[Strides]:
    """Return the assignee's subscripts; every loop occurs in one of them, once."""
    kernel = table.kernel
    if called := called_by(insn, table.t_unit):
        raise refusal(
            insn.id,
            "call",
            f"it calls the kernel {called!r}, as a loop over cells does; the einsums "
            "are in that one, so raise a unit with it as the entry point, or inline it",
        )
    if not isinstance(insn, lp.Assignment):
        raise refusal(insn.id, "instruction-kind", f"it is {type_in_words(insn)}")
    if insn.predicates:
        raise refusal(insn.id, "predicate", f"it has predicates {set(insn.predicates)}")
    if insn.atomicity:
        raise refusal(insn.id, "atomic", "it is an atomic update")
    assignee = insn.assignee
    if not isinstance(assignee, (p.Variable, p.Subscript)):
        raise refusal(insn.id, "assignee", f"it assigns to {assignee}")
    subscripts = places_of(assignee, kernel)
    if subscripts is None:
        raise refusal(
            insn.id,
            "assignee",
            f"it assigns to {assignee}; expected distinct inames, their multiples and "
            "numbers",
        )
    names = tuple(name for subscript in subscripts for name in subscript.inames)
    # a loop that no subscript uses writes one entry repeatedly
    if set(names) != insn.within_inames:
        extra = sorted(insn.within_inames - set(names))
        raise refusal(
            insn.id, "race", f"it writes {assignee} in every iteration of {extra}"
        )
    return subscripts


def places_of(assignee: Expression, kernel: lp.LoopKernel) -> list[Strides] | None:
    """Return the subscripts of an assignee.

    None unless all are sums of multiples of inames, each of which occurs once.
    """
    indices = getattr(assignee, "index_tuple", ())
    inames, sizes = kernel.all_inames(), kernel.get_unwritten_value_args()
    strides = [strides_of(index, inames, sizes) for index in indices]
    subscripts = [subscript for subscript in strides if subscript is not None]
    names = [name for subscript in subscripts for name in subscript.inames]
    is_plain = (
        len(subscripts) == len(strides)
        and len(set(names)) == len(names)
        and all(subscript.is_positive for subscript in subscripts)
    )
    return subscripts if is_plain else None


def _check_distinct(
    insn: lp.Assignment, subscripts: Sequence[Strides], extents: Mapping[str, Extent]
) -> None:
    """Check that no two output points have the same place."""
    for subscript in subscripts:
        if not are_distinct_places(subscript, extents):
            raise refusal(
                insn.id,
                "assignee",
                f"it assigns to {insn.assignee}, where two iterations may write one "
                "entry: a stride must exceed the reach of all smaller ones",
            )


def _check_tags(
    insn: lp.InstructionBase, kernel: lp.LoopKernel, inames: frozenset[str]
) -> None:
    for iname in sorted(inames):
        tags = [t for t in kernel.inames[iname].tags if isinstance(t, ConcurrentTag)]
        if tags:
            raise refusal(
                insn.id,
                "parallel-iname",
                f"its iname {iname!r} is already tagged {tags}; loops may be split, "
                "but give the kernel without tags, which recipes set: remove them with "
                "loopy.untag_inames, or transform the kernel afterwards",
            )


def _accesses(
    insn: lp.Assignment,
    names: IndexList,
    parts: ShiftedSum,
    table: OperandTable,
    extents: Mapping[str, Extent],
) -> tuple[RuleUse, ...]:
    """Return the operands.

    The first operand without a summation index, if there is one, is repeated along
    output indices that nothing depends on.
    """
    inames = [table.inames_of(factor) for factor in parts.factors]
    read = frozenset[str]().union(*inames)
    # A result that no operand has an index of is a broadcast, which no einsum is; the
    # operand gets this index, along which its function is constant.
    is_missing = any(iname not in read and extents[iname] != 1 for iname in names)
    is_new = is_missing or (not parts.inames and len(parts.factors) == 1)
    along = tuple(i for i in names if i not in read) if is_new else ()
    summed = set(parts.inames)
    repeated = next(
        (k for k, factor_inames in enumerate(inames) if not factor_inames & summed), 0
    )
    return tuple(
        table.access(factor, names, extents, insn.id, along if k == repeated else ())
        for k, factor in enumerate(parts.factors)
    )


def _summed(
    insn: lp.InstructionBase,
    summed: tuple[str, ...],
    bound: set[str],
    extents: Mapping[str, Extent],
) -> frozenset[str]:
    """Return the summation indices; drop those of extent 1 that nothing depends on."""
    for iname in summed:
        if iname not in bound and extents[iname] != 1:
            raise refusal(
                insn.id,
                "unbound-sum",
                f"it sums over {iname!r}, on which nothing depends",
            )
        if iname in insn.within_inames:
            raise refusal(
                insn.id, "unbound-sum", f"it sums over its own loop {iname!r}"
            )
    return frozenset(summed) & bound


def _output(
    insn: lp.InstructionBase,
    names: IndexList,
    bound: set[str],
    extents: Mapping[str, Extent],
) -> IndexList:
    """Return the output indices; drop those of extent 1 that no operand has."""
    for iname in names:
        if iname not in bound and extents[iname] != 1:
            raise refusal(
                insn.id,
                "broadcast",
                f"no operand depends on its output index {iname!r}",
            )
    return tuple(iname for iname in names if iname in bound)


def _check_shift(insn: lp.Assignment, table: OperandTable, shift: Expression) -> None:
    """Check that a shift depends only on loops and the entry that is assigned."""
    table.check_function(shift, insn.id)
    expanded = table.expand(shift)
    outside = table.inames_of(shift) - insn.within_inames
    if outside:
        raise refusal(
            insn.id, "unbound-index", f"its shift {shift} depends on {sorted(outside)}"
        )
    name = insn.assignee_var_names()[0]
    if name in table.reads(shift) and not reads_exactly(expanded, insn.assignee):
        raise refusal(
            insn.id,
            "operand-written",
            f"its shift reads {name!r} beside {insn.assignee}",
        )


def _check_dtypes(
    insn: lp.InstructionBase,
    table: OperandTable,
    parts: ShiftedSum,
    accesses: tuple[RuleUse, ...],
) -> None:
    """Check that operands, their scaled product and the result have one dtype.

    Otherwise the kernel rounds or wraps where the einsum does not.
    """
    dtypes = {access.operand.dtype for access in accesses}
    computed = np.result_type(*dtypes)
    divides = any(map(has_quotient, (*parts.scale, parts.shift)))
    if computed.kind in "biu" and (len(dtypes) > 1 or divides):
        raise refusal(
            insn.id, "output-dtype", "it mixes or divides integers, which C rounds"
        )
    _check_order(insn, table, parts, computed)
    # Loopy infers the dtypes that C has: of the product inside of the sum, and of the
    # whole
    inner = table.dtype(table.expand(multiply((*parts.inner, *parts.factors))), insn.id)
    product = multiply((*parts.scale, *parts.factors))
    is_shifted = not (isinstance(parts.shift, int) and parts.shift == 0)
    value = p.Sum((parts.shift, product)) if is_shifted else product
    scaled = table.dtype(table.expand(value), insn.id)
    declared = _declared(insn, table)
    name = insn.assignee_var_names()[0]
    if declared == computed and _is_scaled_last(parts, inner, computed, scaled):
        return
    for dtype, role in (
        (inner, "its product has"),
        (scaled, "its value has"),
        (declared, f"{name!r} has"),
    ):
        if dtype is not None and not np.can_cast(dtype, computed, "equiv"):
            raise refusal(
                insn.id,
                "output-dtype",
                f"its operands make {computed}, but {role} the dtype {dtype}",
            )


def _is_scaled_last(
    parts: ShiftedSum,
    inner: np.dtype[Any],
    computed: np.dtype[Any],
    scaled: np.dtype[Any],
) -> bool:
    """Whether a value is the sum of one dtype, scaled and shifted in a wider one.

    Then C converts where the code of a recipe does: the sum before it is scaled, and
    the value when it is stored. Between factors, it would convert elsewhere.
    """
    # a factor outside of a sum is moved inside, where it would be multiplied before the
    # conversion
    is_whole = len(parts.factors) == 1 if not parts.inames else parts.n_outer == 0
    return (
        is_whole
        and np.can_cast(inner, computed, "equiv")
        and {computed.kind, scaled.kind} == {"f"}
        and scaled.itemsize > computed.itemsize
    )


def _check_order(
    insn: lp.InstructionBase,
    table: OperandTable,
    parts: ShiftedSum,
    computed: np.dtype[Any],
) -> None:
    """Check that factors can be multiplied in any order, and before divisions.

    A product or quotient of narrower ones alone wraps or rounds where theirs with
    the others does not. Operands of lower precision do no harm, as others are written
    ahead of them.
    """
    if computed.kind in "biu":
        return
    scale, operands = (
        [f for f in factors if _is_narrow(f, table, insn.id, computed)]
        for factors in (parts.scale, parts.factors)
    )
    narrow = [*scale, *operands]
    kinds = {table.dtype(table.expand(f), insn.id).kind for f in narrow}
    is_literal = all(isinstance(f, (int, np.integer)) for f in narrow)
    is_right = len(scale) <= 1 and (kinds <= {"f", "c"} or len(narrow) == 1)
    if is_literal or (is_right and not any(map(has_quotient, narrow))):
        return
    raise refusal(
        insn.id,
        "output-dtype",
        f"it multiplies {', '.join(map(str, narrow))}, which C rounds or wraps before "
        f"it makes them {computed}",
    )


def _is_narrow(
    factor: Expression, table: OperandTable, insn_id: str, computed: np.dtype[Any]
) -> bool:
    """Whether a factor has fewer digits than a number of the dtype ``computed``.

    Numbers with a point are what the others make of them.
    """
    if isinstance(factor, (int, np.integer)):
        # a sign rounds nothing
        return abs(factor) != 1
    if isinstance(factor, (float, complex)):
        return False
    dtype = table.computed_dtype(table.expand(factor), insn_id)
    return dtype.kind in "biu" or np.finfo(dtype).eps > np.finfo(computed).eps


def called_kernels(t_unit: lp.TranslationUnit, name: str) -> tuple[str, ...]:
    """Return the kernels of a unit that a kernel calls, in instruction order."""
    instructions = t_unit[name].instructions
    names = (called_by(insn, t_unit) for insn in instructions)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def called_by(insn: lp.InstructionBase, t_unit: lp.TranslationUnit) -> str | None:
    """Return the kernel of a unit that an instruction calls; None if it calls none."""
    if not isinstance(insn, lp.CallInstruction):
        return None
    function = getattr(insn.expression, "function", None)
    name = getattr(function, "name", None)  # reductions of several values have none
    is_kernel = isinstance(t_unit.callables_table.get(name), lp.CallableKernel)
    return str(name) if is_kernel else None
