"""Private values that are assigned anew: a variable for each."""

from __future__ import annotations

from collections.abc import Sequence

import loopy as lp
from pymbolic import primitives as p

from feinsum.raising.memory import Subscripts, have_own_entries, subscripts_of
from feinsum.raising.nest import Expression
from feinsum.raising.normal.accumulations import is_accumulation
from feinsum.raising.normal.privates import covered
from feinsum.raising.normal.program import Program, rewritten_reads

__all__ = ["with_own_versions"]


def with_own_versions(program: Program) -> Program:
    """Private values that several instructions assign as a whole, one after the other.

    Rewrite::

        for i:  t = y[i]               for i:  t = y[i]
                u[i] = t                       u[i] = t
                t = 2*t                        t_0 = 2*t
                v[i] = t*z[i]                  v[i] = t_0*z[i]
    """
    for name in sorted(program.privates):
        starts = _starts(name, program)
        if len(starts) > 1 and _are_apart(name, starts, program):
            program = _renamed(name, starts, program)
    return program


def _starts(name: str, program: Program) -> list[str]:
    """The instructions that assign to all entries, in their order."""
    kernel = program.kernel
    writers = [kernel.id_to_insn[i] for i in program.writers.get(name, ())]
    starts = [
        insn.id
        for insn in writers
        if covered(name, insn, program) is not None
        and not is_accumulation(insn, program)
    ]
    return sorted(starts, key=lambda i: len(program.before[i] & {*starts}))


def _are_apart(name: str, starts: Sequence[str], program: Program) -> bool:
    """Whether each instruction has to do with one value alone, in one iteration."""
    kernel = program.kernel
    first, *later = (kernel.id_to_insn[i] for i in starts)
    around = _around(name, first, program)
    touching = program.touching[name]
    return (
        name not in program.reads[first.id]
        and all(_around(name, insn, program) == around for insn in later)
        and all(_reads_in_place(name, insn, program) for insn in later)
        and all(around <= kernel.id_to_insn[i].within_inames for i in touching)
        and all(
            _is_ordered(start, other, program)
            and _meets_whole(name, kernel.id_to_insn[start], other, program)
            for start in starts
            for other in touching - {start}
        )
        and all(first.id in program.before[i] for i in touching - {first.id})
    )


def _is_ordered(one: str, other: str, program: Program) -> bool:
    return other in program.before[one] or one in program.before[other]


def _meets_whole(name: str, start: lp.Assignment, other: str, program: Program) -> bool:
    """Whether an instruction sees a whole value, or the entry of its iteration."""
    own = start.within_inames - _around(name, start, program)
    shared = own & program.kernel.id_to_insn[other].within_inames
    places = [*program.accesses(other, name), subscripts_of(start.assignee)]
    return not shared or have_own_entries(places, shared)


def _around(name: str, insn: lp.Assignment, program: Program) -> frozenset[str]:
    """The loops in whose iterations the value is assigned as a whole."""
    return frozenset(insn.within_inames - {*(covered(name, insn, program) or ())})


def _reads_in_place(name: str, insn: lp.Assignment, program: Program) -> bool:
    place = subscripts_of(insn.assignee)
    return all(read == place for read in program.accesses(insn.id, name))


def _renamed(name: str, starts: Sequence[str], program: Program) -> Program:
    kernel = program.kernel
    fresh = kernel.get_var_name_generator()
    names = [name, *(str(fresh(name)) for _ in starts[1:])]

    def in_version(expression: Expression, version: int) -> Expression:
        def entry(subscripts: Subscripts) -> Expression:
            new = p.Variable(names[version])
            return new[subscripts] if subscripts else new

        return rewritten_reads(expression, name, entry)

    changed = {}
    for insn_id in program.touching[name]:
        insn = kernel.id_to_insn[insn_id]
        read = len(program.before[insn_id] & {*starts}) - 1
        written = starts.index(insn_id) if insn_id in starts else read
        changed[insn_id] = insn.copy(
            assignee=in_version(insn.assignee, written),
            expression=in_version(insn.expression, max(read, 0)),
        )
    known = kernel.temporary_variables
    made = {new: known[name].copy(name=new) for new in names[1:]}
    program = program.with_instructions(changed, temporary_variables={**known, **made})
    dtypes = {new: program.dtypes[name] for new in made if name in program.dtypes}
    for new, dtype in dtypes.items():
        program = program.with_dtype(new, dtype)
    return program
