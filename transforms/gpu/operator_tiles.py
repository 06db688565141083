"""Tiles of an operator on tensor cores: what a work-group has, and who loads it.

A group takes ``turns`` tiles of ``elements`` one after another. A tile goes from global
memory to registers, while the tile before is multiplied, and from there to shared
memory, where the warps of the group read it in fragments::

    global memory      u[e, 0..34]               rows of 35 terms, say, of each element
         |  all work-items, neighbours along the terms (``ragged_partition``)
    registers          ahead[steps]              a few entries of each work-item
         |  times factors of the element, barrier
    shared memory      tile[32][36]              an odd multiple of 4 between elements
         |  fragments of 16 elements and 4 terms
    tensor cores       sums of 32 elements and 8 rows of the matrix, for each warp
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum
from feinsum.transforms.gpu.fragments import DOUBLE, ZERO
from feinsum.transforms.gpu.grid import ElementGroup, extent_of
from feinsum.transforms.gpu.layouts import RaggedPartition, ragged_partition
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, typical

BANKS = 8
"""Banks of shared memory for half a warp: it reads four terms of four elements at once,
and with an odd multiple of four from one element to the next, from all banks."""

NAMES = ("elements", "height", "width", "terms", "turns", "groups")
"""The parameters of :class:`OperatorTiles`, in its order."""


@dataclass(frozen=True)
class OperatorTiles:
    """The tiles of a work-group and what its lanes have of them, in entries.

    Attributes:
        elements: of a tile.
        height: elements of a warp.
        width: rows of the matrix of a warp.
        terms: that one instruction adds to each sum.
        turns: tiles of a group, one after another.
        groups: that fit a multiprocessor at least.
        is_ahead: whether a tile is loaded while the one before is multiplied.
        n_rows: of the matrix.
        n_terms: of a sum.
        n_deferred: values of the deferred indices.
        n_fan: values of those that come late alone.
        n_factors: of an element, that it or its sums are multiplied with.
        n_matrices: that differ.
        streamed: the position of the largest operand that comes early.
        scaling: those of the others.
    """

    elements: int
    height: int
    width: int
    terms: int
    turns: int
    groups: int
    is_ahead: bool
    n_rows: int
    n_terms: int
    n_deferred: int
    n_fan: int
    n_factors: int
    n_matrices: int
    streamed: int
    scaling: tuple[int, ...]

    @classmethod
    def of(
        cls, einsum: BatchedEinsum, steps: Steps, parameters: Parameters
    ) -> OperatorTiles:
        def volume(indices: Collection[str]) -> int:
            return prod(typical(einsum.extents[i]) for i in indices)

        def n_factors(positions: Collection[int]) -> int:
            joint = {i for k in positions for i in einsum.inputs[k]} - {steps.element}
            return volume(joint) if positions else 0

        streamed = max(steps.early, key=lambda k: volume(einsum.inputs[k]))
        scaling = tuple(k for k in steps.early if k != streamed)
        sizes = {name: number(parameters, name) for name in NAMES}
        return cls(
            **sizes,
            is_ahead=bool(parameters["ahead"]),
            n_rows=volume(steps.rows),
            n_terms=volume(steps.contracted),
            n_deferred=volume(steps.deferred),
            n_fan=volume(steps.fan),
            n_factors=n_factors(scaling) + n_factors(steps.late),
            n_matrices=len({row[steps.matrix] for row in einsum.rows}),
            streamed=streamed,
            scaling=scaling,
        )

    @property
    def across(self) -> int:
        """Warps for the rows of the matrix."""
        return -(-self.n_rows // self.width)

    @property
    def n_warps(self) -> int:
        return self.elements // self.height * self.across

    @property
    def depth(self) -> int:
        """Terms with those that fill the last instruction."""
        return -(-self.n_terms // self.terms) * self.terms

    @property
    def stride(self) -> int:
        """Between elements of a tile in shared memory."""
        return _spread(self.depth)

    @property
    def row_stride(self) -> int:
        """Between elements of the results there, with those of idle rows."""
        return _spread(self.across * self.width)

    @property
    def n_sums(self) -> int:
        """The sums of a lane."""
        return self.n_deferred * self.height * self.width // WARP

    @property
    def n_fragments(self) -> int:
        """Entries of the matrices that a lane holds."""
        return self.n_matrices * self.n_deferred * self.width * self.depth // WARP

    @property
    def n_shared(self) -> int:
        """The entries of a group in shared memory."""
        of_element = self.stride + self.n_factors + self.n_fan * self.row_stride
        return self.elements * of_element


def _spread(n: int) -> int:
    """The next odd multiple of half the banks.

    >>> [_spread(n) for n in (4, 5, 12, 35, 40)]
    [4, 12, 12, 36, 44]
    """
    return n + (BANKS // 2 - n) % BANKS


Points: TypeAlias = Mapping[str, Expression]
"""The value of each index."""


class ItemEntries(NamedTuple):
    """Entries of an array that a work-item takes.

    Attributes:
        loops: unrolled.
        points: of the indices; elements are counted within their tile.
        points_of_all: the same, elements counted from the first of all.
        inside: conditions to be an entry, and none of those that others have.
        exists: these, and to be an element.
        after: what computes them.
    """

    loops: Names
    points: Points
    points_of_all: Points
    inside: tuple[Expression, ...]
    exists: tuple[Expression, ...]
    after: Names


class TileStart(NamedTuple):
    """The scalar that holds the first element of a tile.

    Attributes:
        loops: in which it is known.
        insn_id: of what computes it.
    """

    loops: Names
    name: str
    insn_id: str


class StagedPart(NamedTuple):
    """What work-items have in registers on its way to shared memory.

    Attributes:
        operands: to multiply.
        outer: indices of unrolled loops.
        slow, fast: indices that are dealt out as one, neighbours along the fast ones.
        array: in registers.
    """

    operands: Names
    outer: Names
    slow: Names
    fast: Names
    array: str


Partitions: TypeAlias = tuple[RaggedPartition, RaggedPartition]


class ElementTiles(ElementGroup):
    """The work-items of a group, and loops over the tiles of elements that they take.

    Attributes:
        around: the group and its work-items.
        loops: these, and the turns.
        now: where the tile of a turn begins.
        shared_accesses: ids of what reads and writes shared memory.
    """

    def __init__(self, schedule: Schedule, element: str, tiles: OperatorTiles) -> None:
        super().__init__(schedule, element, tiles.elements)
        self.tiles, writer = tiles, self.writer
        of_group, of_tile = tiles.elements * tiles.turns, tiles.elements
        group = writer.loop("group", f"{of_group}*{{}} < {self.extent}", tag="g.0")
        self.warp = writer.loop("warp", size=tiles.n_warps, tag="l.1")
        self.lane = writer.loop("lane", size=WARP, tag="l.0")
        self.around = (group, self.warp, self.lane)
        # the last group may have fewer turns, and its last tile fewer elements
        within = f"{of_group}*{group} + {of_tile}*{{}} < {self.extent}"
        turn = writer.loop("turn", within, size=tiles.turns)
        self.loops = (*self.around, turn)
        self.first = of_group * var(group)
        now = p.Sum((self.first, of_tile * var(turn)))
        self.now = TileStart(self.loops, *writer.scalar("start", now, self.loops))
        number = p.Sum((var(self.lane), WARP * var(self.warp)))
        self.item, self.numbered = writer.scalar("number", number, self.around)
        self.n_items = WARP * tiles.n_warps
        self.shared_accesses: list[str] = []
        self._partitions: dict[tuple[int, int], tuple[Partitions, Names]] = {}
        self._left: dict[tuple[Expression, str], tuple[str, str]] = {}

    def stage(self, operands: Names, outside: Names = ()) -> StagedPart:
        """How operands are dealt out: what comes after the element, and the elements.

        If the element is the last, what comes before is dealt out with it.
        """
        spans = [self.schedule.spans[name] for name in operands]
        # the largest operand decides: its reads are the ones worth being in a row
        largest = max(spans, key=self.volume)
        indices = tuple(i for i in largest if i not in outside)
        others = dict.fromkeys(i for span in spans for i in span if i not in indices)
        at = indices.index(self.element)
        outer, slow, fast = indices[:at], indices[at : at + 1], indices[at + 1 :]
        if not fast:
            outer, slow, fast = (), outer, slow
        outer = (*others, *outer)
        steps = (axis.n for axis in self._partition(slow, fast)[0])
        array = self.writer.array("ahead", (*map(self.length, outer), *steps), DOUBLE)
        return StagedPart(operands, outer, slow, fast, array)

    def start_of_first(self) -> TileStart:
        """Compute where the tile of the first turn begins."""
        start = self.writer.scalar("start", self.first, self.around)
        return TileStart(self.around, *start)

    def start_of_next(self) -> TileStart:
        """Compute where the tile of the next turn begins."""
        value = p.Sum((var(self.now.name), self.tiles.elements))
        start = self.writer.scalar("start", value, self.loops, (self.now.insn_id,))
        return TileStart(self.loops, *start)

    def load_part(
        self, part: StagedPart, start: TileStart, before: Collection[str]
    ) -> str:
        """Load a work-item's entries to registers; zero beyond the last element."""
        entries = self.entries_of_item(part, start)
        inames, points = self.unrolled(part.outer)
        loops = (*inames, *entries.loops)
        points = {**entries.points_of_all, **points}
        value = calls_product(self.schedule, part.operands, points)
        return self.writer.assign(
            "load", var(part.array)[tuple(map(var, loops))],
            # zero times a factor is zero: idle elements add nothing to anything
            p.If(p.LogicalAnd(entries.exists), value, ZERO),
            [*start.loops, *loops], [*entries.after, *before],
        )  # fmt: skip

    def entries_of_item(self, part: StagedPart, start: TileStart) -> ItemEntries:
        """A work-item's entries of a tile, which begins at ``start``."""
        axes, after = self._partition(part.slow, part.fast)
        loops: list[str] = []
        inside: list[Expression] = []
        points: dict[str, Expression] = {}
        exists: Expression = 1
        for indices, axis in zip((part.slow, part.fast), axes, strict=True):
            step = self.unroll(axis.n)
            loops.append(step)
            value, size = axis.at(var(step)), self.volume(indices)
            if axis.limit > size:
                inside.append(p.Comparison(value, "<", size))
            points |= self.flat(indices).unravel(value)
            if self.element in indices:
                left, counted = self._elements_left(axis, start, after)
                exists = p.Comparison(axis.stride * var(step), "<", var(left))
        if axes[0].is_idle:
            # these items would load rows that others have, and store them once more
            inside.append(p.Comparison(axes[0].first, "<", axes[0].stride))
        element = p.Sum((var(start.name), points[self.element]))
        return ItemEntries(
            (*loops,), points, {**points, self.element: element}, (*inside,),
            (*inside, exists), (*after, start.insn_id, counted),
        )  # fmt: skip

    def _elements_left(
        self, axis: RaggedPartition, start: TileStart, after: Names
    ) -> tuple[str, str]:
        """How many elements there are from a work-item's first one on, up to a tile.

        It is a small number, which takes one register and one comparison; comparing the
        element itself, of 64 bits, takes an addition and two of each.
        """
        key = axis.first, start.name
        if key not in self._left:
            first = p.Sum((var(start.name), axis.first))
            left = p.Sum((extent_of(self.extent), -1 * first))
            n = self.tiles.elements
            left = p.If(p.Comparison(left, "<", n), left, n)
            array = self.writer.array("left", (), np.dtype(np.int32))
            counted = self.writer.assign(
                "left", var(array), left, start.loops, (*after, start.insn_id)
            )
            self._left[key] = array, counted
        return self._left[key]

    def _partition(self, slow: Names, fast: Names) -> tuple[Partitions, Names]:
        """The part of a work-item, which begins at scalars; and what computes them."""
        key = self.volume(slow), self.volume(fast)
        # parts of one shape share the scalars: a quotient takes tens of instructions
        if key not in self._partitions:
            axes = ragged_partition(*key, self.n_items, var(self.item))
            firsts = [
                self.writer.scalar("first", axis.first, self.around, (self.numbered,))
                for axis in axes
            ]
            of_slow, of_fast = (
                replace(axis, first=var(first))
                for axis, (first, _) in zip(axes, firsts, strict=True)
            )
            after = tuple(insn_id for _, insn_id in firsts)
            self._partitions[key] = (of_slow, of_fast), after
        return self._partitions[key]

    def shared(self, stem: str, indices: Names, shape: tuple[int, ...]) -> Expression:
        """An array in shared memory, of the indices and axes of lengths ``shape``."""
        shape = (*map(self.length, indices), *shape)
        return var(self.writer.array(stem, shape, DOUBLE, is_shared=True))

    def unroll(self, n: int) -> str:
        return self.writer.loop("u", size=n, tag="unr")

    def unrolled(
        self, indices: Sequence[str]
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loops over indices, and their values."""
        inames = [self.unroll(self.length(i)) for i in indices]
        return inames, dict(zip(indices, map(var, inames), strict=True))

    def values(self, indices: Sequence[str]) -> Iterator[dict[str, Expression]]:
        """All values of indices."""
        for at in product(*(range(self.length(i)) for i in indices)):
            yield dict(zip(indices, at, strict=True))

    def note_shared(self, insn_id: str) -> str:
        """Note what reads or writes shared memory; its barriers are written by hand."""
        self.shared_accesses.append(insn_id)
        return insn_id
