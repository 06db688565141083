"""How the indices of a contraction of two operands are cut into tiles.

Source: Springer and Bientinesi 2018 (GETT) for tiles that span several indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from feinsum.ir import BatchedEinsum, Extent, IndexList
from feinsum.transforms.library.roles import carriers, free_indices, number, text
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters

__all__ = ["Axis", "Cut", "Plan", "make_plan"]

Axis = tuple[str, int]
"""An index and a level of its cut."""


@dataclass(frozen=True)
class Cut:
    """An index cut into tiles; a tile is a loop nest of ``levels``.

    Attributes:
        levels: numbers of iterations, outermost first.
    """

    index: str
    extent: Extent
    levels: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.levels)

    @property
    def is_exact(self) -> bool:
        """Whether tiles divide the extent."""
        return isinstance(self.extent, int) and self.extent % self.size == 0

    @property
    def n_tiles(self) -> int | None:
        """None if it is known at run time only."""
        return -(-self.extent // self.size) if isinstance(self.extent, int) else None

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.levels[k + 1 :]) for k in range(len(self.levels)))


@dataclass(frozen=True)
class Plan:
    """Cuts of the free indices of each side, of the summed and of the batch indices.

    Attributes:
        columns: free indices of the vector index's operand, that one last.
        rows: free indices of the other operand, the register index last.
        summed: the innermost loop last.
    """

    columns: tuple[Cut, ...]
    rows: tuple[Cut, ...]
    summed: tuple[Cut, ...]
    batch: tuple[Cut, ...]

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        groups = (self.columns, self.rows, self.summed, self.batch)
        return {cut.index: cut for group in groups for cut in group}

    @property
    def free(self) -> Names:
        cuts = (*self.columns, *self.rows, *self.batch)
        return tuple(cut.index for cut in cuts)

    @property
    def summed_indices(self) -> Names:
        return tuple(cut.index for cut in self.summed)

    @property
    def register_axes(self) -> tuple[Axis, ...]:
        """The axes of a register tile: row, vector, lane."""
        row, column = self.rows[-1].index, self.columns[-1].index
        return (row, 1), (column, 1), (column, 2)

    @property
    def accumulator_axes(self) -> tuple[Axis, ...]:
        """One register tile, or all of them where the sum takes several tiles."""
        cuts = (*self.columns, *self.rows) if self.is_deep else ()
        return (*((cut.index, 0) for cut in cuts), *self.register_axes)

    def pack_axes(self, term: IndexList) -> tuple[Axis, ...]:
        """What a register tile reads in one step of the sum stands together."""
        main = next(c for c in (self.columns[-1], self.rows[-1]) if c.index in term)
        cuts = [cut for cut in (*self.columns, *self.rows) if cut.index in term]
        outer = [(cut.index, 0) for cut in (*cuts, *self.summed)]
        return (*outer, *((main.index, k) for k in range(1, len(main.levels))))

    @property
    def is_deep(self) -> bool:
        """Whether the sum takes several tiles."""
        return any(cut.n_tiles != 1 for cut in self.summed)


def make_plan(
    einsum: BatchedEinsum, schedule: Schedule, parameters: Parameters
) -> Plan:
    """Fill the tiles: the main index of a side first, then those stored nearby."""
    vector, register_index = text(parameters, "vector"), text(parameters, "register")
    (position,) = carriers(einsum, vector)
    lanes, vectors = number(parameters, "lanes"), number(parameters, "vectors")
    free = free_indices(einsum)
    sides = [[i for i in free if carriers(einsum, i) == (at,)] for at in (0, 1)]
    summed = sorted(einsum.summation_indices, key=lambda i: _stride_rank(einsum, i))
    fill = _Filling(schedule)
    return Plan(
        fill.side(
            vector, sides[position], (vectors, lanes), number(parameters, "width")
        ),
        fill.side(
            register_index,
            sides[1 - position],
            (number(parameters, "rows"),),
            number(parameters, "height"),
        ),
        fill.side(summed[0], summed, (), number(parameters, "depth")),
        tuple(
            Cut(i, schedule.extents[i], ())
            for i in einsum.output
            if len(carriers(einsum, i)) == 2
        ),
    )


def _stride_rank(einsum: BatchedEinsum, index: str) -> int:
    """How far an index is from the last axes, in sum over the operands."""
    return -sum(term.index(index) - len(term) for term in einsum.inputs)


@dataclass(frozen=True)
class _Filling:
    """Tiles of as many indices as it takes."""

    schedule: Schedule

    def side(
        self, main: str, indices: Sequence[str], unit: tuple[int, ...], target: int
    ) -> tuple[Cut, ...]:
        """Cuts of ``indices``, the main one last, of ``target`` entries in all."""
        cuts = [self._cut(main, unit, target)]
        for index in indices:
            if index != main:
                is_whole = all(cut.n_tiles == 1 for cut in cuts)
                left = target // prod(cut.size for cut in cuts) if is_whole else 1
                cuts.append(self._cut(index, (), max(left, 1)))
        return tuple(reversed(cuts))

    def _cut(self, index: str, unit: tuple[int, ...], target: int) -> Cut:
        extent = self.schedule.extents[index]
        n_units = max(target // prod(unit), 1)
        if isinstance(extent, int):
            n_units = _even(-(-extent // prod(unit)), n_units)
        return Cut(index, extent, (n_units, *unit))


def _even(total: int, target: int) -> int:
    """The largest part of ``total`` up to ``target`` that leaves little over.

    >>> _even(72, 50), _even(72, 100), _even(7, 4)
    (36, 72, 4)
    """
    target = min(total, target)
    divisors = [n for n in range(target, target // 2, -1) if total % n == 0]
    return divisors[0] if divisors else -(-total // -(-total // target))
