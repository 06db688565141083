"""Tiles of operands in shared memory: who loads what, and when.

A tile of an operand is ``depth`` values of the summed indices by ``side.tile`` of the
others; ``stages`` of them are in shared memory at once. With three stages, copies are
two tiles ahead of the products::

    tile     0        1        2        3
    copy     0  1 |   2    |   3    |   4          (| is a barrier)
    wait          0   |    1   |    2   |    3     (all copies but the last one)
    multiply      0   |    1   |    2   |    3
    slot of the copy  2        0        1          later = (tile + 2) % 3

One barrier for each tile is enough: behind it, all work-items have their copies of this
tile, and none still reads the tile before, whose slot is the one that is filled next.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA", "Pipelining".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu.grid import Items, Points, points_of
from feinsum.transforms.gpu.layouts import (
    UNSWIZZLED,
    Flat,
    Partition,
    Swizzle,
    is_evenly_partitioned,
    partition,
)
from feinsum.transforms.gpu.reads import OperandSource, Reads, reads_of, source_of
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.copy_async import (
    VECTOR_BYTES,
    AsyncCopy,
    await_groups,
    close_group,
    copy_async,
)
from feinsum.transforms.primitives.schedule import Expression, Names

Key: TypeAlias = tuple[str, bool]
"""An operand, and whether it is the one that is across."""


@dataclass(frozen=True)
class SharedTile:
    """Tiles of an operand in shared memory, of which several are there at once.

    Attributes:
        is_deep: whether entries along the summed indices lie side by side.
        swizzle: where entries along the others lie.
    """

    array: str
    is_deep: bool
    swizzle: Swizzle

    def at(self, slot: Expression, deep: Expression, wide: Expression) -> p.Subscript:
        """The entry by its places along the summed indices and along the others."""
        return self._entry(slot, deep, self.swizzle.position(wide))

    def loaded(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        """The entry, by its place in the order in which operands are read."""
        return self._entry(slot, deep, self.swizzle.position_of_load(wide))

    def _entry(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        at = (wide, deep) if self.is_deep else (deep, wide)
        return var(self.array)[(slot, *at)]


@dataclass(frozen=True)
class Side:
    """One operand's part of the output, cut into tiles.

    Attributes:
        group: the iname of the tiles.
        tile: its length.
        swizzle: the order of its entries.
    """

    flat: Flat
    group: str
    tile: int
    swizzle: Swizzle = UNSWIZZLED

    @property
    def start(self) -> Expression:
        return self.tile * var(self.group)


@dataclass(frozen=True)
class TileRange:
    """Every so many-th tile along the summed indices, from one on.

    Attributes:
        share: the iname of the first one; empty for zero.
        n: in how many shares they are dealt out.
    """

    share: str = ""
    n: int = 1

    @property
    def text(self) -> str:
        """A tile by its number in a share, in isl's syntax with ``{}`` for that."""
        return f"{self.share} + {self.n}*{{}}" if self.share else "{}"

    def tile(self, number: Expression) -> Expression:
        return p.Sum((var(self.share), self.n * number)) if self.share else number


@dataclass(frozen=True)
class Tiled:
    """An operand at the present step of the loop over tiles.

    Attributes:
        tiles: of what it reads.
        slot: the scalar that says which ones they are.
        value: of the operand, given the entries and the place along the sums.
    """

    tiles: tuple[SharedTile, ...]
    slot: str
    dtype: np.dtype[Any]
    value: Callable[[Sequence[Expression], Expression], Expression]

    def at(self, deep: Expression, wide: Expression) -> Expression:
        entries = [tile.at(var(self.slot), deep, wide) for tile in self.tiles]
        return self.value(entries, deep)


@dataclass(frozen=True)
class Load:
    """An operand and the way that it takes to its tiles.

    Attributes:
        deep, wide: what a work-item has of a tile.
        partitioned: the ids of what computes where these begin.
        points: of the indices that are not summed.
        source: if it is copied; else it is computed in registers first.
        lanes: entries of one copy.
        registers: the array of these; empty for copies.
    """

    operand: str
    tile: SharedTile
    deep: Partition
    wide: Partition
    partitioned: Names
    points: Points
    source: OperandSource | None
    lanes: int
    registers: str


class _Steps(NamedTuple):
    """What the statements of a load have in common.

    Attributes:
        at: steps along the summed indices and along the others.
        points: of the operand's span.
        inside: conditions to be within the extents.
        before: the ids of what has to be done before.
    """

    loops: Names
    at: tuple[Expression, Expression]
    points: tuple[Expression, ...]
    inside: tuple[Expression, ...]
    before: Names


class _Stage(NamedTuple):
    """A step of the loop over tiles.

    Attributes:
        loops: with that over tiles.
        tile: the number of the tile that is multiplied.
        later: that of the tile that is loaded.
        now, slot: the scalars that hold their places in shared memory.
        barrier: ids of the barrier and of what computes these places.
        set_slot: the id of the latter for ``slot``.
    """

    loops: Names
    tile: Expression
    later: Expression
    now: str
    slot: str
    barrier: Names
    set_slot: str


class TileWriter:
    """Writes the loop over tiles, in which later ones are loaded ahead.

    Rewrite::

        for tile:  acc += A(tile)*B(tile)

        A_tile[0], B_tile[0] = A(0), B(0)
        for tile:
            (barrier)
            A_tile[(tile + 1) % 2], B_tile[(tile + 1) % 2] = A(tile + 1), B(tile + 1)
            acc += A_tile[tile % 2]*B_tile[tile % 2]

    Arrays are copied while products are computed, with instructions for that, and so
    can be several tiles ahead; functions of arrays are kept in registers so long.
    Entries beyond the extents are zero, so that whoever reads a tile reads all of it.

    Args:
        stages: how many tiles of an operand are there at once, 2 or more.
        is_copied: whether arrays are copied; else they are treated as functions.
        keeps_order: whether entries that are neighbours in an operand are so in its
            tile; else those are that are not along the summed indices.
        is_late: whether functions of arrays are evaluated when a tile is read, and
            what they read is copied.
        tile_range: which tiles a group has; by default all.
    """

    def __init__(
        self,
        writer: NestWriter,
        items: Items,
        summed: Flat,
        depth: int,
        batch: Mapping[str, Expression],
        grid: Sequence[str],
        *,
        stages: int,
        is_copied: bool,
        keeps_order: bool,
        is_late: bool = False,
        tile_range: TileRange | None = None,
    ) -> None:
        self.writer, self.items = writer, items
        self.tile_range = tile_range or TileRange()
        self.summed, self.depth, self.batch = summed, depth, batch
        self.stages, self.is_copied, self.keeps_order = stages, is_copied, keeps_order
        self.is_late = is_late
        self.around = (*grid, *reversed(items.inames))
        self.item = writer.array("number", (), np.dtype(np.uint32))
        self.numbered = writer.assign(
            "number", var(self.item), items.number, self.around
        )

    def write_products(
        self,
        wanted: Mapping[Key, tuple[str, Side]],
        multiply: Callable[[Mapping[Key, Tiled], Names, Names], tuple[Names, Names]],
    ) -> None:
        """Write the loop.

        Args:
            wanted: operands with the side that each has.
            multiply: given the tiles, the loops and what has to be done before, it
                writes the products; the ids of those that read tiles, and of the last
                ones.
        """
        by_key = {key: self._loads(*pair) for key, pair in wanted.items()}
        loads = [load for several in by_key.values() for load in several]
        first, closed = self._load_first(loads)
        stage = self._next_stage(loads, closed)
        begun = [
            self._begin_copy(load, stage.later, var(stage.slot), stage.loops,
                             stage.barrier)
            if load.source is not None
            else self._compute(load, stage.later, stage.loops, stage.barrier)
            for load in loads
        ]  # fmt: skip
        closed = self._close_copies(stage.loops, begun)
        size, sized = self._summed_size(wanted)
        tiled = {
            key: self._tiled(wanted[key][0], several, stage.now, stage.tile, size)
            for key, several in by_key.items()
        }
        reads, last = multiply(tiled, stage.loops, (*stage.barrier, *closed, *sized))
        after = [*last, *begun, stage.set_slot]
        settled = [
            self._settle(load, var(stage.slot), stage.loops, after)
            for load in loads
            if load.source is None
        ]
        # the barrier and the waits above order these, which Loopy cannot see
        self.writer.note_ordered(*first, *begun, *reads, *settled)

    def _load_first(self, loads: Sequence[Load]) -> tuple[list[str], list[str]]:
        """Load all tiles but one before the loop; ids of loads, and of their groups."""
        early = self.writer.loop("early", size=self.stages - 1, tag="unr")
        loops, tile = [*self.around, early], var(early)
        first = [
            self._begin_copy(load, tile, tile, loops, [])
            if load.source is not None
            else self._compute(load, tile, loops, [], tile)
            for load in loads
        ]
        return first, self._close_copies(loops, first)

    def _next_stage(self, loads: Sequence[Load], closed: Sequence[str]) -> _Stage:
        """The loop over tiles, up to the barrier."""
        writer, n_ahead = self.writer, self.stages - 1
        tile = writer.loop(
            "tile", f"{self.depth}*({self.tile_range.text}) < {self.summed.size}"
        )
        loops = (*self.around, tile)
        now, set_now = writer.scalar("now", p.Remainder(var(tile), self.stages), loops)
        later = p.Sum((var(tile), n_ahead))
        slot, set_slot = writer.scalar("slot", p.Remainder(later, self.stages), loops)
        before = [*closed, set_now, set_slot]
        if any(load.source is not None for load in loads):
            # stages - 1 tiles are on their way; the oldest has to be there
            wait = partial(await_groups, self.stages - 2)
            before = [writer.add("wait", wait, loops, before)]
        # one barrier for each tile: after it, nobody reads the one before, whose
        # place is filled next
        barrier = (writer.barrier(loops, before), set_now, set_slot)
        return _Stage(loops, var(tile), later, now, slot, barrier, set_slot)

    def _loads(self, operand: str, side: Side) -> list[Load]:
        """One of an operand, or one of each array that it is a function of."""
        reads = self._reads(operand)
        if reads is not None:
            return [self._load(operand, side, source) for source in reads.sources]
        source = source_of(self.writer.schedule, operand) if self.is_copied else None
        return [self._load(operand, side, source)]

    def _reads(self, operand: str) -> Reads | None:
        """What it reads, if it is a function that is evaluated in the end."""
        schedule = self.writer.schedule
        if not self.is_late or source_of(schedule, operand) is not None:
            return None
        return reads_of(schedule, operand)

    def _summed_size(
        self, wanted: Mapping[Key, tuple[str, Side]]
    ) -> tuple[Expression, Names]:
        """The number of terms, and the ids of what computes it."""
        is_late = any(
            self._reads(operand) is not None for operand, _ in wanted.values()
        )
        if self.summed.is_known or not is_late:
            return self.summed.size_in_c, ()
        # in a scalar, as Loopy understands no casts where it checks bounds
        size, computed = self.writer.scalar("size", self.summed.size_in_c, self.around)
        return var(size), (computed,)

    def _tiled(
        self,
        operand: str,
        loads: Sequence[Load],
        now: str,
        tile: Expression,
        size: Expression,
    ) -> Tiled:
        """Tiles of what an operand reads, whose function is zero beyond the sums."""
        reads, tiles = self._reads(operand), tuple(load.tile for load in loads)
        dtype = self.writer.schedule.dtypes[operand]
        if reads is None:
            return Tiled(tiles, now, dtype, lambda entries, _: entries[0])
        start = self.depth * self.tile_range.tile(tile)

        def value(entries: Sequence[Expression], deep: Expression) -> Expression:
            in_full = reads.value(entries)
            if self.summed.is_divided_by(self.depth):
                return in_full
            # the entries beyond are zero, of which the function may be anything
            inside = p.Comparison(p.Sum((start, deep)), "<", size)
            return p.If(inside, in_full, dtype.type(0))

        return Tiled(tiles, now, dtype, value)

    def _load(self, operand: str, side: Side, source: OperandSource | None) -> Load:
        """The tiles of an operand, and the part of each that a work-item loads."""
        writer, schedule = self.writer, self.writer.schedule
        span, dtype = schedule.spans[operand], schedule.dtypes[operand]
        # neighbours in memory are loaded by neighbours: along the last index
        is_deep = bool(span) and span[-1] in self.summed.indices
        shape = (side.tile, self.depth) if is_deep else (self.depth, side.tile)
        is_kept = self.keeps_order or not is_deep
        n_rows, n_columns = shape if is_kept else shape[::-1]
        swizzle = UNSWIZZLED if is_deep else side.swizzle
        array = writer.array(
            f"{operand}_tile", (self.stages, n_rows, n_columns + swizzle.padding),
            dtype, is_shared=True,
        )  # fmt: skip
        lanes = 1
        if source is not None and is_kept and swizzle.piece == 1:
            fast = self.summed if is_deep else side.flat
            lanes = self._lanes(source, operand, fast, shape)
        parts = [
            self._with_scalar_start(part)
            for part in partition(*shape, self.items.n, var(self.item), lanes)
        ]
        (deep, deep_id), (wide, wide_id) = parts[::-1] if is_deep else parts
        points = points_of(
            writer, side.flat, wide.n, wide.after(side.start), self.around,
            [deep_id, wide_id], tile=side.tile,
        )  # fmt: skip
        registers = ""
        if source is None:
            registers = writer.array("ahead", (deep.n, wide.n), dtype)
        return Load(
            operand, SharedTile(array, is_deep and is_kept, swizzle), deep, wide,
            (deep_id, wide_id), points, source, lanes, registers,
        )  # fmt: skip

    def _with_scalar_start(self, part: Partition) -> tuple[Partition, str]:
        """A partition that begins at a scalar, and the id of what computes this."""
        # else each step would divide the number of the work-item anew
        first, computed = self.writer.scalar(
            "first", part.first, self.around, (self.numbered,)
        )
        return replace(part, first=var(first)), computed

    def _lanes(
        self, source: OperandSource, operand: str, fast: Flat, shape: tuple[int, int]
    ) -> int:
        """The most entries that one copy can move without crossing the end of a row."""
        schedule, (last, _, extent) = self.writer.schedule, fast.parts[-1]
        span = schedule.spans[operand]
        is_row = bool(span) and span[-1] == last
        if not is_row or source.neighbour != source.arguments[-1]:
            return 1
        lanes = VECTOR_BYTES // schedule.dtypes[operand].itemsize
        fits = (
            isinstance(extent, int)
            and extent % lanes == 0
            and is_evenly_partitioned(shape[0], shape[1] // lanes, self.items.n)
        )
        return lanes if fits else 1

    def _close_copies(self, loops: Sequence[str], begun: list[str]) -> list[str]:
        """Make a group of the copies of a tile, so that it can be waited for."""
        if not self.is_copied:
            return begun
        return [self.writer.add("close", close_group, loops, begun), *begun]

    def _steps(
        self, load: Load, tile: Expression, loops: Sequence[str], after: Collection[str]
    ) -> _Steps:
        """The points of a tile, which may be beyond the last, for a work-item."""
        deep = points_of(
            self.writer, self.summed, load.deep.n,
            load.deep.after(self.depth * self.tile_range.tile(tile)),
            loops, [*load.partitioned, *after], tile=None,
        )  # fmt: skip
        k, s = (
            self.writer.loop("step", size=part.n, tag="unr")
            for part in (load.deep, load.wide)
        )
        points = {**self.batch, **load.points.at(var(s)), **deep.at(var(k))}
        span = self.writer.schedule.spans[load.operand]
        return _Steps(
            (*loops, k, s),
            (var(k), var(s)),
            tuple(points[index] for index in span),
            (*deep.inside(var(k)), *load.points.inside(var(s))),
            (*load.partitioned, *load.points.statements, *deep.statements, *after),
        )

    def _begin_copy(
        self,
        load: Load,
        tile: Expression,
        slot: Expression,
        loops: Sequence[str],
        after: Collection[str],
    ) -> str:
        """Begin to copy a tile."""
        writer, source = self.writer, load.source
        assert source is not None
        steps = self._steps(load, tile, loops, after)
        k, s = steps.at
        entry = load.tile.loaded(slot, load.deep.at(k), load.wide.at(s))
        target, target_id = writer.offset_scalar(entry, steps.loops, steps.before)
        origin, origin_id = writer.scalar(
            "origin", source.at(steps.points), steps.loops, steps.before
        )
        # outside, the copy writes zeros: no branch, and no tile with old entries
        inside: Expression = 1
        if steps.inside:
            inside = p.If(p.LogicalAnd(steps.inside), 1, 0)
        is_inside, inside_id = writer.scalar(
            "inside", inside, steps.loops, steps.before
        )
        copy = AsyncCopy(
            load.lanes, (load.tile.array, target), (source.array, origin), is_inside
        )
        begun = writer.add(
            "copy", partial(copy_async, copy), steps.loops,
            (target_id, origin_id, inside_id),
        )  # fmt: skip
        writer.note_apart(begun)
        return begun

    def _compute(
        self,
        load: Load,
        tile: Expression,
        loops: Sequence[str],
        after: Collection[str],
        slot: Expression | None = None,
    ) -> str:
        """Compute a work-item's part of a tile, in registers if it has no slot yet."""
        writer, schedule = self.writer, self.writer.schedule
        steps = self._steps(load, tile, loops, after)
        k, s = steps.at
        value = var(schedule.rules[load.operand])(*steps.points)
        if steps.inside:
            zero = schedule.dtypes[load.operand].type(0)
            value = p.If(p.LogicalAnd(steps.inside), value, zero)
        target = var(load.registers)[k, s]
        if slot is not None:
            target = load.tile.loaded(slot, load.deep.at(k), load.wide.at(s))
        computed = writer.assign("load", target, value, steps.loops, steps.before)
        writer.note_apart(computed)
        return computed

    def _settle(
        self, load: Load, slot: Expression, loops: Sequence[str], after: Collection[str]
    ) -> str:
        """Move what is in registers to the tile, after the products of this step.

        By then the loads have had as long as the products took.
        """
        writer = self.writer
        k, s = (
            writer.loop("step", size=part.n, tag="unr")
            for part in (load.deep, load.wide)
        )
        target = load.tile.loaded(slot, load.deep.at(var(k)), load.wide.at(var(s)))
        value = var(load.registers)[var(k), var(s)]
        before = [*load.partitioned, *after]
        settled = writer.assign("settle", target, value, [*loops, k, s], before)
        writer.note_apart(settled)
        return settled
