"""One kernel in another form: sums for loops that add, values where they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from loopy.kernel.data import ConcurrentTag

from feinsum.errors import NotAnEinsumError
from feinsum.raising.functions import sized, without_tags
from feinsum.raising.normal.accumulations import with_shifts, with_sums
from feinsum.raising.normal.additions import with_single_sums
from feinsum.raising.normal.order import with_true_order
from feinsum.raising.normal.privates import with_kept_values, with_values_put_in
from feinsum.raising.normal.program import Program, is_plain
from feinsum.raising.normal.splits import with_joined_loops
from feinsum.raising.normal.subscripts import with_plain_subscripts
from feinsum.raising.normal.versions import with_own_versions
from feinsum.raising.operands import OperandTable

__all__ = ["is_no_op", "normalized", "without_no_ops"]

MOST_STEPS = 200

Refused: TypeAlias = Callable[[lp.TranslationUnit], frozenset[str]]
"""The instructions of a unit that are not einsums."""


def normalized(
    t_unit: lp.TranslationUnit, name: str, refused: Refused
) -> lp.TranslationUnit:
    """The kernel in a form in which raising finds more einsums; it computes the same.

    Loops that add to an entry become sums, private values are put in where they are
    read or kept for all iterations, and sums that are added get an instruction each.

    Args:
        refused: the instructions of a unit that are not einsums as they stand.

    Returns:
        the unit itself where it has what this would not survive: barriers, code in C,
        parallel loops, or bounds that it computes.
    """
    kernel = without_no_ops(t_unit[name])
    if not _can_be_rewritten(kernel):
        return t_unit
    program = with_joined_loops(_program(t_unit.with_kernel(kernel), name))
    program = with_own_versions(with_plain_subscripts(program))
    program = with_true_order(program)
    for _ in range(MOST_STEPS):
        done = _without_loops(program)
        if done.kernel is program.kernel:
            # kept values cost memory, so only what cannot be put in is kept
            done = with_kept_values(program)
        if done.kernel is program.kernel:
            break
        program = done
    done = with_single_sums(program, lambda k: refused(t_unit.with_kernel(k))).kernel
    unused = _loops(kernel) - _loops(done)
    return t_unit.with_kernel(lp.remove_unused_inames(done, unused))


def _loops(kernel: lp.LoopKernel) -> frozenset[str]:
    return frozenset[str]().union(
        *(i.within_inames | i.reduction_inames() for i in kernel.instructions)
    )


def _without_loops(program: Program) -> Program:
    return with_values_put_in(with_shifts(with_sums(program)))


def without_no_ops(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """The kernel without instructions that do nothing."""
    idle = {insn.id: None for insn in kernel.instructions if is_no_op(insn)}
    return Program(kernel).with_instructions(idle).kernel if idle else kernel


def is_no_op(insn: lp.InstructionBase) -> bool:
    """Whether an instruction does nothing: some programs mark places with these."""
    is_empty = isinstance(insn, lp.CInstruction) and not insn.code.strip(" \t\n;")
    return is_empty or isinstance(insn, lp.NoOpInstruction)


def _can_be_rewritten(kernel: lp.LoopKernel) -> bool:
    tags = (tag for iname in kernel.inames.values() for tag in iname.tags)
    return (
        not Program(kernel).parameters() & kernel.temporary_variables.keys()
        and all(isinstance(i, lp.MultiAssignmentBase) for i in kernel.instructions)
        and not any(insn.groups for insn in kernel.instructions)
        and not any(isinstance(tag, ConcurrentTag) for tag in tags)
    )


def _program(t_unit: lp.TranslationUnit, name: str) -> Program:
    """The kernel with what its dtypes say; tags of variables say nothing."""
    plain = t_unit.with_kernel(without_tags(t_unit[name]))
    typed = lp.infer_unknown_types(plain, expect_completion=False)
    kernel = typed[name]
    known = {}
    for variable in (*kernel.args, *kernel.temporary_variables.values()):
        dtype = getattr(variable.dtype, "numpy_dtype", None)
        if isinstance(dtype, np.dtype):
            known[variable.name] = dtype
    table = OperandTable(typed, kernel)
    plain_insns = [insn for insn in kernel.instructions if is_plain(insn)]
    exact = frozenset(i.id for i in plain_insns if _is_exact(i, table, known))
    summable = frozenset(
        i.id for i in plain_insns if _is_exact(_with_sized(i, known), table, known)
    )
    return Program(t_unit[name], known, exact, exact | summable)


def _with_sized(
    insn: lp.Assignment, known: Mapping[str, np.dtype[Any]]
) -> lp.Assignment:
    """An instruction with its literals outside of sums as the code has them."""
    assigned = known.get(insn.assignee_var_names()[0])
    if assigned is None or assigned.kind not in "fc":
        return insn
    return insn.copy(expression=sized(insn.expression, _digits(assigned)))


def _is_exact(
    insn: lp.Assignment, table: OperandTable, known: Mapping[str, np.dtype[Any]]
) -> bool:
    """Whether an instruction assigns a number, or its value without conversion.

    No part of it may be of another precision, for parts become sums of their own.
    """
    assigned = known.get(insn.assignee_var_names()[0])
    if assigned is None:
        return False
    if isinstance(insn.expression, (int, float)):
        return bool(assigned.type(insn.expression) == insn.expression)
    read = {known[name] for name in table.reads(insn.expression) & known.keys()}
    if any(
        dtype.kind in "fc" and _digits(dtype) != _digits(assigned) for dtype in read
    ):
        return False
    try:
        return table.dtype(table.expand(insn.expression), insn.id) == assigned
    except NotAnEinsumError:
        return False


def _digits(dtype: np.dtype[Any]) -> Any:
    """The dtype of the parts of numbers; the dtype itself for integers."""
    return np.empty(0, dtype).real.dtype
