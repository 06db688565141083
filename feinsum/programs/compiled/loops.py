"""A stage of maps and reductions as loops, for arrays of any extents and strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache

from feinsum.ir.statement import Statement
from feinsum.programs.places import same_places
from feinsum.programs.stages import Stage


@dataclass(frozen=True)
class Access:
    """An array from outside of the stage, as one statement reads or writes it.

    Attributes:
        result: the result of the statement.
        position: of the operand; None for the result.
        axes: the loop of each axis.
    """

    result: str
    position: int | None
    axes: tuple[int, ...]

    def strides(self, by_axis: tuple[int, ...]) -> dict[int, int]:
        """Entries between neighbours along each loop; those of a diagonal add up."""
        found = dict.fromkeys(self.axes, 0)
        for loop, stride in zip(self.axes, by_axis, strict=True):
            found[loop] += stride
        return found


@dataclass(frozen=True, eq=False)
class Loops:
    """The loops of a stage, by number: those that all statements share come first.

    Attributes:
        n_cuts: number of the shared ones.
        numbers: the loop of each index of each statement, by its result.
    """

    stage: Stage
    n_cuts: int
    numbers: Mapping[str, Mapping[str, int]]

    @property
    def n_loops(self) -> int:
        return 1 + max(
            (k for one in self.numbers.values() for k in one.values()), default=-1
        )

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """All that is read from outside, then all that is kept."""
        return (*self._reads(), *self._writes())

    def inner(self, one: Statement) -> tuple[int, ...]:
        """The loops of a result within the shared ones."""
        axes = (self.numbers[one.result][i] for i in one.output)
        return tuple(sorted(k for k in axes if k >= self.n_cuts))

    def reduced(self, one: Statement) -> tuple[int, ...]:
        return tuple(self.numbers[one.result][i] for i in one.reduced_indices)

    def axes(self, one: Statement, term: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.numbers[one.result][i] for i in term)

    def _reads(self) -> Iterator[Access]:
        made = {one.result for one in self.stage.statements}
        for one in self.stage.statements:
            for k, (name, term) in enumerate(
                zip(one.operands, one.inputs, strict=True)
            ):
                if name not in made:
                    yield Access(one.result, k, self.axes(one, term))

    def _writes(self) -> Iterator[Access]:
        for one in self.stage.statements:
            if one.result in self.stage.kept:
                yield Access(one.result, None, self.axes(one, one.output))


@lru_cache(maxsize=256)
def loops_of(stage: Stage) -> Loops | None:
    """The loops of a stage; None if a result is a diagonal, or indices are equal.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.stages import stages_of
    >>> p = program()
    >>> _ = p.softmax(array("X", (8, 4)))
    >>> (stage,) = stages_of(p.build())
    >>> loops = loops_of(stage)
    >>> loops.n_cuts, loops.n_loops
    (1, 2)
    """
    numbers = _numbers(stage, is_joined=True) or _numbers(stage, is_joined=False)
    return None if numbers is None else Loops(stage, len(stage.cuts), numbers)


Numbers = dict[str, dict[str, int]]


def _numbers(stage: Stage, is_joined: bool) -> Numbers | None:
    """The loop of each index; None if two of a statement are in one loop.

    Args:
        is_joined: whether statements that read an axis from outside do so in one loop,
            so that all have vectors along it.
    """
    same, n_cuts = same_places(stage.statements), len(stage.cuts)
    known = {
        same[result, index]: k
        for k, cut in enumerate(stage.cuts)
        for result, index in cut.items()
    }
    made = {one.result for one in stage.statements}
    by_axis: dict[tuple[str, int], int] = {}
    numbers: Numbers = {}
    n_loops = n_cuts
    for one in stage.statements:
        axes = _axes_from_outside(one, made) if is_joined else {}
        for index in one.indices:
            joined = [by_axis[axis] for axis in axes.get(index, ()) if axis in by_axis]
            number = known.setdefault(
                same[one.result, index], max(joined, default=n_loops)
            )
            n_loops = max(n_loops, number + 1)
            by_axis |= dict.fromkeys(axes.get(index, ()), number)
            numbers.setdefault(one.result, {})[index] = number
    is_repeated = any(len({*own.values()}) < len(own) for own in numbers.values())
    is_diagonal = any(len({*x.output}) < len(x.output) for x in stage.statements)
    return None if is_repeated or is_diagonal else numbers


def _axes_from_outside(
    one: Statement, made: AbstractSet[str]
) -> Mapping[str, list[tuple[str, int]]]:
    """The axes of arrays from outside of a stage that each index is along."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name, term in zip(one.operands, one.inputs, strict=True):
        for axis, index in enumerate(term):
            if name not in made:
                found.setdefault(index, []).append((name, axis))
    return found
