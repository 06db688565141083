"""Loop bounds that a kernel keeps in private scalars, though they are constants."""

from __future__ import annotations

import islpy as isl
import loopy as lp
import numpy as np
from loopy.symbolic import get_dependencies
from pymbolic import evaluate

__all__ = ["fold_constant_bounds"]


def fold_constant_bounds(
    t_unit: lp.TranslationUnit, kernel_name: str
) -> lp.TranslationUnit:
    """The kernel with its constant bounds as numbers.

    A bound is a constant if a single instruction assigns it, unconditionally and
    outside of all loops, an integer. That instruction is removed.

    Rewrite::

        n = 6
        for j < n:  f(j)

        for j < 6:  f(j)
    """
    kernel = t_unit[kernel_name]
    bounds = {
        name
        for domain in kernel.domains
        for name in domain.get_var_names(isl.dim_type.param)
    }
    for name in sorted(bounds & set(kernel.temporary_variables)):
        writers = [i for i in kernel.instructions if name in i.assignee_var_names()]
        if len(writers) == 1 and (value := _constant(writers[0])) is not None:
            kernel = _with_value(kernel, name, value, writers[0].id)
    return t_unit.with_kernel(kernel)


def _constant(insn: lp.InstructionBase) -> int | None:
    """What an instruction assigns, if that is an integer in any case."""
    is_plain = isinstance(insn, lp.Assignment) and not insn.atomicity
    if not is_plain or insn.predicates or insn.within_inames:
        return None
    if get_dependencies(insn.expression):
        return None
    value = evaluate(insn.expression)
    return int(value) if isinstance(value, (int, np.integer)) else None


def _with_value(
    kernel: lp.LoopKernel, name: str, value: int, writer: str
) -> lp.LoopKernel:
    """The kernel without the scalar and the instruction that assigns it."""
    kernel = lp.remove_instructions(kernel, {writer})
    scalars = dict(kernel.temporary_variables)
    del scalars[name]
    return lp.fix_parameters(
        kernel.copy(temporary_variables=scalars), within=None, **{name: value}
    )
