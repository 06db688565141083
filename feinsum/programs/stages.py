"""Stages of a program: statements that run together, part by part, and their loops.

Contractions are separate kernels, and numpy statements run alone. Other consecutive
statements share an index that none of them reduces. They run for a few values of it at
a time, so that intermediates stay in the caches. Of a softmax over the last axis of
``scores[s,t]``, that index is the row::

    statement                      index cut    loops
    top[s] = max scores[s,t]       s            0: s   1: t
    e[a,b] = exp(scores - top)     a            0: a   1: b
    sum[i] = sum e[i,j]            i            0: i   1: j
    y[p,q] = e / sum               p            0: p   1: q

Statements name the axes of one array differently: equal indices are found first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

from constantdict import constantdict

from feinsum.ir.program import Program
from feinsum.ir.statement import Statement

StatementIndex: TypeAlias = tuple[str, str]
"""An index of a statement, which is named by its result."""


def find_equal_indices(
    statements: Sequence[Statement],
) -> Mapping[StatementIndex, StatementIndex]:
    """Map each index of each statement to the representative of all equal indices.

    Different statements use different names for the axes of one result.

    >>> first = Statement("E", "ij", ("ij",), ("X",), "exp(x0)")
    >>> second = Statement("S", "p", ("pq",), ("E",))
    >>> same = find_equal_indices([first, second])
    >>> same["S", "p"] == same["E", "i"], same["S", "q"] == same["E", "i"]
    (True, False)
    """
    # a union-find forest, whose roots represent the classes
    parent: dict[StatementIndex, StatementIndex] = {
        (statement.result, index): (statement.result, index)
        for statement in statements
        for index in statement.indices
    }
    makers = {statement.result: statement for statement in statements}

    def find_root(position: StatementIndex) -> StatementIndex:
        while parent[position] != position:
            position = parent[position]
        return position

    for statement in statements:
        for name, term in statement.accesses:
            if name in makers:
                for written, read in zip(makers[name].output, term, strict=True):
                    root = find_root((name, written))
                    parent[find_root((statement.result, read))] = root
    return {position: find_root(position) for position in parent}


@dataclass(frozen=True)
class Stage:
    """Statements that run together.

    Attributes:
        statements: the statements, in order.
        outputs: the results that are read after the stage, or are outputs.
    """

    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    @property
    def is_contraction(self) -> bool:
        return self.statements[0].is_contraction

    @property
    def is_numpy(self) -> bool:
        return self.statements[0].is_numpy

    @property
    def operands(self) -> frozenset[str]:
        return frozenset(
            name for statement in self.statements for name in statement.operands
        )

    @cached_property
    def cuts(self) -> tuple[Mapping[str, str], ...]:
        """All indices along which the stage can be cut, outermost first.

        Each has its name in every statement, by result.
        """
        return tuple(find_common_cuts(self.statements))


def list_stages(program: Program) -> tuple[Stage, ...]:
    """Return the stages of a program, in dataflow order.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> scores = p.einsum("sd,td->st", array("Q", (8, 4)), array("K", (8, 4)))
    >>> _ = p.softmax(scores, "t")
    >>> for stage in list_stages(p.build()):
    ...     print([s.result for s in stage.statements], stage.outputs)
    ['r0'] ('r0',)
    ['r1', 'r2', 'r3', 'r4'] ('r4',)
    """
    # a contraction is a stage by itself: it has its own kernel
    return tuple(make_stage(program, group) for group in _group_statements(program))


def make_stage(program: Program, group: Sequence[Statement]) -> Stage:
    """Make a stage of some statements of a program."""
    return Stage(tuple(group), list_outputs(program, group))


def _group_statements(program: Program) -> Iterator[list[Statement]]:
    group: list[Statement] = []
    for statement in program.statements:
        is_apart = any(x.is_contraction for x in (statement, *group[:1]))
        # greedy: a longer stage keeps more intermediates in the caches
        if group and not is_apart and any(find_common_cuts([*group, statement])):
            group.append(statement)
            continue
        if group:
            yield group
        group = [statement]
    if group:
        yield group


def list_outputs(program: Program, group: Sequence[Statement]) -> tuple[str, ...]:
    results = {statement.result for statement in group}
    return tuple(
        statement.result
        for statement in group
        if statement.result in program.outputs
        or any(
            reader.result not in results for reader in program.readers(statement.result)
        )
    )


def find_common_cuts(group: Sequence[Statement]) -> Iterator[Mapping[str, str]]:
    """Yield the indices that all results have, the outermost first.

    Each is a mapping from the result of a statement to the index's name in it.
    """
    # numpy may read any entry of an operand for an entry of the result
    if any(statement.is_numpy for statement in group):
        return
    classes = find_equal_indices(group)
    first = group[0]
    for index in first.output:
        number = classes[first.result, index]
        cut = {}
        for statement in group:
            equal_names = [
                i for i in statement.indices if classes[statement.result, i] == number
            ]
            if len(equal_names) == 1 and equal_names[0] in statement.output:
                cut[statement.result] = equal_names[0]
        if len(cut) == len(group):
            yield constantdict(cut)


@dataclass(frozen=True)
class ArrayAccess:
    """An array from outside of the stage, as one statement reads or writes it.

    Attributes:
        result: the result of the statement.
        position: position of the operand; None for the result.
        axes: the loop of each axis.
    """

    result: str
    position: int | None
    axes: tuple[int, ...]

    def strides(self, by_axis: tuple[int, ...]) -> dict[int, int]:
        """Return the stride of each loop, from those by axis; a diagonal adds them."""
        strides = dict.fromkeys(self.axes, 0)
        for loop, stride in zip(self.axes, by_axis, strict=True):
            strides[loop] += stride
        return strides


@dataclass(frozen=True, eq=False)
class StageLoops:
    """The loops of a stage, by number: those that all statements share come first.

    Attributes:
        stage: the stage.
        n_cuts: number of the shared loops.
        numbers: the loop of each index of each statement, by its result.
    """

    stage: Stage
    n_cuts: int
    numbers: Mapping[str, Mapping[str, int]]

    @property
    def n_loops(self) -> int:
        return 1 + max(
            (k for numbers in self.numbers.values() for k in numbers.values()),
            default=-1,
        )

    @cached_property
    def accesses(self) -> tuple[ArrayAccess, ...]:
        """The reads of arrays from outside of the stage, then the writes of outputs."""
        statements = self.stage.statements
        results = {statement.result for statement in statements}
        reads = (
            ArrayAccess(statement.result, k, self.axes(statement, term))
            for statement in statements
            for k, (name, term) in enumerate(statement.accesses)
            if name not in results
        )
        writes = (
            ArrayAccess(statement.result, None, self.axes(statement, statement.output))
            for statement in statements
            if statement.result in self.stage.outputs
        )
        return (*reads, *writes)

    def inner(self, statement: Statement) -> tuple[int, ...]:
        """Return the loops of a result within the shared ones."""
        axes = (self.numbers[statement.result][i] for i in statement.output)
        return tuple(sorted(k for k in axes if k >= self.n_cuts))

    def reduced(self, statement: Statement) -> tuple[int, ...]:
        return tuple(
            self.numbers[statement.result][i] for i in statement.reduced_indices
        )

    def axes(self, statement: Statement, term: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.numbers[statement.result][i] for i in term)


@lru_cache(maxsize=256)
def find_loops(stage: Stage) -> StageLoops | None:
    """Return the loops of a stage; None if a statement has equal indices.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.stages import list_stages
    >>> p = program()
    >>> _ = p.softmax(array("X", (8, 4)))
    >>> (stage,) = list_stages(p.build())
    >>> loops = find_loops(stage)
    >>> loops.n_cuts, loops.n_loops
    (1, 2)
    """
    # joined loops allow more vectors, but may join two indices of one statement
    numbers = _number_loops(stage, is_joined=True) or _number_loops(
        stage, is_joined=False
    )
    return None if numbers is None else StageLoops(stage, len(stage.cuts), numbers)


Numbers = dict[str, dict[str, int]]


def _number_loops(stage: Stage, is_joined: bool) -> Numbers | None:
    """Return the loop of each index; None if a statement has two indices in one loop.

    Joined indices, which access the same axis of an outside array, share a loop, so
    that all statements have vectors along it.
    """
    classes, n_cuts = find_equal_indices(stage.statements), len(stage.cuts)
    shared = {
        classes[result, index]: k
        for k, cut in enumerate(stage.cuts)
        for result, index in cut.items()
    }
    results = {statement.result for statement in stage.statements}
    by_axis: dict[tuple[str, int], int] = {}
    numbers: Numbers = {}
    n_loops = n_cuts
    for statement in stage.statements:
        axes = _find_outside_axes(statement, results) if is_joined else {}
        for index in statement.indices:
            joined = [by_axis[axis] for axis in axes.get(index, ()) if axis in by_axis]
            number = shared.setdefault(
                classes[statement.result, index], max(joined, default=n_loops)
            )
            n_loops = max(n_loops, number + 1)
            by_axis |= dict.fromkeys(axes.get(index, ()), number)
            numbers.setdefault(statement.result, {})[index] = number
    is_repeated = any(
        len({*loops_of_statement.values()}) < len(loops_of_statement)
        for loops_of_statement in numbers.values()
    )
    is_diagonal = any(len({*x.output}) < len(x.output) for x in stage.statements)
    return None if is_repeated or is_diagonal else numbers


def _find_outside_axes(
    statement: Statement, results: AbstractSet[str]
) -> Mapping[str, list[tuple[str, int]]]:
    """Return the axes of outside arrays that each index accesses."""
    axes: dict[str, list[tuple[str, int]]] = {}
    for name, term in statement.accesses:
        for axis, index in enumerate(term):
            if name not in results:
                axes.setdefault(index, []).append((name, axis))
    return axes
