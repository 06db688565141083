"""Raising of one instruction as one row of a functional batched einsum.

A row assigns ``shift + scale*sum(product of factors)``. The instruction ::

    v[e, i] = v[e, i] + 0.5*sum(j, w[j]*sum(r, D[r, i, j]*u[r, e, j]))

is taken apart into the shift ``v[e, i]``, the scale ``0.5``, one sum over ``j`` and
``r``, and the factors ``w[j]``, ``D[r, i, j]`` and ``u[r, e, j]``: nested sums become
one sum, and factors outside of a sum move inside. Each factor becomes an operand
(:mod:`feinsum.raising.operands`); factors that depend on no iname are in the scale.

Any other instruction is refused, with the rule that it breaks. A refusal is final if
the einsum would compute a different result than the kernel: if iterations depend on
each other, if C rounds or converts between factors, or if a domain is not a box.
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

from feinsum.dtypes import get_eps, is_inexact
from feinsum.ir import Extent, IndexList
from feinsum.raising.affine import (
    Strides,
    are_distinct_places,
    find_box_extents,
    find_strides,
)
from feinsum.raising.dependences import check_hazards, is_exact_read
from feinsum.raising.expressions import (
    Expression,
    has_quotient,
    has_reduction,
    list_terms,
    make_product,
    make_sum,
)
from feinsum.raising.functions import set_literal_dtypes, unresolve
from feinsum.raising.nest import make_refusal
from feinsum.raising.operands import OperandTable, RuleUse, refuse_reduction
from feinsum.raising.trees import check_compressed
from feinsum.words import describe_type

Test: TypeAlias = Callable[[Expression], bool]


@dataclass(frozen=True)
class ShiftedSum:
    """``shift + scale * sum(inames, product of factors)``.

    Every factor depends on an index; expressions that depend on none are in the scale.

    Attributes:
        outer, inner: the factors of the scale outside of all sums, and inside.
        n_outer: the number of factors outside of all sums; they come first.
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

    Nested sums become one sum, and factors outside of a sum move inside.

    Args:
        expression: the assigned value.
        is_operand: returns whether a factor is an operand, and not part of the scale.
        reads_output: returns whether an expression reads the assigned array.
        instruction: the id of the instruction.

    Raises:
        NotAnEinsumError: for a reduction other than a sum, or several sums.
    """
    # With a sum, all other terms are the shift. Without one, only the previous value of
    # the output is: in y = y + x, x is the operand.
    is_shift = _is_without_sum if has_reduction(expression) else reads_output
    shift, summand = _split_shift(expression, is_shift, instruction)
    scale: list[Expression] = []
    inames: list[str] = []
    operands: list[Expression] = []
    n_outer: tuple[int, int] | None = None
    todo: list[Expression] = [summand]
    while todo:
        factors = [f for e in todo for f in _list_factors(e)]
        sums = [f for f in factors if isinstance(f, Reduction)]
        if len(sums) > 1:
            raise make_refusal(
                instruction, "product-of-sums", "it multiplies several sums"
            )
        for factor in factors:
            if not isinstance(factor, Reduction):
                refuse_reduction(factor, factor, instruction)
                (operands if is_operand(factor) else scale).append(factor)
        # set in the first round, whose factors are outside of all sums
        todo, n_outer = [], n_outer or (len(scale), len(operands))
        for reduction in sums:
            _check_is_sum(reduction, instruction)
            inames += reduction.inames
            todo.append(reduction.expr)
    if len(set(inames)) != len(inames):
        raise make_refusal(
            instruction, "repeated-sum", f"it sums twice over one of {inames}"
        )
    n_scales, n_factors = n_outer or (0, 0)
    outer, inner = tuple(scale[:n_scales]), tuple(scale[n_scales:])
    return ShiftedSum(shift, outer, inner, tuple(inames), tuple(operands), n_factors)


def _split_shift(
    expression: Expression, is_shift: Test, instruction: str
) -> tuple[Expression, Expression]:
    """Split off a shift, and multiply outer factors into both parts."""
    if isinstance(expression, p.Sum):
        return _split_terms(expression, is_shift, instruction)
    if isinstance(expression, p.Quotient):
        shift, unshifted = _split_shift(expression.numerator, is_shift, instruction)
        if _is_zero(shift):
            return 0, expression
        divisor = expression.denominator
        return p.Quotient(shift, divisor), p.Quotient(unshifted, divisor)
    if isinstance(expression, p.Product):
        for k, child in enumerate(expression.children):
            shift, unshifted = _split_shift(child, is_shift, instruction)
            if not _is_zero(shift):
                before, after = expression.children[:k], expression.children[k + 1 :]
                return p.Product((*before, shift, *after)), p.Product(
                    (*before, unshifted, *after)
                )
    return 0, expression


def _split_terms(
    expression: p.Sum, is_shift: Test, instruction: str
) -> tuple[Expression, Expression]:
    terms = list_terms(expression)
    shifts = [term for term in terms if is_shift(term)]
    summands = [term for term in terms if not is_shift(term)]
    if not shifts and not has_reduction(expression):
        return 0, expression
    if not summands:
        return 0, expression
    if len(summands) > 1 and has_reduction(expression):
        raise make_refusal(instruction, "nested-reduction", "it adds several sums")
    inner, unshifted = _split_shift(make_sum(summands), is_shift, instruction)
    return make_sum([*shifts, *([] if _is_zero(inner) else [inner])]), unshifted


def _is_zero(expression: Expression) -> bool:
    return isinstance(expression, int) and expression == 0


def _is_without_sum(expression: Expression) -> bool:
    return not has_reduction(expression)


def _list_factors(expression: Expression, is_divisor: bool = False) -> list[Expression]:
    """Return the factors of nested products and quotients, without the integer 1."""
    if isinstance(expression, p.Product):
        return [
            f for child in expression.children for f in _list_factors(child, is_divisor)
        ]
    if isinstance(expression, p.Quotient):
        above = _list_factors(expression.numerator, is_divisor)
        return [*above, *_list_factors(expression.denominator, not is_divisor)]
    if isinstance(expression, int) and expression == 1:
        return []
    return [p.Quotient(1, expression) if is_divisor else expression]


def _check_is_sum(reduction: Reduction, instruction: str) -> None:
    if not isinstance(reduction.operation, SumReductionOperation):
        raise make_refusal(
            instruction, "reduction", f"it reduces with {reduction.operation}, not sum"
        )
    if isinstance(reduction.expr, tuple):
        raise make_refusal(
            instruction, "reduction", "it reduces several expressions at once"
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
        """A key that is equal for instructions that can be rows of one batch."""
        terms = tuple(sorted(access.term for access in self.accesses))
        return self.output, self.summed, terms, self.loops


def raise_row(insn: lp.InstructionBase, table: OperandTable) -> RaisedRow:
    """Read an instruction as a row.

    Raises:
        NotAnEinsumError: with the instruction and the rule that it breaks.
    """
    check_compressed(insn, table.levels)
    subscripts = _read_subscripts(insn, table)
    names = tuple(name for subscript in subscripts for name in subscript.inames)
    shifted_sum = _split_value(insn, table)
    inames = frozenset(names) | frozenset(shifted_sum.inames)
    _check_tags(insn, table.kernel, inames)
    if not shifted_sum.factors:
        raise make_refusal(insn.id, "no-operand", _explain_no_operand(insn))
    extents = find_box_extents(table.kernel, inames, insn.id)
    _check_distinct(insn, subscripts, extents)
    table.note_sizes(extents.values(), insn.id)
    accesses = _list_accesses(insn, names, shifted_sum, table, extents)
    # an operand that has an index binds it
    bound = {iname for access in accesses for iname in access.term}
    summed = _list_summed(insn, shifted_sum.inames, bound, extents)
    output = _list_output(insn, names, bound, extents)
    _check_shift(insn, table, shifted_sum.shift)
    _check_dtypes(insn, table, shifted_sum, accesses)
    scale = make_product(shifted_sum.scale)
    table.check_function(scale, insn.id)
    check_hazards(
        insn, table.kernel, inames, table.expand, (*shifted_sum.factors, scale)
    )
    return RaisedRow(
        insn.id,
        insn.assignee,
        output,
        summed,
        accesses,
        unresolve(table.expand(scale)),
        unresolve(table.expand(shifted_sum.shift)),
        insn.within_inames,
    )


def _explain_no_operand(insn: lp.Assignment) -> str:
    """Explain why a row has no operand: it is a fill, or a single value."""
    if insn.within_inames:
        return (
            f"it fills {insn.assignee} with one value, which depends on no operand; "
            "a fill stays the loop that it is"
        )
    return "its value depends on no operand; it is computed once, outside of all loops"


def _split_value(insn: lp.Assignment, table: OperandTable) -> ShiftedSum:
    """Take an assigned value apart; refuse reductions that rules hide."""
    output = insn.assignee_var_names()[0]
    shifted_sum = take_apart(
        insn.expression, table.is_operand, lambda e: output in table.reads(e), insn.id
    )
    for expression, role in (
        (make_product(shifted_sum.scale), "scale"),
        (shifted_sum.shift, "shift"),
    ):
        if has_reduction(table.expand(expression)):
            raise make_refusal(
                insn.id,
                "nested-reduction",
                f"its {role} {expression} contains a reduction",
            )
    dtype = _get_declared_dtype(insn, table)
    if dtype is None or not is_inexact(dtype):
        return shifted_sum
    # in a complex result, literals are real numbers of the same precision
    real = np.empty(0, dtype).real.dtype
    # Python's literals are double already
    if real == np.float64:
        return shifted_sum
    return replace(
        shifted_sum,
        outer=tuple(set_literal_dtypes(factor, real) for factor in shifted_sum.outer),
        shift=set_literal_dtypes(shifted_sum.shift, real),
    )


def _get_declared_dtype(
    insn: lp.Assignment, table: OperandTable
) -> np.dtype[Any] | None:
    """Return the declared dtype of the assignee, if it is known."""
    (name,) = insn.assignee_var_names()
    dtype = getattr(table.kernel.get_var_descriptor(name).dtype, "numpy_dtype", None)
    return dtype if isinstance(dtype, np.dtype) else None


def _read_subscripts(insn: lp.InstructionBase, table: OperandTable) -> list[Strides]:
    """Return the assignee's subscripts; check that each loop occurs in exactly one."""
    kernel = table.kernel
    if called := find_called_kernel(insn, table.t_unit):
        raise make_refusal(
            insn.id,
            "call",
            f"it calls the kernel {called!r}, as a loop over cells does; the einsums "
            "are in that one, so raise a unit with it as the entry point, or inline it",
        )
    if not isinstance(insn, lp.Assignment):
        raise make_refusal(insn.id, "instruction-kind", f"it is {describe_type(insn)}")
    if insn.predicates:
        raise make_refusal(
            insn.id, "predicate", f"it has predicates {set(insn.predicates)}"
        )
    if insn.atomicity:
        raise make_refusal(insn.id, "atomic", "it is an atomic update")
    assignee = insn.assignee
    if not isinstance(assignee, (p.Variable, p.Subscript)):
        raise make_refusal(insn.id, "assignee", f"it assigns to {assignee}")
    subscripts = get_output_strides(assignee, kernel)
    if subscripts is None:
        raise make_refusal(
            insn.id,
            "assignee",
            f"it assigns to {assignee}; expected distinct inames, their multiples and "
            "numbers",
        )
    names = tuple(name for subscript in subscripts for name in subscript.inames)
    # a loop that occurs in no subscript would write the same entry repeatedly
    if set(names) != insn.within_inames:
        extra = sorted(insn.within_inames - set(names))
        raise make_refusal(
            insn.id, "race", f"it writes {assignee} in every iteration of {extra}"
        )
    return subscripts


def get_output_strides(
    assignee: Expression, kernel: lp.LoopKernel
) -> list[Strides] | None:
    """Return the subscripts of an assignee.

    Return None unless all are sums of multiples of inames, and each iname occurs once.
    """
    indices = getattr(assignee, "index_tuple", ())
    inames, sizes = kernel.all_inames(), kernel.get_unwritten_value_args()
    strides = [find_strides(index, inames, sizes) for index in indices]
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
    """Check that no two iterations assign the same entry."""
    for subscript in subscripts:
        if not are_distinct_places(subscript, extents):
            raise make_refusal(
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
            raise make_refusal(
                insn.id,
                "parallel-iname",
                f"its iname {iname!r} is already tagged {tags}; loops may be split, "
                "but give the kernel without tags, which recipes set: remove them with "
                "loopy.untag_inames, or transform the kernel afterwards",
            )


def _list_accesses(
    insn: lp.Assignment,
    names: IndexList,
    shifted_sum: ShiftedSum,
    table: OperandTable,
    extents: Mapping[str, Extent],
) -> tuple[RuleUse, ...]:
    """Return the operands.

    If no operand depends on some output index, the first operand without a summation
    index gets it as an axis along which it is constant.
    """
    inames = [table.find_inames(factor) for factor in shifted_sum.factors]
    read = frozenset[str]().union(*inames)
    # An einsum cannot broadcast: some operand has to have each output index. So one of
    # them gets the missing index, and its function is constant along it.
    is_missing = any(iname not in read and extents[iname] != 1 for iname in names)
    is_new = is_missing or (not shifted_sum.inames and len(shifted_sum.factors) == 1)
    along = tuple(i for i in names if i not in read) if is_new else ()
    summed = set(shifted_sum.inames)
    repeated = next(
        (k for k, factor_inames in enumerate(inames) if not factor_inames & summed), 0
    )
    return tuple(
        table.access(factor, names, extents, insn.id, along if k == repeated else ())
        for k, factor in enumerate(shifted_sum.factors)
    )


def _list_summed(
    insn: lp.InstructionBase,
    summed: tuple[str, ...],
    bound: set[str],
    extents: Mapping[str, Extent],
) -> frozenset[str]:
    """Return the summation indices; drop unused ones of extent 1."""
    for iname in summed:
        if iname not in bound and extents[iname] != 1:
            raise make_refusal(
                insn.id,
                "unbound-sum",
                f"it sums over {iname!r}, on which nothing depends",
            )
        if iname in insn.within_inames:
            raise make_refusal(
                insn.id, "unbound-sum", f"it sums over its own loop {iname!r}"
            )
    return frozenset(summed) & bound


def _list_output(
    insn: lp.InstructionBase,
    names: IndexList,
    bound: set[str],
    extents: Mapping[str, Extent],
) -> IndexList:
    """Return the output indices; drop unused ones of extent 1."""
    for iname in names:
        if iname not in bound and extents[iname] != 1:
            raise make_refusal(
                insn.id,
                "broadcast",
                f"no operand depends on its output index {iname!r}",
            )
    return tuple(iname for iname in names if iname in bound)


def _check_shift(insn: lp.Assignment, table: OperandTable, shift: Expression) -> None:
    """Check that a shift depends only on loops and on the assigned entry."""
    table.check_function(shift, insn.id)
    expanded = table.expand(shift)
    outside = table.find_inames(shift) - insn.within_inames
    if outside:
        raise make_refusal(
            insn.id, "unbound-index", f"its shift {shift} depends on {sorted(outside)}"
        )
    name = insn.assignee_var_names()[0]
    if name in table.reads(shift) and not is_exact_read(expanded, insn.assignee):
        raise make_refusal(
            insn.id,
            "operand-written",
            f"its shift reads {name!r} beside {insn.assignee}",
        )


def _check_dtypes(
    insn: lp.InstructionBase,
    table: OperandTable,
    shifted_sum: ShiftedSum,
    accesses: tuple[RuleUse, ...],
) -> None:
    """Check that operands, their scaled product and the result have one dtype.

    Otherwise the kernel would round or wrap where the einsum does not.
    """
    dtypes = {access.operand.dtype for access in accesses}
    bodies = [
        f"{table.functions[x.operand.name].body} ({x.operand.dtype})" for x in accesses
    ]
    operands = ", ".join(dict.fromkeys(bodies))
    computed = np.result_type(*dtypes)
    divides = any(map(has_quotient, (*shifted_sum.scale, shifted_sum.shift)))
    if computed.kind in "biu" and (len(dtypes) > 1 or divides):
        raise make_refusal(
            insn.id,
            "output-dtype",
            f"it mixes or divides integers, which C rounds: {operands}",
        )
    _check_order(insn, table, shifted_sum, computed)
    # as in C: the dtypes of the product inside of the sum, and of the whole value
    inner = table.dtype(
        table.expand(make_product((*shifted_sum.inner, *shifted_sum.factors))), insn.id
    )
    product = make_product((*shifted_sum.scale, *shifted_sum.factors))
    is_shifted = not _is_zero(shifted_sum.shift)
    value = p.Sum((shifted_sum.shift, product)) if is_shifted else product
    scaled = table.dtype(table.expand(value), insn.id)
    declared = _get_declared_dtype(insn, table)
    name = insn.assignee_var_names()[0]
    if declared == computed and _is_scaled_last(shifted_sum, inner, computed, scaled):
        return
    for dtype, role in (
        (inner, "its product has"),
        (scaled, "its value has"),
        (declared, f"{name!r} has"),
    ):
        if dtype is not None and not np.can_cast(dtype, computed, "equiv"):
            raise make_refusal(
                insn.id,
                "output-dtype",
                f"its operands {operands} make {computed}, but {role} the dtype "
                f"{dtype}",
            )


def _is_scaled_last(
    shifted_sum: ShiftedSum,
    inner: np.dtype[Any],
    computed: np.dtype[Any],
    scaled: np.dtype[Any],
) -> bool:
    """Return whether a sum of one dtype is scaled and shifted in a wider dtype.

    Then C converts where a recipe does: it converts the sum before scaling it, and the
    value when it is stored. Conversions between factors would be at other points.
    """
    # raising moves a factor from outside a sum inside, and so before the conversion
    is_whole = (
        len(shifted_sum.factors) == 1
        if not shifted_sum.inames
        else shifted_sum.n_outer == 0
    )
    return (
        is_whole
        and np.can_cast(inner, computed, "equiv")
        and {computed.kind, scaled.kind} == {"f"}
        and scaled.itemsize > computed.itemsize
    )


def _check_order(
    insn: lp.InstructionBase,
    table: OperandTable,
    shifted_sum: ShiftedSum,
    computed: np.dtype[Any],
) -> None:
    """Check that factors can be multiplied in any order, and before divisions.

    A product or quotient of narrow factors alone may wrap or round, even if the product
    with wider factors does not. A single operand of lower precision does no harm, since
    the generated code multiplies wider ones first.
    """
    if computed.kind in "biu":
        return
    scale, operands = (
        [f for f in factors if _is_narrow(f, table, insn.id, computed)]
        for factors in (shifted_sum.scale, shifted_sum.factors)
    )
    narrow = [*scale, *operands]
    kinds = {table.dtype(table.expand(f), insn.id).kind for f in narrow}
    is_literal = all(isinstance(f, (int, np.integer)) for f in narrow)
    is_right = len(scale) <= 1 and (kinds <= {"f", "c"} or len(narrow) == 1)
    if is_literal or (is_right and not any(map(has_quotient, narrow))):
        return
    raise make_refusal(
        insn.id,
        "output-dtype",
        f"it multiplies {', '.join(map(str, narrow))}, which C rounds or wraps before "
        f"it makes them {computed}",
    )


def _is_narrow(
    factor: Expression, table: OperandTable, insn_id: str, computed: np.dtype[Any]
) -> bool:
    """Return whether a factor has fewer digits than the dtype ``computed``.

    Floating point literals take the precision of the other factors.
    """
    if isinstance(factor, (int, np.integer)):
        # changing the sign does not round
        return abs(factor) != 1
    if isinstance(factor, (float, complex)):
        return False
    dtype = table.infer_computed_dtype(table.expand(factor), insn_id)
    return dtype.kind in "biu" or get_eps(dtype) > get_eps(computed)


def called_kernels(t_unit: lp.TranslationUnit, name: str) -> tuple[str, ...]:
    """Return the kernels of a unit that a kernel calls, in instruction order."""
    instructions = t_unit[name].instructions
    names = (find_called_kernel(insn, t_unit) for insn in instructions)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def find_called_kernel(
    insn: lp.InstructionBase, t_unit: lp.TranslationUnit
) -> str | None:
    """Return the kernel of a unit that an instruction calls; None if it calls none."""
    if not isinstance(insn, lp.CallInstruction):
        return None
    function = getattr(insn.expression, "function", None)
    name = getattr(function, "name", None)  # a reduction of several values has none
    is_kernel = isinstance(t_unit.callables_table.get(name), lp.CallableKernel)
    return str(name) if is_kernel else None
