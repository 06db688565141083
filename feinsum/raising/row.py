"""One instruction, read as one row of a functional batched einsum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import loopy as lp
import numpy as np
from loopy.kernel.data import ConcurrentTag
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import Extent, IndexList
from feinsum.raising.extents import box_extents
from feinsum.raising.nest import Expression
from feinsum.raising.operands import Access, OperandTable, unresolved
from feinsum.raising.product import (
    ScaledSum,
    has_quotient,
    has_reduction,
    multiply,
    take_apart,
)

__all__ = ["RaisedRow", "raise_row"]


@dataclass(frozen=True)
class RaisedRow:
    """What one instruction computes, in the kernel's own names."""

    instruction: str
    assignee: Expression
    output: IndexList
    summed: frozenset[str]
    accesses: tuple[Access, ...]
    scale: Expression
    extents: Mapping[str, Extent]

    @property
    def pattern(self) -> tuple[object, ...]:
        """Equal for instructions that can be rows of one batch."""
        terms = tuple(sorted(access.term for access in self.accesses))
        return self.output, self.summed, terms


def raise_row(insn: lp.InstructionBase, table: OperandTable) -> RaisedRow:
    """Read an instruction as a row.

    Raises:
        NotAnEinsumError: naming the instruction and the rule broken.
    """
    kernel = table.kernel
    output = _output_indices(insn, kernel)
    parts = take_apart(insn.expression, table.is_operand, insn.id)
    inames = frozenset(output) | frozenset(parts.inames)
    _check_tags(insn, kernel, inames)
    if has_reduction(table.expand(multiply(parts.scale))):
        raise _refuse(insn, "nested-reduction", "its scale contains a reduction")
    if not parts.factors:
        raise _refuse(insn, "no-operand", "its value depends on no operand")
    extents = box_extents(kernel, inames, insn.id)
    accesses = tuple(table.access(f, extents, insn.id) for f in parts.factors)
    _check_summed(insn, parts.inames, accesses)
    _check_bound(insn, output, accesses)
    _check_dtypes(insn, table, parts, accesses)
    scale = unresolved(multiply(parts.scale))
    _check_reads(insn, kernel, table, (*parts.factors, scale), inames)
    return RaisedRow(
        insn.id,
        insn.assignee,
        output,
        frozenset(parts.inames),
        accesses,
        scale,
        extents,
    )


def _output_indices(insn: lp.InstructionBase, kernel: lp.LoopKernel) -> IndexList:
    if not isinstance(insn, lp.Assignment):
        raise _refuse(insn, "instruction-kind", f"it is a {type(insn).__name__}")
    if insn.predicates:
        raise _refuse(insn, "predicate", f"it has predicates {set(insn.predicates)}")
    if insn.atomicity:
        raise _refuse(insn, "atomic", "it is an atomic update")
    assignee = insn.assignee
    if not isinstance(assignee, (p.Variable, p.Subscript)):
        raise _refuse(insn, "assignee", f"it assigns to {assignee}")
    indices = getattr(assignee, "index_tuple", ())
    names = tuple(i.name for i in indices if isinstance(i, p.Variable))
    is_plain = len(names) == len(indices) == len(set(names))
    if not is_plain or not set(names) <= kernel.all_inames():
        raise _refuse(
            insn, "assignee", f"it assigns to {assignee}; expected distinct inames"
        )
    if set(names) != insn.within_inames:
        extra = sorted(insn.within_inames - set(names))
        raise _refuse(
            insn, "race", f"it writes {assignee} in every iteration of {extra}"
        )
    return names


def _check_tags(
    insn: lp.InstructionBase, kernel: lp.LoopKernel, inames: frozenset[str]
) -> None:
    for iname in sorted(inames):
        tags = [t for t in kernel.inames[iname].tags if isinstance(t, ConcurrentTag)]
        if tags:
            raise _refuse(
                insn, "parallel-iname", f"its iname {iname!r} is already tagged {tags}"
            )


def _check_summed(
    insn: lp.InstructionBase, summed: tuple[str, ...], accesses: tuple[Access, ...]
) -> None:
    bound = {iname for access in accesses for iname in access.term}
    for iname in summed:
        if iname not in bound:
            raise _refuse(
                insn, "unbound-sum", f"it sums over {iname!r}, on which nothing depends"
            )
        if iname in insn.within_inames:
            raise _refuse(insn, "unbound-sum", f"it sums over its own loop {iname!r}")


def _check_bound(
    insn: lp.InstructionBase, output: IndexList, accesses: tuple[Access, ...]
) -> None:
    bound = {iname for access in accesses for iname in access.term}
    for iname in output:
        if iname not in bound:
            raise _refuse(
                insn, "broadcast", f"no operand depends on its output index {iname!r}"
            )


def _check_dtypes(
    insn: lp.InstructionBase,
    table: OperandTable,
    parts: ScaledSum,
    accesses: tuple[Access, ...],
) -> None:
    """Operands, their product with the scale, and the result are of one dtype.

    Otherwise the kernel rounds or wraps where the einsum does not.
    """
    dtypes = {access.operand.dtype for access in accesses}
    computed = np.result_type(*dtypes)
    if computed.kind in "biu" and (len(dtypes) > 1 or _divides(parts.scale)):
        raise _refuse(
            insn, "output-dtype", "it mixes or divides integers, which C rounds"
        )
    product = table.expand(multiply((*parts.scale, *parts.factors)))
    scaled = table.dtype(product, insn.id)
    name = insn.assignee_var_names()[0]
    declared = getattr(table.kernel.get_var_descriptor(name).dtype, "numpy_dtype", None)
    for dtype, what in ((scaled, "its scale makes"), (declared, f"{name!r} has")):
        if dtype is not None and not np.can_cast(dtype, computed, "equiv"):
            raise _refuse(
                insn,
                "output-dtype",
                f"its operands make {computed}, but {what} the dtype {dtype}",
            )


def _divides(scale: tuple[Expression, ...]) -> bool:
    return any(has_quotient(factor) for factor in scale)


def _check_reads(
    insn: lp.InstructionBase,
    kernel: lp.LoopKernel,
    table: OperandTable,
    expressions: tuple[Expression, ...],
    inames: frozenset[str],
) -> None:
    """No operand may change while the nest runs."""
    reads = frozenset[str]().union(*(table.reads(e) for e in expressions))
    for other in kernel.instructions:
        written = reads & set(other.assignee_var_names())
        if written and (other.id == insn.id or inames & other.within_inames):
            raise _refuse(
                insn,
                "operand-written",
                f"it reads {sorted(written)}, which instruction {other.id!r} writes "
                "in the same loops",
            )


def _refuse(insn: lp.InstructionBase, rule: str, what: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"instruction {insn.id!r}: {what}", rule=rule, instructions=(insn.id,)
    )
