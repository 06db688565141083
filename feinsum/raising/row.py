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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from loopy.kernel.data import ConcurrentTag
from loopy.library.reduction import SumReductionOperation
from loopy.symbolic import Reduction
from pymbolic import primitives as p

from feinsum.dtypes import get_eps, is_inexact
from feinsum.ir import IndexList
from feinsum.raising.affine import (
    Strides,
    are_distinct_places,
    find_box_extents,
    find_strides,
)
from feinsum.raising.dependences import Hazards
from feinsum.raising.expressions import (
    Expression,
    get_subscripts,
    has_quotient,
    has_reduction,
    list_accesses_of,
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
    has_sum = has_reduction(expression)
    is_shift = (lambda e: not has_reduction(e)) if has_sum else reads_output
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
    if called := find_called_kernel(insn, table.t_unit):
        raise make_refusal(
            insn.id,
            "call",
            f"it calls the kernel {called!r}, as a loop over cells does; the einsums "
            "are in that one, so raise a unit with it as the entry point, or inline it",
        )
    if not isinstance(insn, lp.Assignment):
        raise make_refusal(insn.id, "instruction-kind", f"it is {describe_type(insn)}")
    return _RowReader(insn, table).read()


class _RowReader:
    """Reads an assignment as a row, and checks one condition after the other."""

    def __init__(self, insn: lp.Assignment, table: OperandTable) -> None:
        self.insn, self.table, self.kernel = insn, table, table.kernel
        self.refuse = partial(make_refusal, insn.id)
        self.output = insn.assignee_var_names()[0]

    def read(self) -> RaisedRow:
        insn, table = self.insn, self.table
        subscripts = self._read_subscripts()
        names = tuple(name for subscript in subscripts for name in subscript.inames)
        self.parts = parts = self._split_value()
        inames = frozenset(names) | frozenset(parts.inames)
        self._check_tags(inames)
        if not parts.factors:
            raise self.refuse("no-operand", self._explain_no_operand())
        self.extents = find_box_extents(self.kernel, inames, insn.id)
        if not all(are_distinct_places(x, self.extents) for x in subscripts):
            raise self.refuse(
                "assignee",
                f"it assigns to {insn.assignee}, where two iterations may write one "
                "entry: a stride must exceed the reach of all smaller ones",
            )
        table.note_sizes(self.extents.values(), insn.id)
        accesses = self._list_accesses(names)
        # an operand that has an index binds it; unused indices of extent 1 are dropped
        bound = {iname for access in accesses for iname in access.term}
        self._check_bound(names, bound)
        self._check_shift()
        self._check_dtypes(accesses)
        scale = make_product(parts.scale)
        table.check_function(scale, insn.id)
        Hazards(insn, self.kernel, table.expand, (*parts.factors, scale)).check(inames)
        return RaisedRow(
            insn.id,
            insn.assignee,
            tuple(iname for iname in names if iname in bound),
            frozenset(parts.inames) & bound,
            accesses,
            unresolve(table.expand(scale)),
            unresolve(table.expand(parts.shift)),
            insn.within_inames,
        )

    def _read_subscripts(self) -> list[Strides]:
        """Return the assignee's subscripts; each loop must occur in exactly one."""
        insn, assignee = self.insn, self.insn.assignee
        if insn.predicates:
            raise self.refuse("predicate", f"it has predicates {set(insn.predicates)}")
        if insn.atomicity:
            raise self.refuse("atomic", "it is an atomic update")
        if not isinstance(assignee, (p.Variable, p.Subscript)):
            raise self.refuse("assignee", f"it assigns to {assignee}")
        subscripts = get_output_strides(assignee, self.kernel)
        if subscripts is None:
            raise self.refuse(
                "assignee",
                f"it assigns to {assignee}; expected distinct inames, their multiples "
                "and numbers",
            )
        names = {name for subscript in subscripts for name in subscript.inames}
        # a loop that occurs in no subscript would write the same entry repeatedly
        if names != insn.within_inames:
            extra = sorted(insn.within_inames - names)
            raise self.refuse(
                "race", f"it writes {assignee} in every iteration of {extra}"
            )
        return subscripts

    def _split_value(self) -> ShiftedSum:
        """Take the value apart; refuse reductions that rules hide."""
        insn, table = self.insn, self.table
        parts = take_apart(
            insn.expression,
            table.is_operand,
            lambda e: self.output in table.reads(e),
            insn.id,
        )
        for expression, role in (
            (make_product(parts.scale), "scale"),
            (parts.shift, "shift"),
        ):
            if has_reduction(table.expand(expression)):
                raise self.refuse(
                    "nested-reduction", f"its {role} {expression} contains a reduction"
                )
        dtype = self._get_declared_dtype()
        if dtype is None or not is_inexact(dtype):
            return parts
        # in a complex result, literals are real numbers of the same precision
        real = np.empty(0, dtype).real.dtype
        # Python's literals are double already
        if real == np.float64:
            return parts
        return replace(
            parts,
            outer=tuple(set_literal_dtypes(factor, real) for factor in parts.outer),
            shift=set_literal_dtypes(parts.shift, real),
        )

    def _get_declared_dtype(self) -> np.dtype[Any] | None:
        """Return the declared dtype of the assignee, if it is known."""
        declared = self.kernel.get_var_descriptor(self.output).dtype
        dtype = getattr(declared, "numpy_dtype", None)
        return dtype if isinstance(dtype, np.dtype) else None

    def _check_tags(self, inames: frozenset[str]) -> None:
        for iname in sorted(inames):
            all_tags = self.kernel.inames[iname].tags
            if tags := [tag for tag in all_tags if isinstance(tag, ConcurrentTag)]:
                raise self.refuse(
                    "parallel-iname",
                    f"its iname {iname!r} is already tagged {tags}; loops may be "
                    "split, but give the kernel without tags, which recipes set: "
                    "remove them with loopy.untag_inames, or transform the kernel "
                    "afterwards",
                )

    def _explain_no_operand(self) -> str:
        """Explain why a row has no operand: it is a fill, or a single value."""
        if self.insn.within_inames:
            return (
                f"it fills {self.insn.assignee} with one value, which depends on no "
                "operand; a fill stays the loop that it is"
            )
        return (
            "its value depends on no operand; it is computed once, outside of all loops"
        )

    def _list_accesses(self, names: IndexList) -> tuple[RuleUse, ...]:
        """Return the operands.

        If no operand depends on some output index, the first operand without a
        summation index gets it as an axis along which it is constant.
        """
        factors, summed = self.parts.factors, {*self.parts.inames}
        inames = [self.table.find_inames(factor) for factor in factors]
        read = frozenset[str]().union(*inames)
        # An einsum cannot broadcast: some operand has to have each output index. So one
        # of them gets the missing index, and its function is constant along it.
        is_missing = any(i not in read and self.extents[i] != 1 for i in names)
        is_new = is_missing or (not summed and len(factors) == 1)
        along = tuple(i for i in names if i not in read) if is_new else ()
        not_summed = (
            k for k, names_read in enumerate(inames) if not names_read & summed
        )
        repeated = next(not_summed, 0)
        return tuple(
            self.table.access(
                factor,
                names,
                self.extents,
                self.insn.id,
                along if k == repeated else (),
            )
            for k, factor in enumerate(factors)
        )

    def _check_bound(self, names: IndexList, bound: set[str]) -> None:
        """Check that operands have all indices; those of extent 1 are not needed."""
        for iname in self.parts.inames:
            if iname not in bound and self.extents[iname] != 1:
                raise self.refuse(
                    "unbound-sum", f"it sums over {iname!r}, on which nothing depends"
                )
            if iname in self.insn.within_inames:
                raise self.refuse("unbound-sum", f"it sums over its own loop {iname!r}")
        for iname in names:
            if iname not in bound and self.extents[iname] != 1:
                raise self.refuse(
                    "broadcast", f"no operand depends on its output index {iname!r}"
                )

    def _check_shift(self) -> None:
        """Check that a shift depends only on loops and on the assigned entry."""
        insn, table, shift = self.insn, self.table, self.parts.shift
        table.check_function(shift, insn.id)
        if outside := table.find_inames(shift) - insn.within_inames:
            raise self.refuse(
                "unbound-index", f"its shift {shift} depends on {sorted(outside)}"
            )
        reads = list_accesses_of(table.expand(shift), self.output)
        assigned = get_subscripts(insn.assignee)
        if any(get_subscripts(access) != assigned for access in reads):
            raise self.refuse(
                "operand-written",
                f"its shift reads {self.output!r} beside {insn.assignee}",
            )

    def _check_dtypes(self, accesses: tuple[RuleUse, ...]) -> None:
        """Check that operands, their scaled product and the result have one dtype.

        Otherwise the kernel would round or wrap where the einsum does not.
        """
        parts, table = self.parts, self.table
        dtypes = {access.operand.dtype for access in accesses}
        bodies = [
            f"{table.functions[x.operand.name].body} ({x.operand.dtype})"
            for x in accesses
        ]
        operands = ", ".join(dict.fromkeys(bodies))
        computed = np.result_type(*dtypes)
        divides = any(map(has_quotient, (*parts.scale, parts.shift)))
        if computed.kind in "biu" and (len(dtypes) > 1 or divides):
            raise self.refuse(
                "output-dtype",
                f"it mixes or divides integers, which C rounds: {operands}",
            )
        self._check_order(computed)
        # as in C: the dtypes of the product inside of the sum, and of the whole value
        inner = self._infer_dtype(make_product((*parts.inner, *parts.factors)))
        product = make_product((*parts.scale, *parts.factors))
        is_shifted = not _is_zero(parts.shift)
        scaled = self._infer_dtype(
            p.Sum((parts.shift, product)) if is_shifted else product
        )
        declared = self._get_declared_dtype()
        if declared == computed and self._is_scaled_last(inner, computed, scaled):
            return
        for dtype, role in (
            (inner, "its product has"),
            (scaled, "its value has"),
            (declared, f"{self.output!r} has"),
        ):
            if dtype is not None and not np.can_cast(dtype, computed, "equiv"):
                raise self.refuse(
                    "output-dtype",
                    f"its operands {operands} make {computed}, but {role} the dtype "
                    f"{dtype}",
                )

    def _infer_dtype(self, expression: Expression) -> np.dtype[Any]:
        return self.table.dtype(self.table.expand(expression), self.insn.id)

    def _is_scaled_last(
        self, inner: np.dtype[Any], computed: np.dtype[Any], scaled: np.dtype[Any]
    ) -> bool:
        """Return whether a sum of one dtype is scaled and shifted in a wider dtype.

        Then C converts where a recipe does: it converts the sum before scaling it, and
        the value when it is stored. Conversions between factors would be at other
        points.
        """
        # raising moves a factor from outside a sum inside, and so before the conversion
        n_outer, n_factors = self.parts.n_outer, len(self.parts.factors)
        is_whole = n_outer == 0 if self.parts.inames else n_factors == 1
        return (
            is_whole
            and np.can_cast(inner, computed, "equiv")
            and {computed.kind, scaled.kind} == {"f"}
            and scaled.itemsize > computed.itemsize
        )

    def _check_order(self, computed: np.dtype[Any]) -> None:
        """Check that factors can be multiplied in any order, and before divisions.

        A product or quotient of narrow factors alone may wrap or round, even if the
        product with wider factors does not. A single operand of lower precision does no
        harm, since the generated code multiplies wider ones first.
        """
        if computed.kind in "biu":
            return
        scale, operands = (
            [f for f in factors if self._is_narrow(f, computed)]
            for factors in (self.parts.scale, self.parts.factors)
        )
        narrow = [*scale, *operands]
        kinds = {self._infer_dtype(factor).kind for factor in narrow}
        is_literal = all(isinstance(f, (int, np.integer)) for f in narrow)
        is_right = len(scale) <= 1 and (kinds <= {"f", "c"} or len(narrow) == 1)
        if is_literal or (is_right and not any(map(has_quotient, narrow))):
            return
        raise self.refuse(
            "output-dtype",
            f"it multiplies {', '.join(map(str, narrow))}, which C rounds or wraps "
            f"before it makes them {computed}",
        )

    def _is_narrow(self, factor: Expression, computed: np.dtype[Any]) -> bool:
        """Return whether a factor has fewer digits than the dtype ``computed``.

        Floating point literals take the precision of the other factors.
        """
        if isinstance(factor, (int, np.integer)):
            # changing the sign does not round
            return abs(factor) != 1
        if isinstance(factor, (float, complex)):
            return False
        expanded = self.table.expand(factor)
        dtype = self.table.infer_computed_dtype(expanded, self.insn.id)
        return dtype.kind in "biu" or get_eps(dtype) > get_eps(computed)


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
