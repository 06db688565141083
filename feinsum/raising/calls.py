"""Kernels that a kernel calls."""

from __future__ import annotations

import loopy as lp

__all__ = ["called_by", "called_kernels"]


def called_kernels(t_unit: lp.TranslationUnit, name: str) -> tuple[str, ...]:
    """The kernels of a unit that one of them calls, in the order of instructions."""
    instructions = t_unit[name].instructions
    found = (called_by(insn, t_unit) for insn in instructions)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def called_by(insn: lp.InstructionBase, t_unit: lp.TranslationUnit) -> str | None:
    """The kernel of a unit that an instruction calls, if it does."""
    if not isinstance(insn, lp.CallInstruction):
        return None
    function = getattr(insn.expression, "function", None)
    name = getattr(function, "name", None)  # reductions of several values have none
    is_kernel = isinstance(t_unit.callables_table.get(name), lp.CallableKernel)
    return str(name) if is_kernel else None
