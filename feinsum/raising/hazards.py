"""Hazards between a row and the other instructions of its loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

import loopy as lp
from loopy.symbolic import get_dependencies
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.raising.memory import (
    has_distinct_entries,
    have_own_entries,
    never_meet,
    storage,
    subscripts_of,
)
from feinsum.raising.nest import Expression
from feinsum.raising.walk import EveryNode

__all__ = [
    "ancestors",
    "are_independent",
    "check_hazards",
    "may_join",
    "reads_exactly",
]

Expand: TypeAlias = Callable[[Expression], Expression]


def check_hazards(
    insn: lp.Assignment,
    kernel: lp.LoopKernel,
    inames: frozenset[str],
    expand: Expand,
    expressions: Iterable[Expression],
) -> None:
    """No operand changes while the nest runs, and nobody interferes with its output.

    Args:
        inames: the loops of the instruction and of its sums.
        expand: expands substitution rules.
        expressions: the factors and the scale.

    Raises:
        NotAnEinsumError: with the rule ``operand-written``, ``race`` or
            ``output-read``.
    """
    (name,) = insn.assignee_var_names()
    if not has_distinct_entries(kernel, name):
        raise _refuse(insn, "race", f"entries of {name!r} overlap in memory")
    values = [expand(e) for e in expressions]
    read = get_dependencies(expand(insn.expression)) - {name}
    read = read.union(*map(get_dependencies, values))
    _check_written(insn, insn, kernel, read)
    sums = inames - insn.within_inames
    own = [insn.assignee, expand(insn.expression), *values]
    for other in kernel.instructions:
        if other.id == insn.id:
            continue
        if sums & other.within_inames:
            _check_written(insn, other, kernel, read)
        if insn.within_inames & other.within_inames:
            _check_exchange(insn, other, kernel, read, own, expand)


def _check_written(
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    read: frozenset[str],
) -> None:
    if clash := _shared(kernel, read, other.assignee_var_names()):
        raise _refuse(
            insn,
            "operand-written",
            f"it reads {clash}, which instruction {other.id!r} writes "
            "in the same loops",
        )


def _check_exchange(
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    read: frozenset[str],
    own: list[Expression],
    expand: Expand,
) -> None:
    """Require that two instructions exchange values within one iteration only.

    Args:
        read: all names that ``insn`` reads, except its output.
        own: the expressions with its accesses.
    """
    theirs = [expand(e) for e in _expressions(other)]
    written = other.assignee_var_names()
    names = other.read_dependency_names().union(*map(get_dependencies, theirs))
    (output,) = insn.assignee_var_names()

    def first_clash(mine: Iterable[str], others: Iterable[str]) -> str | None:
        clashes = (
            name
            for name in _shared(kernel, mine, others)
            if not _is_kept(name, insn, other, kernel, (own, theirs))
        )
        return next(clashes, None)

    where = "in the same loops, at other points of them or in no stated order"
    if name := first_clash(read, written):
        what = f"it reads {name!r}, which instruction {other.id!r} writes {where}"
        raise _refuse(insn, "operand-written", what)
    if name := first_clash({output}, written):
        raise _refuse(insn, "race", f"instruction {other.id!r} writes {name!r} {where}")
    if name := first_clash({output}, names):
        what = f"instruction {other.id!r} reads {name!r} {where}"
        raise _refuse(insn, "output-read", what)


def _shared(
    kernel: lp.LoopKernel, names: Iterable[str], others: Iterable[str]
) -> list[str]:
    """Those of ``names`` that lie in the memory of ``others``."""
    memory = storage(kernel, others)
    return sorted(name for name in names if storage(kernel, [name]) & memory)


def _is_kept(
    name: str,
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    expressions: tuple[list[Expression], list[Expression]],
) -> bool:
    """Whether no iteration of shared loops meets entries that another one writes.

    In one iteration, the dependencies of the kernel say who comes first.
    """
    mine, theirs = (
        [subscripts_of(access) for e in side for access in accesses_of(e, name)]
        for side in expressions
    )
    if not (mine and theirs) or storage(kernel, [name]) != {name}:
        return False
    if never_meet(kernel, name, mine, theirs):
        return True
    is_first = insn.id in ancestors(kernel, other.id)
    is_last = other.id in ancestors(kernel, insn.id)
    shared = insn.within_inames & other.within_inames
    own = [subscripts_of(insn.assignee)] if name in insn.assignee_var_names() else []
    return is_first != is_last and have_own_entries([*mine, *theirs], shared, own)


def reads_exactly(expression: Expression, assignee: Expression) -> bool:
    """Whether ``expression`` reads the assigned array at the assigned place only."""
    name = getattr(getattr(assignee, "aggregate", assignee), "name", "")
    return all(
        subscripts_of(access) == subscripts_of(assignee)
        for access in accesses_of(expression, name)
    )


def are_independent(
    first: lp.Assignment, second: lp.Assignment, kernel: lp.LoopKernel, expand: Expand
) -> bool:
    """Whether neither assignment reads or overwrites what the other one assigns."""
    pairs = ((first, second), (second, first))
    if any(_reads_output(expand(b.expression), a, kernel) for a, b in pairs):
        return False
    (name,), (other_name,) = first.assignee_var_names(), second.assignee_var_names()
    if name == other_name:
        places = ([subscripts_of(one.assignee)] for one in (first, second))
        return never_meet(kernel, name, *places)
    return not storage(kernel, [name]) & storage(kernel, [other_name])


def may_join(
    insn: lp.Assignment,
    batch: Iterable[lp.Assignment],
    kernel: lp.LoopKernel,
    expand: Expand,
    serving: Collection[str] = (),
) -> bool:
    """Whether an assignment may run with others: nothing has to run between them.

    Args:
        serving: instructions that only serve these, and are replaced with them.
    """
    others = list(batch)
    ids = {insn.id, *(other.id for other in others)}
    before = frozenset[str]().union(*(ancestors(kernel, i) for i in ids)) - ids
    between = before.difference(serving)
    is_interrupted = any(ids & ancestors(kernel, i) for i in between)
    return not is_interrupted and all(
        are_independent(insn, other, kernel, expand) for other in others
    )


def _reads_output(
    expression: Expression, writer: lp.Assignment, kernel: lp.LoopKernel
) -> bool:
    """Whether an expression may read what ``writer`` assigns."""
    (name,) = writer.assignee_var_names()
    others = get_dependencies(expression) - {name}
    read = map(subscripts_of, accesses_of(expression, name))
    return bool(storage(kernel, others) & storage(kernel, [name])) or not never_meet(
        kernel, name, read, [subscripts_of(writer.assignee)]
    )


def ancestors(kernel: lp.LoopKernel, instruction: str) -> frozenset[str]:
    """All instructions that must run before one."""
    found: set[str] = set()
    todo = [instruction]
    while todo:
        for before in kernel.id_to_insn[todo.pop()].depends_on - found:
            found.add(before)
            todo.append(before)
    return frozenset(found)


def accesses_of(expression: Expression, name: str) -> list[Expression]:
    """Every read of an array or scalar in an expression without rules."""
    finder = _AccessFinder(name)
    finder(expression)
    return finder.found


def _expressions(insn: lp.InstructionBase) -> Iterator[Expression]:
    """Expressions that an instruction accesses; none if it hides them."""
    if isinstance(insn, lp.Assignment):
        yield insn.assignee
        yield insn.expression
        yield from insn.predicates


class _AccessFinder(EveryNode):
    """Collects the accesses of one name, each as often as it stands there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.found: list[Expression] = []

    def map_variable(self, expr: p.Variable, /) -> None:
        if expr.name == self.name:
            self.found.append(expr)

    def map_subscript(self, expr: p.Subscript, /) -> None:
        if getattr(expr.aggregate, "name", None) == self.name:
            self.found.append(expr)
        else:
            self.rec(expr.aggregate)
        for index in expr.index_tuple:
            self.rec(index)


def _refuse(insn: lp.InstructionBase, rule: str, what: str) -> NotAnEinsumError:
    return NotAnEinsumError(
        f"instruction {insn.id!r}: {what}", rule=rule, instructions=(insn.id,)
    )
