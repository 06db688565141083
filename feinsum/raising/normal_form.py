"""The form of a kernel in which raising finds most einsums.

Programs write sums as loops that add, keep values in private variables, and order
instructions that exchange nothing. :func:`normalize_kernel` undoes this in a few
rewrites, each of a :class:`RewrittenKernel` to an equivalent one ::

    with_joined_loops      v[10*e_outer + e_inner]  -->  v[e]
    with_plain_subscripts  A[0 + j*1]               -->  A[j]
    with_own_versions      t = ...; t = 2*t         -->  t = ...; t_0 = 2*t
    with_true_order        needless dependencies    -->  none

    with_sums              loops that add           -->  sums          repeated until
    with_shifts            out = 0; out = out + s   -->  out = s       nothing changes
    with_values_put_in     t = 2*y; out = t*z       -->  out = 2*y*z
    with_kept_values       t[q] in a loop over e    -->  t_all[e, q]   as a last resort

    with_single_sums       out = s + t              -->  out = s; out = out + t
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import loopy as lp
import numpy as np
from loopy.kernel.data import ConcurrentTag
from loopy.symbolic import IdentityMapper
from pymbolic import primitives as p

from feinsum.dtypes import is_inexact
from feinsum.errors import NotAnEinsumError
from feinsum.raising.accumulations import (
    find_added,
    with_shifts,
    with_single_sums,
    with_sums,
)
from feinsum.raising.affine import parse_affine
from feinsum.raising.dependences import get_storage, have_own_entries
from feinsum.raising.expressions import (
    Expression,
    Subscripts,
    collect_loops,
    get_subscripts,
    rewrite_accesses,
)
from feinsum.raising.functions import set_literal_dtypes
from feinsum.raising.loops import with_joined_loops
from feinsum.raising.operands import OperandTable
from feinsum.raising.rewriting import RewrittenKernel, is_plain, without_no_ops
from feinsum.raising.temporaries import (
    find_covering_inames,
    with_kept_values,
    with_values_put_in,
)

MOST_STEPS = 200


def normalize_kernel(
    t_unit: lp.TranslationUnit,
    typed: lp.TranslationUnit,
    name: str,
    refused: Callable[[lp.TranslationUnit], frozenset[str]],
) -> lp.TranslationUnit:
    """Rewrite a kernel into an equivalent form in which raising finds more einsums.

    Loops that add to an entry become sums, private values are inlined or kept for all
    iterations, and sums that are added get an instruction each.

    Args:
        t_unit: the unit with the kernel.
        typed: the same with its dtypes inferred and without tags.
        name: the name of the kernel.
        refused: returns the ids of a unit's instructions that are not yet einsums.

    Returns:
        The rewritten unit; the given one if it has barriers, code in C, parallel loops,
        or computed loop bounds, which cannot be rewritten.
    """
    kernel = without_no_ops(t_unit[name])
    if not _can_be_rewritten(kernel):
        return t_unit
    # join loops first, since split loops hide the loop of an axis
    program = with_joined_loops(_build_program(kernel, typed))
    program = with_own_versions(with_plain_subscripts(program))
    # a needless dependency would keep loops together
    program = with_true_order(program)
    for _ in range(MOST_STEPS):
        rewritten = with_values_put_in(with_shifts(with_sums(program)))
        if rewritten.kernel is program.kernel:
            # arrays cost memory, so keep only values that cannot be inlined
            rewritten = with_kept_values(program)
        if rewritten.kernel is program.kernel:
            break
        program = rewritten
    rewritten = with_single_sums(
        program, lambda k: refused(t_unit.with_kernel(k))
    ).kernel
    # the domains still have the loops of removed instructions
    unused = collect_loops(*kernel.instructions) - collect_loops(
        *rewritten.instructions
    )
    return t_unit.with_kernel(lp.remove_unused_inames(rewritten, unused))


def _can_be_rewritten(kernel: lp.LoopKernel) -> bool:
    tags = (tag for iname in kernel.inames.values() for tag in iname.tags)
    return (
        # a computed bound may change between the old and new position of an instruction
        not RewrittenKernel(kernel).parameters() & kernel.temporary_variables.keys()
        and all(isinstance(i, lp.MultiAssignmentBase) for i in kernel.instructions)
        and not any(insn.groups for insn in kernel.instructions)
        and not any(isinstance(tag, ConcurrentTag) for tag in tags)
    )


def _build_program(kernel: lp.LoopKernel, typed: lp.TranslationUnit) -> RewrittenKernel:
    """Build the program to rewrite, with dtypes and exact instructions as typed."""
    typed_kernel = without_no_ops(typed[kernel.name])
    dtypes = {}
    for variable in (*typed_kernel.args, *typed_kernel.temporary_variables.values()):
        dtype = getattr(variable.dtype, "numpy_dtype", None)
        if isinstance(dtype, np.dtype):
            dtypes[variable.name] = dtype
    table = OperandTable(typed, typed_kernel)
    plain_insns = [insn for insn in typed_kernel.instructions if is_plain(insn)]
    # a rewritten kernel would drop or move conversions: find instructions without any
    exact = frozenset(i.id for i in plain_insns if _is_exact(i, table, dtypes))
    summable = frozenset(
        i.id for i in plain_insns if _is_exact(_with_sized(i, dtypes), table, dtypes)
    )
    return RewrittenKernel(kernel, dtypes, exact, exact | summable)


def _with_sized(
    insn: lp.Assignment, dtypes: Mapping[str, np.dtype[Any]]
) -> lp.Assignment:
    """Give the literals outside sums the precision of the assignee."""
    assigned = dtypes.get(insn.assignee_var_names()[0])
    if assigned is None or not is_inexact(assigned):
        return insn
    return insn.copy(
        expression=set_literal_dtypes(insn.expression, _get_real_dtype(assigned))
    )


def _is_exact(
    insn: lp.Assignment, table: OperandTable, dtypes: Mapping[str, np.dtype[Any]]
) -> bool:
    """Return whether an instruction assigns its value without a conversion.

    No subexpression may have another precision, since it may become a separate sum.
    """
    assigned = dtypes.get(insn.assignee_var_names()[0])
    if assigned is None:
        return False
    # a literal is exact if its digits fit
    if isinstance(insn.expression, (int, float)):
        return bool(assigned.type(insn.expression) == insn.expression)
    read = {dtypes[name] for name in table.reads(insn.expression) & dtypes.keys()}
    if any(
        is_inexact(dtype) and _get_real_dtype(dtype) != _get_real_dtype(assigned)
        for dtype in read
    ):
        return False
    try:
        return table.dtype(table.expand(insn.expression), insn.id) == assigned
    except NotAnEinsumError:
        return False


def _get_real_dtype(dtype: np.dtype[Any]) -> Any:
    """Return the dtype of the real part; for real dtypes, the dtype itself."""
    return np.empty(0, dtype).real.dtype


def with_true_order(program: RewrittenKernel) -> RewrittenKernel:
    """Make instructions depend only on those with which they exchange data.

    A needless dependency would keep loops together that can be separated.

    Rewrite::

        t = 2*x[0]      {id=a}           t = 2*x[0]      {id=a}
        u[i] = y[i]     {id=b,dep=a}     u[i] = y[i]     {id=b}
        v[i] = t*z[i]   {id=c,dep=b}     v[i] = t*z[i]   {id=c,dep=a}
    """
    kernel = program.kernel
    changed = {}
    for insn in kernel.instructions:
        # of all transitive dependencies, keep those that exchange something
        needed = frozenset(
            other
            for other in program.before[insn.id]
            if _may_conflict(program, insn, kernel.id_to_insn[other])
        )
        changed[insn.id] = insn.copy(depends_on=needed, depends_on_is_final=True)
    return program.with_instructions(changed)


def _may_conflict(
    program: RewrittenKernel, first: lp.InstructionBase, second: lp.InstructionBase
) -> bool:
    """Return whether the order of two instructions may matter, judged by subscripts."""
    if not (isinstance(first, lp.Assignment) and isinstance(second, lp.Assignment)):
        return True
    kernel = program.kernel
    written, theirs = (
        get_storage(kernel, insn.assignee_var_names()) for insn in (first, second)
    )
    read, their_reads = (
        get_storage(kernel, program.reads[insn.id]) for insn in (first, second)
    )
    shared = (written & (theirs | their_reads)) | (theirs & read)
    return not all(program.never_meet(first.id, second.id, name) for name in shared)


def with_plain_subscripts(program: RewrittenKernel) -> RewrittenKernel:
    """Simplify subscripts without changing their values.

    Rewrite::

        A[0 + j*1, 3 + 0*k] = t[()]

        A[j, 3] = t
    """
    kernel = program.kernel
    plain = _Plainer(kernel.all_inames())
    changed = [insn.with_transformed_expressions(plain) for insn in kernel.instructions]
    return replace(program, kernel=kernel.copy(instructions=changed))


class _Plainer(IdentityMapper):  # type: ignore[misc]
    """Simplifies subscripts that are sums of multiples of inames."""

    def __init__(self, inames: Collection[str]) -> None:
        super().__init__()
        self.inames = inames

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        indices = tuple(map(self._simplify, expr.index_tuple))
        array = self.rec(expr.aggregate)
        return p.Subscript(array, indices) if indices else array

    def _simplify(self, index: Expression) -> Expression:
        sum_ = parse_affine(index, self.inames)
        return self.rec(index) if sum_ is None else sum_.expression()


def with_own_versions(program: RewrittenKernel) -> RewrittenKernel:
    """Give each assignment of a whole private value a separate variable.

    Rewrite::

        for i:  t = y[i]               for i:  t = y[i]
                u[i] = t                       u[i] = t
                t = 2*t                        t_0 = 2*t
                v[i] = t*z[i]                  v[i] = t_0*z[i]
    """
    for name in sorted(program.privates):
        # each assignment of the whole value starts a new version
        starts = _list_starts(name, program)
        if len(starts) > 1 and _are_apart(name, starts, program):
            program = _rename_versions(name, starts, program)
    return program


def _list_starts(name: str, program: RewrittenKernel) -> list[str]:
    """Return the instructions that assign all entries, in execution order."""
    kernel = program.kernel
    writers = [kernel.id_to_insn[i] for i in program.writers.get(name, ())]
    starts = [
        insn.id
        for insn in writers
        if find_covering_inames(name, insn, program) is not None
        and find_added(insn, program) is None
    ]
    return sorted(starts, key=lambda i: len(program.before[i] & {*starts}))


def _are_apart(name: str, starts: Sequence[str], program: RewrittenKernel) -> bool:
    """Return whether each instruction accesses one version only, in one iteration."""
    kernel = program.kernel
    first, *later = (kernel.id_to_insn[i] for i in starts)
    around = _find_outer_loops(name, first, program)
    touching = program.touching[name]
    return (
        name not in program.reads[first.id]
        and all(_find_outer_loops(name, insn, program) == around for insn in later)
        and all(
            read == get_subscripts(insn.assignee)
            for insn in later
            for read in program.accesses(insn.id, name)
        )
        and all(around <= kernel.id_to_insn[i].within_inames for i in touching)
        and all(
            (start in program.before[other] or other in program.before[start])
            and _is_whole_access(name, kernel.id_to_insn[start], other, program)
            for start in starts
            for other in touching - {start}
        )
        and all(first.id in program.before[i] for i in touching - {first.id})
    )


def _is_whole_access(
    name: str, start: lp.Assignment, other: str, program: RewrittenKernel
) -> bool:
    """Return whether an instruction accesses a complete version of a value.

    It may also access only the entry that the same iteration assigns.
    """
    inner = start.within_inames - _find_outer_loops(name, start, program)
    shared = inner & program.kernel.id_to_insn[other].within_inames
    accesses = [*program.accesses(other, name), get_subscripts(start.assignee)]
    return not shared or have_own_entries(accesses, shared)


def _find_outer_loops(
    name: str, insn: lp.Assignment, program: RewrittenKernel
) -> frozenset[str]:
    """Return the loops around the assignment of a whole value."""
    return frozenset(
        insn.within_inames - {*(find_covering_inames(name, insn, program) or ())}
    )


def _rename_versions(
    name: str, starts: Sequence[str], program: RewrittenKernel
) -> RewrittenKernel:
    kernel = program.kernel
    # the first version keeps the name
    fresh = kernel.get_var_name_generator()
    names = [name, *(str(fresh(name)) for _ in starts[1:])]

    def rename_in_version(expression: Expression, version: int) -> Expression:
        def rename_entry(subscripts: Subscripts) -> Expression:
            version_name = p.Variable(names[version])
            return version_name[subscripts] if subscripts else version_name

        return rewrite_accesses(expression, name, rename_entry)

    changed = {}
    for insn_id in program.touching[name]:
        insn = kernel.id_to_insn[insn_id]
        read = len(program.before[insn_id] & {*starts}) - 1
        written = starts.index(insn_id) if insn_id in starts else read
        changed[insn_id] = insn.copy(
            assignee=rename_in_version(insn.assignee, written),
            expression=rename_in_version(insn.expression, max(read, 0)),
        )
    temporaries = kernel.temporary_variables
    versions = {
        version_name: temporaries[name].copy(name=version_name)
        for version_name in names[1:]
    }
    program = program.with_instructions(
        changed, temporary_variables={**temporaries, **versions}
    )
    if name not in program.dtypes:
        return program
    dtypes = dict.fromkeys(versions, program.dtypes[name])
    return replace(program, dtypes={**program.dtypes, **dtypes})
