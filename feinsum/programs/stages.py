"""Stages of a program: statements that run together, part by part.

Contractions are separate kernels, and numpy statements run alone. Other consecutive
statements, such as the four of a softmax, share an index that none of them reduces.
They run for a few values of it at a time, so that intermediates stay in the caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from constantdict import constantdict

from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.programs.places import same_places


@dataclass(frozen=True)
class Stage:
    """Statements that run together.

    Attributes:
        cut: the index of each statement, by its result, that is processed a few values
            at a time; empty if all run at once.
        kept: the results that are read later, or are outputs.
    """

    statements: tuple[Statement, ...]
    cut: Mapping[str, str]
    kept: tuple[str, ...]

    @property
    def is_contraction(self) -> bool:
        return self.statements[0].is_contraction

    @property
    def is_numpy(self) -> bool:
        return self.statements[0].is_numpy

    @property
    def operands(self) -> frozenset[str]:
        return frozenset(name for one in self.statements for name in one.operands)

    @cached_property
    def cuts(self) -> tuple[Mapping[str, str], ...]:
        """All indices that could be partitioned instead, outermost first."""
        return tuple(common_cuts(self.statements))


def stages_of(program: Program) -> tuple[Stage, ...]:
    """The stages of a program, in dataflow order.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> scores = p.einsum("sd,td->st", array("Q", (8, 4)), array("K", (8, 4)))
    >>> _ = p.softmax(scores, "t")
    >>> for stage in stages_of(p.build()):
    ...     print([s.result for s in stage.statements], dict(stage.cut), stage.kept)
    ['r0'] {} ('r0',)
    ['r1', 'r2', 'r3', 'r4'] {'r1': 'a', 'r2': 'a', 'r3': 'a', 'r4': 'a'} ('r4',)
    """
    return tuple(stage_of(program, group) for group in _groups(program))


def stage_of(program: Program, group: Sequence[Statement]) -> Stage:
    """Some statements of a program as a stage."""
    return Stage(tuple(group), _cut_of(group), kept_of(program, group))


def _groups(program: Program) -> Iterator[list[Statement]]:
    group: list[Statement] = []
    for one in program.statements:
        if group and not one.is_contraction and _cut_of([*group, one]):
            group.append(one)
            continue
        if group:
            yield group
        group = [one]
        if one.is_contraction:
            yield group
            group = []
    if group:
        yield group


def kept_of(program: Program, group: Sequence[Statement]) -> tuple[str, ...]:
    inside = {one.result for one in group}
    return tuple(
        one.result
        for one in group
        if one.result in program.outputs
        or any(reader.result not in inside for reader in program.readers(one.result))
    )


def _cut_of(group: Sequence[Statement]) -> Mapping[str, str]:
    """The outermost index that all results have; empty if there is none."""
    if group[0].is_contraction:
        return constantdict()
    return next(iter(common_cuts(group)), constantdict())


def common_cuts(group: Sequence[Statement]) -> Iterator[Mapping[str, str]]:
    """The indices that all results have, the outermost first: for each its name in
    every statement, by the result.
    """
    if any(one.is_numpy for one in group):
        return
    classes = same_places(group)
    first = group[0]
    for index in first.output:
        number = classes[first.result, index]
        cut = {}
        for one in group:
            same = [i for i in one.indices if classes[one.result, i] == number]
            if len(same) == 1 and same[0] in one.output:
                cut[one.result] = same[0]
        if len(cut) == len(group):
            yield constantdict(cut)
