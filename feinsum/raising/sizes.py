"""Loop bounds that a kernel keeps in private scalars, though they are constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import islpy as isl
import loopy as lp
import numpy as np
from loopy.kernel.array import ArrayBase
from loopy.symbolic import SubstitutionRuleExpander, get_dependencies
from pymbolic import evaluate
from pymbolic.mapper import UnsupportedExpressionError

from feinsum.raising.hazards import ancestors
from feinsum.raising.nest import Expression

__all__ = ["fold_constant_bounds"]


def fold_constant_bounds(
    t_unit: lp.TranslationUnit, kernel_name: str
) -> lp.TranslationUnit:
    """The kernel with its constant bounds as numbers.

    A bound is a constant if a single instruction assigns it, unconditionally, an
    integer. That instruction is removed. If it stands in loops, then all that uses
    the bound must stand in these loops as well, and depend on it: who reads it reads
    what was just assigned.

    Rewrite::

        for i < m:            for i < m:
            n = 6                 for j < 6:  f(i, j)
            for j < n:  f(i, j)
    """
    kernel = t_unit[kernel_name]
    while values := _constants(kernel):
        kernel = _with_values(kernel, values)
    return t_unit.with_kernel(kernel)


def _constants(kernel: lp.LoopKernel) -> dict[str, tuple[str, int]]:
    """By bound that is a constant: the instruction that assigns it, and its value."""
    params = [domain.get_var_names(isl.dim_type.param) for domain in kernel.domains]
    names = set[str]().union(*params) & set(kernel.temporary_variables)
    if not names:
        return {}
    users = _users(names, kernel)
    constants = {}
    for name in sorted(names):
        writers = [i for i in kernel.instructions if name in i.assignee_var_names()]
        if len(writers) != 1 or not _is_seen_by_all(writers[0], users[name], kernel):
            continue
        value = _constant(writers[0])
        if value is not None and _fits(value, kernel.temporary_variables[name]):
            constants[name] = writers[0].id, value
    return constants


def _is_seen_by_all(
    writer: lp.InstructionBase,
    users: Sequence[lp.InstructionBase],
    kernel: lp.LoopKernel,
) -> bool:
    """Whether all that uses a scalar runs after its writer, in every iteration.

    What is written in C is not looked into, so nothing that it may read is taken away.
    """
    if any(isinstance(user, lp.CInstruction) for user in users):
        return False
    return not writer.within_inames or all(
        writer.within_inames <= user.within_inames
        and writer.id in ancestors(kernel, user.id)
        for user in users
        if user.id != writer.id
    )


def _users(
    names: Collection[str], kernel: lp.LoopKernel
) -> dict[str, list[lp.InstructionBase]]:
    """Instructions that read a scalar, or have it in the bounds of their loops."""
    expand = SubstitutionRuleExpander(kernel.substitutions)
    users: dict[str, list[lp.InstructionBase]] = {name: [] for name in names}
    for insn in kernel.instructions:
        expanded = insn.with_transformed_expressions(expand)
        loops = frozenset(insn.within_inames | expanded.reduction_inames())
        bounds = kernel.get_inames_domain(loops).get_var_names(isl.dim_type.param)
        for name in users.keys() & (expanded.dependency_names() | set(bounds)):
            users[name].append(insn)
    return users


def _constant(insn: lp.InstructionBase) -> int | None:
    """The value that an instruction assigns, if it is always the same integer."""
    is_plain = isinstance(insn, lp.Assignment) and not insn.atomicity
    if not is_plain or insn.predicates:
        return None
    if get_dependencies(insn.expression):
        return None
    try:
        value = evaluate(insn.expression)
    except (UnsupportedExpressionError, ArithmeticError):
        return None
    return int(value) if isinstance(value, (int, np.integer)) else None


def _fits(value: int, scalar: lp.TemporaryVariable) -> bool:
    """Whether a scalar keeps the value; Loopy chooses a dtype that does."""
    dtype = getattr(scalar.dtype, "numpy_dtype", None)
    if dtype is None:
        return True
    if dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


def _with_values(
    kernel: lp.LoopKernel, values: Mapping[str, tuple[str, int]]
) -> lp.LoopKernel:
    """The kernel without these scalars and the instructions that assign them.

    Most are in domains only; putting them into all expressions is slow.
    """
    kernel = lp.remove_instructions(kernel, {writer for writer, _ in values.values()})
    scalars = {n: s for n, s in kernel.temporary_variables.items() if n not in values}
    kernel = kernel.copy(temporary_variables=scalars)
    numbers = {name: value for name, (_, value) in values.items()}
    in_text = _names_in_expressions(kernel)
    named = {name: x for name, x in numbers.items() if name in in_text}
    if named:
        kernel = lp.fix_parameters(kernel, within=None, **named)
    return kernel.copy(domains=[_with_numbers(d, numbers) for d in kernel.domains])


def _names_in_expressions(kernel: lp.LoopKernel) -> frozenset[str]:
    """Every name that is read other than by the domains of loops."""
    insns = [insn.dependency_names() for insn in kernel.instructions]
    rules = [get_dependencies(r.expression) for r in kernel.substitutions.values()]
    shapes: set[str] = set()

    def collect(expression: Expression) -> Expression:
        shapes.update(get_dependencies(expression))
        return expression

    for array in (*kernel.args, *kernel.temporary_variables.values()):
        if isinstance(array, ArrayBase):
            array.map_exprs(collect)
    assumed = set(kernel.assumptions.get_var_names(isl.dim_type.param))
    return frozenset[str]().union(*insns, *rules, shapes, assumed)


def _with_numbers(domain: isl.BasicSet, numbers: Mapping[str, int]) -> isl.BasicSet:
    for name in numbers.keys() & set(domain.get_var_names(isl.dim_type.param)):
        kind, place = domain.get_var_dict()[name]
        domain = domain.fix_val(kind, place, numbers[name]).project_out(kind, place, 1)
    return domain
