"""The instruction that fills an output with zeros before it is added to."""

from __future__ import annotations

import loopy as lp

from feinsum.raising.hazards import ancestors
from feinsum.raising.privates import is_zero

__all__ = ["filled_by"]


def filled_by(
    insn: lp.Assignment, output: str, kernel: lp.LoopKernel
) -> lp.Assignment | None:
    """Who fills the output of an instruction with zeros, always and before it.

    None if others write it, too, or if others may read it before the instruction: then
    zeros have to be where they are.
    """
    others = [
        other
        for other in kernel.instructions
        if output in other.dependency_names() and other.id != insn.id
    ]
    writers = [o for o in others if output in o.assignee_var_names()]
    if len(writers) != 1:
        return None
    (first,) = writers
    is_fill = (
        isinstance(first, lp.Assignment)
        and not first.predicates
        and is_zero(first.expression)
        and first.id in ancestors(kernel, insn.id)
    )
    are_later = all(insn.id in ancestors(kernel, o.id) for o in others if o != first)
    return first if is_fill and are_later else None
