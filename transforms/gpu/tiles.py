"""Tiles of operands in shared memory: who loads what, and where it lies there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.reads import Reads, Source, reads_of, source_of
from feinsum.transforms.gpu.shares import (
    Dealt,
    Items,
    Points,
    Share,
    Side,
    Tile,
    Tiled,
    Turn,
    are_dealt_evenly,
    is_even,
    points_of,
    shares_of,
    size_of,
)
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
class Load:
    """An operand and the way that it takes to its tiles.

    Attributes:
        deep, wide: what a work-item has of a tile.
        dealt: the ids of what computes where these begin.
        points: of the indices that are not summed.
        source: if it is copied; else it is computed in registers first.
        lanes: entries of one copy.
        registers: the array of these; empty for copies.
    """

    operand: str
    tile: Tile
    deep: Share
    wide: Share
    dealt: Names
    points: Points
    source: Source | None
    lanes: int
    registers: str


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
        dealt: which tiles a group has; by default all.
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
        dealt: Dealt | None = None,
    ) -> None:
        self.writer, self.items, self.dealt = writer, items, dealt or Dealt()
        self.summed, self.depth, self.batch = summed, depth, batch
        self.stages, self.is_copied, self.keeps_order = stages, is_copied, keeps_order
        self.is_late = is_late
        self.around = (*grid, *reversed(items.inames))
        self.item = writer.array("number", (), np.dtype(np.uint32))
        self.numbered = writer.assign(
            "number", var(self.item), items.number, self.around
        )

    def multiplied(
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
        writer, n_ahead = self.writer, self.stages - 1
        by_key = {key: self._loads(*pair) for key, pair in wanted.items()}
        loads = [load for several in by_key.values() for load in several]
        early = writer.loop("early", size=n_ahead, tag="unr")
        first = [
            self._begun(load, var(early), var(early), [*self.around, early], [])
            if load.source is not None
            else self._computed(load, var(early), [*self.around, early], [], var(early))
            for load in loads
        ]
        closed = self._closed([*self.around, early], first)
        tile = writer.loop(
            "tile", f"{self.depth}*({self.dealt.text}) < {self.summed.size}"
        )
        loops = (*self.around, tile)
        now, set_now = writer.scalar("now", p.Remainder(var(tile), self.stages), loops)
        later = p.Sum((var(tile), n_ahead))
        slot, set_slot = writer.scalar("slot", p.Remainder(later, self.stages), loops)
        before = [*closed, set_now, set_slot]
        if self._has_copies(loads):
            # stages - 1 tiles are on their way; the oldest has to be there
            wait = partial(await_groups, self.stages - 2)
            before = [writer.add("wait", wait, loops, before)]
        # one barrier for each tile: after it, nobody reads the one before, whose
        # place is filled next
        barrier = [writer.barrier(loops, before), set_now, set_slot]
        begun = [
            self._begun(load, later, var(slot), loops, barrier)
            if load.source is not None
            else self._computed(load, later, loops, barrier)
            for load in loads
        ]
        closed = self._closed(loops, begun)
        size, sized = self._summed_size(wanted)
        tiled = {
            key: self._tiled(wanted[key][0], several, now, var(tile), size)
            for key, several in by_key.items()
        }
        reads, last = multiply(tiled, loops, (*barrier, *closed, *sized))
        settled = [
            self._settled(load, var(slot), loops, [*last, *begun, set_slot])
            for load in loads
            if load.source is None
        ]
        writer.note_ordered(*first, *begun, *reads, *settled)

    def _loads(self, operand: str, side: Side) -> list[Load]:
        """One of an operand, or one of each array that it is a function of."""
        reads = self._reads(operand)
        if reads is not None:
            return [self._load(operand, side, source) for source in reads.sources]
        source = source_of(self.writer.schedule, operand) if self.is_copied else None
        return [self._load(operand, side, source)]

    def _reads(self, operand: str) -> Reads | None:
        """If it is a function that is evaluated in the end."""
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
            return size_of(self.summed), ()
        # in a scalar, as Loopy understands no casts where it checks bounds
        size, done = self.writer.scalar("size", size_of(self.summed), self.around)
        return var(size), (done,)

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
        start = self.depth * self.dealt.tile(tile)

        def value(entries: Sequence[Expression], deep: Expression) -> Expression:
            found = reads.value(entries)
            if is_even(self.summed, self.depth):
                return found
            inside = p.Comparison(p.Sum((start, deep)), "<", size)
            return p.If(inside, found, dtype.type(0))

        return Tiled(tiles, now, dtype, value)

    def _load(self, operand: str, side: Side, source: Source | None) -> Load:
        writer, schedule = self.writer, self.writer.schedule
        span, dtype = schedule.spans[operand], schedule.dtypes[operand]
        is_deep = bool(span) and span[-1] in self.summed.indices
        shape = (side.tile, self.depth) if is_deep else (self.depth, side.tile)
        is_kept = self.keeps_order or not is_deep
        n_rows, n_columns = shape if is_kept else shape[::-1]
        turn = Turn() if is_deep else side.turn
        array = writer.array(
            f"{operand}_tile", (self.stages, n_rows, n_columns + turn.padding), dtype,
            is_shared=True,
        )  # fmt: skip
        fast = self.summed if is_deep else side.flat
        lanes = 1
        if source is not None and is_kept and turn.piece == 1:
            lanes = self._lanes(source, operand, fast, shape)
        shares = [
            self._share(share)
            for share in shares_of(*shape, self.items.n, var(self.item), lanes)
        ]
        (deep, one), (wide, two) = shares[::-1] if is_deep else shares
        points = points_of(
            writer, side.flat, wide.n, wide.after(side.start), self.around,
            [one, two], tile=side.tile,
        )  # fmt: skip
        registers = ""
        if source is None:
            registers = writer.array("ahead", (deep.n, wide.n), dtype)
        tile = Tile(array, is_deep and is_kept, turn)
        return Load(
            operand, tile, deep, wide, (one, two), points, source, lanes, registers
        )

    def _share(self, share: Share) -> tuple[Share, str]:
        """A share that begins at a scalar, and the id of what computes this."""
        first, done = self.writer.scalar(
            "first", share.first, self.around, (self.numbered,)
        )
        return replace(share, first=var(first)), done

    def _lanes(
        self, source: Source, operand: str, fast: Flat, shape: tuple[int, int]
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
            and are_dealt_evenly(shape[0], shape[1] // lanes, self.items.n)
        )
        return lanes if fits else 1

    def _has_copies(self, loads: Sequence[Load]) -> bool:
        return any(load.source is not None for load in loads)

    def _closed(self, loops: Sequence[str], begun: list[str]) -> list[str]:
        if not self.is_copied:
            return begun
        return [self.writer.add("close", close_group, loops, begun), *begun]

    def _steps(
        self, load: Load, tile: Expression, loops: Sequence[str], after: Collection[str]
    ) -> _Steps:
        """The points of a tile, which may be beyond the last, for a work-item."""
        deep = points_of(
            self.writer, self.summed, load.deep.n,
            load.deep.after(self.depth * self.dealt.tile(tile)),
            loops, [*load.dealt, *after], tile=None,
        )  # fmt: skip
        k, s = (
            self.writer.loop("step", size=x.n, tag="unr")
            for x in (load.deep, load.wide)
        )
        points = {**self.batch, **load.points.at(var(s)), **deep.at(var(k))}
        span = self.writer.schedule.spans[load.operand]
        return _Steps(
            (*loops, k, s),
            (var(k), var(s)),
            tuple(points[index] for index in span),
            (*deep.inside(var(k)), *load.points.inside(var(s))),
            (*load.dealt, *load.points.statements, *deep.statements, *after),
        )

    def _begun(
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
        target, one = writer.offset_scalar(entry, steps.loops, steps.before)
        origin, two = writer.scalar(
            "origin", source.at(steps.points), steps.loops, steps.before
        )
        inside: Expression = 1
        if steps.inside:
            inside = p.If(p.LogicalAnd(steps.inside), 1, 0)
        is_inside, three = writer.scalar("inside", inside, steps.loops, steps.before)
        copy = AsyncCopy(
            load.lanes, (load.tile.array, target), (source.array, origin), is_inside
        )
        done = writer.add(
            "copy", partial(copy_async, copy), steps.loops, (one, two, three)
        )
        writer.note_apart(done)
        return done

    def _computed(
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
        done = writer.assign("load", target, value, steps.loops, steps.before)
        writer.note_apart(done)
        return done

    def _settled(
        self, load: Load, slot: Expression, loops: Sequence[str], after: Collection[str]
    ) -> str:
        """Move what is in registers to the tile."""
        writer = self.writer
        k, s = (
            writer.loop("step", size=x.n, tag="unr") for x in (load.deep, load.wide)
        )
        target = load.tile.loaded(slot, load.deep.at(var(k)), load.wide.at(var(s)))
        value = var(load.registers)[var(k), var(s)]
        before = [*load.dealt, *after]
        done = writer.assign("settle", target, value, [*loops, k, s], before)
        writer.note_apart(done)
        return done


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
