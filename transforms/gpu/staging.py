"""Tiles of elements, which pass through registers on their way to shared memory.

A group goes through several tiles, one in each turn. What a tile needs moves from
global memory to registers while the previous tile is multiplied, and is settled in
shared memory at the beginning of its turn::

    global memory      u[e, 0..34]               rows of 35 terms, say, of each element
         |  all work-items, neighbours along the terms (``partition_raggedly``)
    registers          ahead[steps]              a few entries of each work-item
         |  barrier
    shared memory      tile[32][36]

If an operand is a function of arrays, such as ``0.5*(a[f,e,j] + b[f,e,j])`` for both
sides of a face, a load to registers would wait for the arrays to evaluate it. So
entries are copied without registers, each to a place of its own in shared memory, and
the function is evaluated when the tile is settled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.raising import value_of
from feinsum.raising.expressions import make_sum
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.fragments import DOUBLE, ZERO
from feinsum.transforms.gpu.layouts import Share, partition_raggedly
from feinsum.transforms.gpu.operator_steps import OperatorSteps, OperatorTiles
from feinsum.transforms.gpu.sources import Reads, find_reads
from feinsum.transforms.gpu.tiles import GroupWriter, Point
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.copy_async import AwaitGroups, CloseGroup
from feinsum.transforms.primitives.schedule import Expression, Names


@dataclass(frozen=True)
class StagedPart:
    """Entries that a work-item loads before their tile's turn.

    Attributes:
        operands: the operands whose product is staged.
        outer: indices of unrolled loops.
        slow, fast: the other indices, distributed to work-items; neighbours differ in
            the fast ones.
        array: the array in registers.
        reads: the function that is evaluated later, on copies of the entries that it
            reads; None if operands are evaluated at the load.
        copies: the shared arrays of these entries, with an axis for the work-items, so
            that each of them copies to a place of its own.
        item: number of the work-item.
    """

    operands: Names
    outer: Names
    slow: Names
    fast: Names
    array: str
    reads: Reads | None = None
    copies: Names = ()
    item: Expression = 0

    def at(self, *subscripts: Expression) -> Expression:
        """Return a value that has been loaded."""
        if self.reads is None:
            return var(self.array)[subscripts]
        return self.reads.value(self.list_copies(subscripts))

    def list_copies(self, subscripts: Sequence[Expression]) -> list[p.Subscript]:
        """Return the copies of the entries at one step of a work-item."""
        return [var(array)[(*subscripts, self.item)] for array in self.copies]


class TileStart(NamedTuple):
    """The scalar that holds the first element of a tile.

    Attributes:
        loops: the loops in which it is assigned.
        name: its name.
        insn_id: id of the statement that computes it.
    """

    loops: Names
    name: str
    insn_id: str


class Entries(NamedTuple):
    """A work-item's entries of a tile.

    Attributes:
        loops: unrolled loops over them, of which the last two are over the shares of
            work-items.
        points: the value of each index; elements are counted within their tile.
        points_of_all: the same, but elements are counted from the first of all.
        inside: conditions that the tile has the entry, and no other work-item has it.
        exists: the same, and that the element exists.
        after: ids of the statements that compute these values.
    """

    loops: Names
    points: dict[str, Expression]
    points_of_all: Point
    inside: tuple[Expression, ...]
    exists: tuple[Expression, ...]
    after: Names


class Factors(NamedTuple):
    """A product of operands for each element, in shared memory.

    Attributes:
        positions: positions of the operands.
        indices: their indices, except for the element.
        array: the shared array.
    """

    positions: tuple[int, ...]
    indices: Names
    array: Expression

    def at(self, points: Point, element: Expression) -> Expression:
        return self.array[(*(points[i] for i in self.indices), element)]


RowParts: TypeAlias = tuple[StagedPart, list[tuple[Factors, StagedPart]]]
"""The staged part of the streamed operand, and those of factors to be loaded."""


class StagingWriter(GroupWriter):
    """Writes the turns of groups of warps, and the loads of their tiles.

    Args:
        has_early_loads: whether loads stay before the barrier that follows them.

    Attributes:
        around: loops over the groups and their work-items.
        loops: the same, and the loop over turns.
        first: the first element of a group.
        now: the start of the tile of a turn.
        copies: arrays of the entries that functions read, by their shape and number.
        shared_accesses: ids of the statements that read or write shared memory, for
            which barriers are written.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: OperatorSteps,
        tiles: OperatorTiles,
        *,
        has_early_loads: bool,
    ) -> None:
        super().__init__(schedule, steps.element, tiles.elements)
        self.steps, self.tiles, self.has_early_loads = steps, tiles, has_early_loads
        of_group, of_tile = tiles.elements * tiles.turns, tiles.elements
        group = self.loop("group", f"{of_group}*{{}} < {self.extent}", tag="g.0")
        self.warp = self.loop("warp", size=tiles.n_warps, tag="l.1")
        self.lane = self.loop("lane", size=h.WARP, tag="l.0")
        self.around = (group, self.warp, self.lane)
        # the last group may have fewer turns, and its last tile fewer elements
        within = f"{of_group}*{group} + {of_tile}*{{}} < {self.extent}"
        turn = self.loop("turn", within, size=tiles.turns)
        self.loops = (*self.around, turn)
        self.first = of_group * var(group)
        start = p.Sum((self.first, of_tile * var(turn)))
        self.now = self.assign_start(start, self.loops)
        number = p.Sum((var(self.lane), h.WARP * var(self.warp)))
        self.item, self.numbered = self.scalar("number", number, self.around)
        self.n_items = h.WARP * tiles.n_warps
        self.terms = self.flat(steps.contracted)
        self.shared_accesses: list[str] = []
        self.settled_factors: list[str] = []
        self._partitions: dict[tuple[int, int], tuple[list[Share], Names]] = {}
        self._left: dict[tuple[Expression, str], tuple[str, str]] = {}
        self.copies: dict[tuple[tuple[int, ...], int], Names] = {}

    def declare_tiles(self) -> None:
        """Declare the shared arrays of a tile and of its factors."""
        tiles = self.tiles
        self.tile = self.declare_shared("tile", (), (tiles.elements, tiles.stride))
        self.scales = self._declare_factors("scales", tiles.scaling)
        self.factors = self._declare_factors("factors", self.steps.late)

    def note_shared(self, insn_id: str) -> str:
        """Record an access to shared memory, for which families write barriers."""
        self.shared_accesses.append(insn_id)
        return insn_id

    def assign_start(
        self, value: Expression, loops: Names, after: Names = ()
    ) -> TileStart:
        """Assign the first element of a tile to a scalar."""
        return TileStart(loops, *self.scalar("start", value, loops, after))

    def _stage(self, operands: Names, outside: Names = ()) -> StagedPart:
        """Distribute elements, and the indices after the element, to work-items.

        If the element is the last index, the indices before it are distributed instead.
        """
        spans = [self.schedule.spans[name] for name in operands]
        # the order of the largest operand: its reads should be contiguous
        largest = max(spans, key=self.volume)
        indices = tuple(i for i in largest if i not in outside)
        other_indices = dict.fromkeys(
            i for span in spans for i in span if i not in indices
        )
        axis = indices.index(self.element)
        outer, slow, fast = (
            indices[:axis],
            indices[axis : axis + 1],
            indices[axis + 1 :],
        )
        if not fast:
            outer, slow, fast = (), outer, slow
        outer = (*other_indices, *outer)
        steps = (share.n for share in self._partition(slow, fast)[0])
        array = self.array("ahead", (*map(self.length, outer), *steps), DOUBLE)
        return StagedPart(operands, outer, slow, fast, array)

    def _with_copies(self, part: StagedPart) -> StagedPart:
        """Copy the entries that a function reads, to evaluate it when it is settled.

        The evaluation at a load would wait for it, and so keep it from overlapping with
        the product. Copies take no registers.
        """
        tiles = self.tiles
        (operand,) = part.operands
        reads = find_reads(self.schedule, operand)
        if reads is None or not (tiles.is_ahead and self.has_early_loads):
            return part
        shape = (*self._arrays[part.array].shape, self.n_items)
        n_bytes = 8 * (tiles.n_shared + prod(shape) * len(reads.sources))
        # two groups are enough to wait for copies and barriers in turns
        if min(tiles.groups, 2) * n_bytes > h.SHARED_BYTES_SM80:
            return part
        del self._arrays[part.array]
        # the rows of a batch are copied one after another
        key = shape, len(reads.sources)
        if key not in self.copies:
            self.copies[key] = tuple(
                self.array("ahead", shape, DOUBLE, is_shared=True)
                for _ in reads.sources
            )
        copies = self.copies[key]
        return replace(part, reads=reads, copies=copies, item=var(self.item))

    def visit(
        self, slow: Names, fast: Names, outer: Sequence[str], start: TileStart
    ) -> Entries:
        """Loop over a work-item's entries of a tile, inside of loops over ``outer``."""
        axes, after = self._partition(slow, fast)
        steps: list[str] = []
        inside: list[Expression] = []
        points: dict[str, Expression] = {}
        exists: Expression = 1
        for indices, share in zip((slow, fast), axes, strict=True):
            step = self.unroll(share.n)
            steps.append(step)
            value, size = share.at(var(step)), self.volume(indices)
            if share.limit > size:
                inside.append(p.Comparison(value, "<", size))
            points |= self.flat(indices).unravel(value)
            if self.element in indices:
                n_left, counted = self._count_elements_left(share, start, after)
                exists = p.Comparison(share.stride * var(step), "<", var(n_left))
        if axes[0].is_idle:
            # these items would load and store rows that other items have
            inside.append(p.Comparison(axes[0].first, "<", axes[0].stride))
        inames, of_outer = self.loop_over(outer, "unr")
        points |= of_outer
        element = p.Sum((var(start.name), points[self.element]))
        return Entries(
            (*inames, *steps), points, {**points, self.element: element},
            (*inside,), (*inside, exists), (*after, start.insn_id, counted),
        )  # fmt: skip

    def _count_elements_left(
        self, share: Share, start: TileStart, after: Names
    ) -> tuple[str, str]:
        """Count the elements from a work-item's first one on, at most a tile.

        This number takes one register and one comparison. A comparison of the element
        itself, of 64 bits, would take an addition and two of each.
        """
        key = share.first, start.name
        if key not in self._left:
            first = p.Sum((var(start.name), share.first))
            n_left = p.Sum((value_of(self.extent), -1 * first))
            n = self.n_elements
            n_left = p.If(p.Comparison(n_left, "<", n), n_left, n)
            array = self.array("left", (), np.dtype(np.int32))
            before = (*after, start.insn_id)
            counted = self.assign("left", var(array), n_left, start.loops, before)
            self._left[key] = array, counted
        return self._left[key]

    def _partition(self, slow: Names, fast: Names) -> tuple[list[Share], Names]:
        """Distribute indices to work-items; return their shares and statement ids."""
        key = self.volume(slow), self.volume(fast)
        # parts of one shape share the scalars of their starts
        if key not in self._partitions:
            axes = partition_raggedly(*key, self.n_items, var(self.item))
            self._partitions[key] = self.hold_starts(
                axes, self.around, (self.numbered,)
            )
        return self._partitions[key]

    def _load(self, part: StagedPart, start: TileStart, before: Collection[str]) -> str:
        """Load a work-item's entries to registers; zero beyond the last element."""
        entries = self.visit(part.slow, part.fast, part.outer, start)
        value = self.schedule.multiply(part.operands, entries.points_of_all)
        return self.assign(
            "load", var(part.array)[tuple(map(var, entries.loops))],
            # zeros in place of elements that do not exist add nothing to any sum
            p.If(p.LogicalAnd(entries.exists), value, ZERO),
            [*start.loops, *entries.loops], [*entries.after, *before],
        )  # fmt: skip

    def begin_copies(
        self, row_parts: RowParts, start: TileStart, before: Collection[str]
    ) -> list[str]:
        """Begin to copy what the function of a row reads, if it is evaluated later."""
        part, _ = row_parts
        if part.reads is None:
            return []
        entries = self.visit(part.slow, part.fast, part.outer, start)
        inside = (*start.loops, *entries.loops)
        after = (*entries.after, self.numbered, *before)
        exists = p.If(p.LogicalAnd(entries.exists), 1, 0)
        n_copied = self.scalar("inside", exists, inside, after)
        values = [
            entries.points_of_all[i] for i in self.schedule.spans[part.operands[0]]
        ]
        targets = part.list_copies(tuple(map(var, entries.loops)))
        begun = [
            self.begin_copy(entry, source, values, n_copied, inside, after)
            for source, entry in zip(part.reads.sources, targets, strict=True)
        ]
        self.shared_accesses += begun
        return [*begun, self.state("close", CloseGroup(), start.loops, begun)]

    def list_parts(self, k: int) -> RowParts:
        """Return the parts of a row that are not yet in shared memory."""
        rows = self.schedule.rows
        new_factors = []
        for factors in (self.scales, self.factors):
            if factors is None:
                continue
            names = [tuple(row[n] for n in factors.positions) for row in rows]
            # factors that all rows share are loaded with the first row
            if k == 0 or len({*names}) > 1:
                new_factors.append((factors, self._stage(names[k])))
        streamed = self._stage((rows[k][self.tiles.streamed],), self.steps.gathered)
        return self._with_copies(streamed), new_factors

    def load_parts(
        self, row_parts: RowParts, start: TileStart, before: Collection[str]
    ) -> list[str]:
        """Load all of a work-item's parts to registers; it then waits only once."""
        streamed, factor_parts = row_parts
        parts = (*(part for _, part in factor_parts), streamed)
        return [self._load(x, start, before) for x in parts if x.reads is None]

    def get_next(
        self, row_parts: Sequence[RowParts], k: int
    ) -> tuple[RowParts, TileStart]:
        """Return the parts of the next row, or of the first row of the next turn."""
        if k + 1 < len(row_parts):
            return row_parts[k + 1], self.now
        first = p.Sum((var(self.now.name), self.tiles.elements))
        start = self.assign_start(first, self.loops, (self.now.insn_id,))
        return row_parts[0], start

    def settle_parts(self, row_parts: RowParts, before: list[str]) -> list[str]:
        """Move all parts of a row from registers to shared memory."""
        streamed, factor_parts = row_parts
        if streamed.reads is not None:
            before = [*before, self.state("wait", AwaitGroups(0), self.loops, before)]
        for factors, part in factor_parts:
            entries = self.visit(part.slow, part.fast, part.outer, self.now)
            settled = self.assign(
                "settle", factors.at(entries.points, entries.points[self.element]),
                part.at(*map(var, entries.loops)), [*self.loops, *entries.loops],
                [*entries.after, *before], predicates=entries.inside,
            )  # fmt: skip
            self.settled_factors.append(self.note_shared(settled))
        before = [*before, *self.settled_factors]
        # another work-item may have loaded the factors of an element
        if self.scales and any(factors is self.scales for factors, _ in factor_parts):
            before.append(self.barrier(self.loops, before))
        return [*before, self._fill(streamed, before)]

    def _fill(self, part: StagedPart, before: Collection[str]) -> str:
        """Write the scaled streamed operand to the tile."""
        dealt_out = {*part.slow, *part.fast}
        outer = [i for i in self.steps.tile if i not in dealt_out]
        entries = self.visit(part.slow, part.fast, outer, self.now)
        element = entries.points[self.element]
        terms: list[Expression] = []
        # the tile lacks gathered indices: they are summed here
        for gathered in self.list_values(self.steps.gathered):
            points = {**entries.points, **gathered}
            steps = map(var, entries.loops[-2:])
            value = part.at(*(points[i] for i in part.outer), *steps)
            if self.scales:
                value = p.Product((self.scales.at(points, element), value))
            terms.append(value)
        return self.note_shared(
            self.assign(
                "fill",
                self.tile[element, self.terms.ravel(entries.points)],
                make_sum(terms),
                [*self.loops, *entries.loops],
                [*entries.after, *([self.numbered] if part.reads else []), *before],
                predicates=entries.inside,
            )
        )

    def declare_shared(
        self, stem: str, indices: Names, shape: tuple[int, ...]
    ) -> Expression:
        """Declare a shared array with an axis for each index, and axes of ``shape``."""
        shape = (*map(self.length, indices), *shape)
        return var(self.array(stem, shape, DOUBLE, is_shared=True))

    def list_values(self, indices: Sequence[str]) -> Iterator[dict[str, Expression]]:
        """Yield all combinations of values of indices."""
        for values in product(*(range(self.length(i)) for i in indices)):
            yield dict(zip(indices, values, strict=True))

    def _declare_factors(self, stem: str, positions: tuple[int, ...]) -> Factors | None:
        """Declare the shared array for a product of operands, if there are any."""
        if not positions:
            return None
        spans = [self.schedule.spans[self.schedule.rows[0][k]] for k in positions]
        joint = dict.fromkeys(i for span in spans for i in span)
        indices = tuple(i for i in joint if i != self.element)
        # elements last: lanes of neighbouring elements read neighbours
        array = self.declare_shared(stem, indices, (self.tiles.elements,))
        return Factors(positions, indices, array)
