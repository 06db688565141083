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

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.fragments import DOUBLE, ZERO
from feinsum.transforms.gpu.layouts import Share, partition_raggedly
from feinsum.transforms.gpu.sources import Reads, find_reads, find_source
from feinsum.transforms.gpu.tiles import GroupWriter, Point, express_extent
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.copy_async import (
    AsyncCopy,
    close_group,
    copy_async,
)
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.primitives.schedule import Expression, Names, multiply_rules


class CopiedFunction(NamedTuple):
    """A function of array entries, which each work-item copies to a place of its own.

    Attributes:
        reads: the function.
        arrays: the shared arrays of the copies of each entry, with an axis for the
            work-items.
        item: number of the work-item.
    """

    reads: Reads
    arrays: Names
    item: Expression

    def list_entries(self, subscripts: Sequence[Expression]) -> list[p.Subscript]:
        """Return the copies of the entries at one step of a work-item."""
        return [var(array)[(*subscripts, self.item)] for array in self.arrays]


@dataclass(frozen=True)
class StagedPart:
    """Entries that a work-item loads before their tile's turn.

    Attributes:
        operands: the operands whose product is staged.
        outer: indices of unrolled loops.
        slow, fast: the other indices, distributed to work-items; neighbours differ in
            the fast ones.
        array: the array in registers.
        copied: the function that is evaluated later, on copies of the entries that it
            reads; None if operands are evaluated at the load.
    """

    operands: Names
    outer: Names
    slow: Names
    fast: Names
    array: str
    copied: CopiedFunction | None = None

    def at(self, *subscripts: Expression) -> Expression:
        """Return a value that has been loaded."""
        if self.copied is None:
            return var(self.array)[subscripts]
        return self.copied.reads.value(self.copied.list_entries(subscripts))


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
        loops: unrolled loops over them.
        steps: those of them that are over the shares of work-items.
        points: the value of each index; elements are counted within their tile.
        points_of_all: the same, but elements are counted from the first of all.
        inside: conditions that the tile has the entry, and no other work-item has it.
        exists: the same, and that the element exists.
        after: ids of the statements that compute these values.
    """

    loops: Names
    steps: Names
    points: dict[str, Expression]
    points_of_all: Point
    inside: tuple[Expression, ...]
    exists: tuple[Expression, ...]
    after: Names


class StagingWriter(GroupWriter):
    """Writes the turns of groups of warps, and loads of their tiles.

    Args:
        n_turns: tiles of a group.
        n_warps: warps of a group.

    Attributes:
        around: loops over the groups and their work-items.
        loops: the same, and the loop over turns.
        first: the first element of a group.
        now: the start of the tile of a turn.
        shared_accesses: ids of the statements that read or write shared memory.
    """

    def __init__(
        self,
        schedule: Schedule,
        element: str,
        n_elements: int,
        n_turns: int,
        n_warps: int,
    ) -> None:
        super().__init__(schedule, element, n_elements)
        self.extent = schedule.extents[element]
        of_group = n_elements * n_turns
        group = self.loop("group", f"{of_group}*{{}} < {self.extent}", tag="g.0")
        self.warp = self.loop("warp", size=n_warps, tag="l.1")
        self.lane = self.loop("lane", size=WARP, tag="l.0")
        self.around = (group, self.warp, self.lane)
        # the last group may have fewer turns, and its last tile fewer elements
        within = f"{of_group}*{group} + {n_elements}*{{}} < {self.extent}"
        turn = self.loop("turn", within, size=n_turns)
        self.loops = (*self.around, turn)
        self.first = of_group * var(group)
        start = p.Sum((self.first, n_elements * var(turn)))
        self.now = self.assign_start(start, self.loops)
        number = p.Sum((var(self.lane), WARP * var(self.warp)))
        self.item, self.numbered = self.scalar("number", number, self.around)
        self.n_items = WARP * n_warps
        self.shared_accesses: list[str] = []
        self._partitions: dict[tuple[int, int], tuple[list[Share], Names]] = {}
        self._left: dict[tuple[Expression, str], tuple[str, str]] = {}
        self._copies: dict[tuple[tuple[int, ...], int], Names] = {}

    @property
    def has_copies(self) -> bool:
        """Whether some function is evaluated on copies."""
        return bool(self._copies)

    def note_shared(self, insn_id: str) -> str:
        """Record an access to shared memory, for which families write barriers."""
        self.shared_accesses.append(insn_id)
        return insn_id

    def assign_start(
        self, value: Expression, loops: Names, after: Names = ()
    ) -> TileStart:
        """Assign the first element of a tile to a scalar."""
        return TileStart(loops, *self.scalar("start", value, loops, after))

    def stage(self, operands: Names, outside: Names = ()) -> StagedPart:
        """Distribute elements, and the indices after the element, to work-items.

        If the element is the last index, the indices before it are distributed instead.

        Args:
            operands: the operands whose product is staged.
            outside: indices of unrolled loops around all others.
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

    def with_copies(self, part: StagedPart, n_shared: int, n_groups: int) -> StagedPart:
        """Copy the entries that a function reads, to evaluate it when it is settled.

        The evaluation at a load would wait for it, and so keep it from overlapping with
        the product. Copies take no registers.

        Args:
            part: the part, of a single operand.
            n_shared: numbers of a group in shared memory without the copies.
            n_groups: groups that must fit a multiprocessor.
        """
        (operand,) = part.operands
        reads = find_reads(self.schedule, operand)
        if reads is None or find_source(self.schedule, operand) is not None:
            return part
        shape = (*self._arrays[part.array].shape, self.n_items)
        n_bytes = 8 * (n_shared + prod(shape) * len(reads.sources))
        # two groups are enough to wait for copies and barriers in turns
        if min(n_groups, 2) * n_bytes > h.SHARED_BYTES_SM80:
            return part
        del self._arrays[part.array]
        # the rows of a batch are copied one after another
        key = shape, len(reads.sources)
        if key not in self._copies:
            self._copies[key] = tuple(
                self.array("ahead", shape, DOUBLE, is_shared=True)
                for _ in reads.sources
            )
        copied = CopiedFunction(reads, self._copies[key], var(self.item))
        return replace(part, copied=copied)

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
            (*inames, *steps), (*steps,), points, {**points, self.element: element},
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
            n_left = p.Sum((express_extent(self.extent), -1 * first))
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

    def load(self, part: StagedPart, start: TileStart, before: Collection[str]) -> str:
        """Load a work-item's entries to registers; zero beyond the last element."""
        entries = self.visit(part.slow, part.fast, part.outer, start)
        value = multiply_rules(self.schedule, part.operands, entries.points_of_all)
        return self.assign(
            "load", var(part.array)[tuple(map(var, entries.loops))],
            # zeros in place of elements that do not exist add nothing to any sum
            p.If(p.LogicalAnd(entries.exists), value, ZERO),
            [*start.loops, *entries.loops], [*entries.after, *before],
        )  # fmt: skip

    def begin_copies(
        self, part: StagedPart, start: TileStart, before: Collection[str]
    ) -> list[str]:
        """Begin to copy what a function reads, if it is evaluated later."""
        if part.copied is None:
            return []
        entries = self.visit(part.slow, part.fast, part.outer, start)
        inside = (*start.loops, *entries.loops)
        after = (*entries.after, self.numbered, *before)
        exists = p.If(p.LogicalAnd(entries.exists), 1, 0)
        n_copied, counted = self.scalar("inside", exists, inside, after)
        values = [
            entries.points_of_all[i] for i in self.schedule.spans[part.operands[0]]
        ]
        begun = []
        targets = part.copied.list_entries(tuple(map(var, entries.loops)))
        for source, entry in zip(part.copied.reads.sources, targets, strict=True):
            target, target_id = self.assign_offset(entry, inside, after)
            origin, origin_id = self.scalar("origin", source.at(values), inside, after)
            copy = AsyncCopy(
                1, (entry.aggregate.name, target), (source.array, origin), n_copied
            )
            build, ids = partial(copy_async, copy), (counted, target_id, origin_id)
            begun.append(self.note_shared(self.add("copy", build, inside, ids)))
        return [*begun, self.add("close", close_group, start.loops, begun)]
