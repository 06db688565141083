"""What other instructions of the same loops may not do to a row, and it to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import loopy as lp
from loopy.symbolic import WalkMapper, get_dependencies
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.raising.memory import (
    are_distinct,
    has_distinct_entries,
    storage,
    subscripts_of,
)
from feinsum.raising.nest import Expression

__all__ = ["ancestors", "are_independent", "check_hazards", "reads_exactly"]

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
        raise _refuse(insn, "race", f"entries of {name!r} share places in memory")
    read = get_dependencies(expand(insn.expression)) - {name}
    read = read.union(*(get_dependencies(expand(e)) for e in expressions))
    _check_written(insn, insn, kernel, read)
    for other in kernel.instructions:
        if other.id == insn.id:
            continue
        if inames & other.within_inames:
            _check_written(insn, other, kernel, read)
        if insn.within_inames & other.within_inames:
            _check_writes(insn, other, kernel)
            _check_reads(insn, other, kernel, expand)


def _check_written(
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    read: frozenset[str],
) -> None:
    written = storage(kernel, other.assignee_var_names())
    clash = sorted(n for n in read if storage(kernel, [n]) & written)
    if clash:
        raise _refuse(
            insn,
            "operand-written",
            f"it reads {clash}, which instruction {other.id!r} writes "
            "in the same loops",
        )


def _check_writes(
    insn: lp.Assignment, other: lp.InstructionBase, kernel: lp.LoopKernel
) -> None:
    """Two instructions of one loop write to places that numbers tell apart."""
    (name,) = insn.assignee_var_names()
    for theirs, assignee in zip(
        other.assignee_var_names(), other.assignees, strict=True
    ):
        shares = storage(kernel, [theirs]) & storage(kernel, [name])
        if shares and not (theirs == name and are_distinct(assignee, insn.assignee)):
            raise _refuse(
                insn,
                "race",
                f"instruction {other.id!r} writes {theirs!r} in the same loops",
            )


def _check_reads(
    insn: lp.Assignment,
    other: lp.InstructionBase,
    kernel: lp.LoopKernel,
    expand: Expand,
) -> None:
    """Whoever reads the output in its loops reads, after it, what was just written."""
    (name,) = insn.assignee_var_names()
    expressions = [expand(e) for e in _expressions(other)]
    names = other.read_dependency_names().union(*map(get_dependencies, expressions))
    own = storage(kernel, [name])
    met = {n for n in names if storage(kernel, [n]) & own}
    if not met:
        return
    accesses = [a for e in expressions for a in accesses_of(e, name)]
    is_after = insn.id in ancestors(kernel, other.id)
    place = subscripts_of(insn.assignee)
    is_harmless = all(
        (is_after and subscripts_of(access) == place)
        or are_distinct(access, insn.assignee)
        for access in accesses
    )
    if not (accesses and met == {name} and is_harmless):
        raise _refuse(
            insn,
            "output-read",
            f"instruction {other.id!r} reads {name!r} in the same loops, and not what "
            f"was just assigned to {insn.assignee}",
        )


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
        return are_distinct(first.assignee, second.assignee)
    return not storage(kernel, [name]) & storage(kernel, [other_name])


def _reads_output(
    expression: Expression, writer: lp.Assignment, kernel: lp.LoopKernel
) -> bool:
    """Whether an expression reads, as far as numbers tell, what ``writer`` assigns."""
    (name,) = writer.assignee_var_names()
    others = get_dependencies(expression) - {name}
    return bool(storage(kernel, others) & storage(kernel, [name])) or not all(
        are_distinct(access, writer.assignee)
        for access in accesses_of(expression, name)
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
    """What an instruction reads; nothing for those that hide it."""
    if isinstance(insn, lp.Assignment):
        yield insn.expression
        yield from subscripts_of(insn.assignee)
        yield from insn.predicates


class _AccessFinder(WalkMapper):  # type: ignore[misc]
    """Collects the accesses of one name."""

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
