"""Dependencies that say no more than the data do."""

from __future__ import annotations

import loopy as lp

from feinsum.raising.memory import storage
from feinsum.raising.normal.program import Program

__all__ = ["with_true_order"]


def with_true_order(program: Program) -> Program:
    """Assignments wait for those alone whose data they need, or whose data they change.

    An order that nothing depends on would keep loops together that can be taken apart.

    Rewrite::

        t = 2*x[0]      {id=a}           t = 2*x[0]      {id=a}
        u[i] = y[i]     {id=b,dep=a}     u[i] = y[i]     {id=b}
        v[i] = t*z[i]   {id=c,dep=b}     v[i] = t*z[i]   {id=c,dep=a}
    """
    kernel = program.kernel
    changed = {}
    for insn in kernel.instructions:
        needed = frozenset(
            other
            for other in program.before[insn.id]
            if _conflict(program, insn, kernel.id_to_insn[other])
        )
        changed[insn.id] = insn.copy(depends_on=needed, depends_on_is_final=True)
    return program.with_instructions(changed)


def _conflict(
    program: Program, one: lp.InstructionBase, other: lp.InstructionBase
) -> bool:
    """Whether the order of two instructions matters, as far as subscripts tell."""
    if not (isinstance(one, lp.Assignment) and isinstance(other, lp.Assignment)):
        return True
    kernel = program.kernel
    written, theirs = (
        storage(kernel, insn.assignee_var_names()) for insn in (one, other)
    )
    read, their_reads = (
        storage(kernel, program.reads[insn.id]) for insn in (one, other)
    )
    shared = (written & (theirs | their_reads)) | (theirs & read)
    return not all(program.never_meet(one.id, other.id, name) for name in shared)
