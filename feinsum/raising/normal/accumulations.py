"""Loops that add to an entry are sums; what an entry begins with is their shift."""

from __future__ import annotations

import islpy as isl
import loopy as lp
from loopy.symbolic import Reduction, SubstitutionMapper, get_dependencies
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.errors import NotAnEinsumError
from feinsum.raising.extents import box_extents
from feinsum.raising.memory import have_own_entries, subscripts_of
from feinsum.raising.nest import Expression
from feinsum.raising.normal.program import Program, is_plain, terms_of

__all__ = ["is_accumulation", "with_shifts", "with_sums"]


def with_sums(program: Program) -> Program:
    """Every accumulation over loops that nothing else needs, as a sum.

    Rewrite::

        for i, j:  out[i] = out[i] + A[i,j]*x[j]

        for i:  out[i] = out[i] + sum(j, A[i,j]*x[j])
    """
    for insn_id in program.kernel.id_to_insn:
        insn = program.kernel.id_to_insn[insn_id]
        if (found := _accumulated(insn, program)) is not None:
            program = _as_sum(insn, *found, program)
    return program


def _accumulated(
    insn: lp.InstructionBase, program: Program
) -> tuple[frozenset[str], Expression] | None:
    """The loops over which an instruction adds, and what it adds."""
    parts = _own_and_added(insn, program)
    if parts is None:
        return None
    kernel = program.kernel
    (name,) = insn.assignee_var_names()
    others = program.touching[name] - {insn.id}
    shared = frozenset[str]().union(
        *(
            kernel.id_to_insn[other].within_inames
            for other in others
            if not program.never_meet(insn.id, other, name)
        )
    )
    loops = insn.within_inames - get_dependencies(insn.assignee) - shared
    is_free = (
        loops
        and not _bounds_others(kernel, loops, insn.within_inames - loops)
        and not any(kernel.inames[iname].tags for iname in loops)
    )
    if not is_free or not _keeps(insn, loops, program):
        return None
    return loops, parts[1]


def _own_and_added(
    insn: lp.InstructionBase, program: Program
) -> tuple[Expression, Expression] | None:
    """The assignee of an instruction, and the term that it adds."""
    if not is_plain(insn) or insn.id not in program.exact:
        return None
    terms = terms_of(insn.expression)
    others = [term for term in terms if term != insn.assignee]
    if len(others) != len(terms) - 1 or not others:
        return None
    added = others[0] if len(others) == 1 else p.Sum(tuple(others))
    (name,) = insn.assignee_var_names()
    is_sum = program.is_inexact(added) and name not in program.names(added)
    return (insn.assignee, added) if is_sum else None


def is_accumulation(insn: lp.InstructionBase, program: Program) -> bool:
    """Whether an instruction adds to what it assigns to, and does nothing else."""
    return _own_and_added(insn, program) is not None


def _bounds_others(
    kernel: lp.LoopKernel, loops: frozenset[str], others: frozenset[str]
) -> bool:
    """Whether loops stand in the bounds of others."""
    domain = kernel.get_inames_domain(others) if others else None
    names = domain.get_var_names(isl.dim_type.param) if domain is not None else ()
    return bool(loops & set(names))


def _keeps(insn: lp.Assignment, loops: frozenset[str], program: Program) -> bool:
    """Whether what is read in ``loops`` stays what it is until they are done.

    Each iteration may read what was written in it, if no other one writes that.
    """
    kernel = program.kernel
    read = program.reads[insn.id] - set(insn.assignee_var_names())
    for writer in sorted(program.writers_in_storage(read) - {insn.id}):
        other = kernel.id_to_insn[writer]
        common = loops & other.within_inames
        if not common:
            continue
        if writer not in program.before[insn.id] or not is_plain(other):
            return False
        (name,) = other.assignee_var_names()
        accesses = [*program.accesses(insn.id, name), *program.accesses(writer, name)]
        is_alone = program.writers[name] == (writer,)
        if not is_alone or not have_own_entries(accesses, common):
            return False
    return True


def _as_sum(
    insn: lp.Assignment, loops: frozenset[str], added: Expression, program: Program
) -> Program:
    value = p.Sum((insn.assignee, Reduction("sum", tuple(sorted(loops)), added)))
    changed = insn.copy(expression=value, within_inames=insn.within_inames - loops)
    program = program.with_instructions({insn.id: changed})
    return program.with_own_sums(insn.id)


def with_shifts(program: Program) -> Program:
    """Sums that begin with a value that another instruction assigned.

    Rewrite::

        for i:  out[i] = 0
        for j:  out[j] = out[j] + sum(k, A[j,k])

        for j:  out[j] = sum(k, A[j,k])
    """
    for insn_id in program.kernel.id_to_insn:
        insn = program.find(insn_id)
        if insn and (first := _beginning(insn, program)) is not None:
            program = _begun(insn, first, program)
    return program


def _beginning(insn: lp.InstructionBase, program: Program) -> lp.Assignment | None:
    """The instruction that gives the entries their first value, if no one else reads
    or writes them before ``insn`` does.
    """
    if _own_and_added(insn, program) is None:
        return None
    kernel = program.kernel
    (name,) = insn.assignee_var_names()
    if name in program.in_rules:
        return None
    others = program.touching[name] - {insn.id}
    firsts = [o for o in others if o in program.before[insn.id]]
    if len(firsts) != 1 or any(
        insn.id not in program.before[other] for other in others - {*firsts}
    ):
        return None
    first = kernel.id_to_insn[firsts[0]]
    is_first = (
        is_plain(first)
        and first.id in program.exact
        and name not in program.reads[first.id]
        and not program.names(first.expression) & program.writers.keys()
        and _renaming(first, insn, program) is not None
    )
    return first if is_first else None


def _renaming(
    first: lp.Assignment, insn: lp.Assignment, program: Program
) -> dict[str, str] | None:
    """The inames of ``insn`` that stand for those of ``first``, if both run over the
    same entries in the same iterations.
    """
    mine, theirs = subscripts_of(insn.assignee), subscripts_of(first.assignee)
    if len(mine) != len(theirs):
        return None
    names: dict[str, str] = {}
    for a, b in zip(theirs, mine, strict=True):
        if isinstance(a, p.Variable) and isinstance(b, p.Variable):
            names[a.name] = b.name
        elif a != b:
            return None
    inames = program.kernel.all_inames()
    if not {*names, *names.values()} <= inames or len({*names.values()}) < len(names):
        return None
    around = first.within_inames - names.keys()
    if around != insn.within_inames - {*names.values()}:
        return None
    return names if _have_equal_bounds(names, program, first, insn) else None


def _have_equal_bounds(
    names: dict[str, str], program: Program, first: lp.Assignment, insn: lp.Assignment
) -> bool:
    try:
        old, new = (
            box_extents(program.kernel, one.within_inames, one.id)
            for one in (first, insn)
        )
    except NotAnEinsumError:
        return False
    return all(old[a] == new[b] for a, b in names.items())


def _begun(insn: lp.Assignment, first: lp.Assignment, program: Program) -> Program:
    parts = _own_and_added(insn, program)
    names = _renaming(first, insn, program)
    assert parts is not None
    assert names is not None
    renamed = SubstitutionMapper(
        make_subst_func({a: p.Variable(b) for a, b in names.items()})
    )
    begin = renamed(first.expression)
    is_zero = isinstance(begin, (int, float)) and begin == 0
    value = parts[1] if is_zero else p.Sum((begin, parts[1]))
    waits = (insn.depends_on | first.depends_on) - {first.id}
    changed = insn.copy(expression=value, depends_on=waits)
    return program.with_instructions({first.id: None, insn.id: changed})
