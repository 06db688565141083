"""The axes of an operand that is any function: which inames, and in which order."""

from __future__ import annotations

import loopy as lp
from loopy.symbolic import WalkMapper, get_dependencies
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import IndexList
from feinsum.raising.nest import Expression

__all__ = ["axis_order", "check_captures"]


def axis_order(
    expression: Expression, kernel: lp.LoopKernel, output: IndexList
) -> IndexList | None:
    """The inames of an expression without rules, in an order that no spelling changes.

    Returns:
        None if nothing is read with all inames that are not in conditions.
    """
    finder = _ReadFinder(kernel.all_inames())
    finder(expression)
    inames = tuple(finder.inames)
    needed = set(inames) - finder.in_conditions
    place = {iname: k for k, iname in enumerate(output)}

    def places(term: IndexList) -> list[int]:
        return [place.get(iname, len(place)) for iname in term]

    reads = [(name, term) for name, term in finder.reads if needed <= set(term)]
    reads.sort(key=lambda read: (-len(read[1]), places(read[1]), read[0]))
    if not reads and len(needed) > 1:
        return None
    first = reads[0][1] if reads else ()
    others = [iname for iname in inames if iname not in first]
    return (*sorted(others, key=lambda iname: places((iname,))), *first)


def check_captures(
    expression: Expression, kernel: lp.LoopKernel, instruction: str
) -> None:
    """Refuse rules whose meaning depends on the order of expansion.

    A rule may read an iname that is not its argument, but not one of a name
    that some rule on the way has as an argument.

    Raises:
        NotAnEinsumError: with the rule ``captured-iname``.
    """
    rules: dict[str, lp.SubstitutionRule] = {}
    todo = [expression]
    while todo:
        finder = _NameFinder()
        finder(todo.pop())
        names = finder.names & set(kernel.substitutions)
        new = {n: kernel.substitutions[n] for n in names - set(rules)}
        rules |= new
        todo += (rule.expression for rule in new.values())
    arguments = {name for rule in rules.values() for name in rule.arguments}
    captured = {
        name
        for rule in rules.values()
        for name in get_dependencies(rule.expression) - set(rule.arguments)
    }
    if clash := arguments & captured & kernel.all_inames():
        raise NotAnEinsumError(
            f"instruction {instruction!r}: the rules behind {expression} both have "
            f"{sorted(clash)} as an argument and read the iname of that name",
            rule="captured-iname",
            instructions=(instruction,),
        )


class _NameFinder(WalkMapper):  # type: ignore[misc]
    """Collects all names, those of called functions and rules as well."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def map_variable(self, expr: p.Variable, /) -> None:
        self.names.add(expr.name)


class _InameFinder(WalkMapper):  # type: ignore[misc]
    """Collects inames in order of appearance."""

    def __init__(self, all_inames: frozenset[str]) -> None:
        super().__init__()
        self.all_inames = all_inames
        self.inames: dict[str, None] = {}

    def map_variable(self, expr: p.Variable, /) -> None:
        if expr.name in self.all_inames:
            self.inames[expr.name] = None


class _ReadFinder(_InameFinder):
    """Collects also the inames of each array read and of conditions."""

    def __init__(self, all_inames: frozenset[str]) -> None:
        super().__init__(all_inames)
        self.reads: list[tuple[str, IndexList]] = []
        self.in_conditions: set[str] = set()

    def map_subscript(self, expr: p.Subscript, /) -> None:
        self.reads.append((str(expr.aggregate), self._names(expr)))
        for index in expr.index_tuple:
            self.rec(index)

    def map_if(self, expr: p.If, /) -> None:
        self.in_conditions |= set(self._names(expr.condition))
        for part in (expr.condition, expr.then, expr.else_):
            self.rec(part)

    def _names(self, expr: Expression) -> IndexList:
        finder = _InameFinder(self.all_inames)
        finder(expr)
        return tuple(finder.inames)
