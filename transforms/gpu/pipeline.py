"""The loop over tiles of operands in shared memory, which are loaded ahead.

A tile of an operand has ``depth`` values of the summed indices and ``side.tile`` of the
others. Shared memory holds ``stages`` tiles of it at once. With three stages, copies
are two tiles ahead of the products::

    tile     0        1        2        3
    copy     0  1 |   2    |   3    |   4          (| is a barrier)
    wait          0   |    1   |    2   |    3     (all copies but the last one)
    multiply      0   |    1   |    2   |    3
    slot of the copy  2        0        1          later = (tile + 2) % 3

One barrier for each tile is enough. After it, the copies of this tile by all work-items
are complete, and no work-item still reads the previous tile, whose slot is filled next.

An operand is an array or a function of arrays, such as
``A(i,k) = scale*0.5*(a[i,k] + b[i,k])``. An array is copied without registers, by
instructions that run during the products. A function is computed into registers before
the products, and stored after them. Alternatively, ``a`` and ``b`` are copied, and the
function is evaluated on entries of their tiles.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA", "Pipelining".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.dtypes import get_sum_dtype
from feinsum.transforms.gpu.layouts import (
    UNSWIZZLED,
    Flat,
    Share,
    is_evenly_partitioned,
    partition,
)
from feinsum.transforms.gpu.sides import Side, Sides
from feinsum.transforms.gpu.sources import OperandSource, Reads, find_reads, find_source
from feinsum.transforms.gpu.tiles import (
    GroupWriter,
    Items,
    Point,
    Points,
    SharedTile,
    Tiled,
)
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.copy_async import (
    VECTOR_BYTES,
    AwaitGroups,
    CloseGroup,
)
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters

COPY_WAYS = ("asynchronous", "registers")
"""How arrays reach their tiles; functions always pass through registers."""

ARGUMENTS = "arguments"
"""A third way: arrays that functions read are copied, too, and functions are evaluated
on their tiles."""

MIN_COPY_BYTES = 4
"""Bytes that one copy without registers moves, at least."""


@dataclass(frozen=True)
class Load:
    """How a work-item loads its part of the tiles of an operand.

    Attributes:
        operand: name of the operand.
        tile: its tiles.
        deep, wide: the work-item's shares along the sum and along the side.
        partitioned: ids of the statements that compute the first values of the shares.
        points: values of the output indices.
        source: the array to copy; None if the operand passes through registers.
        lanes: contiguous entries of one copy.
        is_ragged: whether the entries may end within a copy.
        registers: the array in registers; empty for copies.
    """

    operand: str
    tile: SharedTile
    deep: Share
    wide: Share
    partitioned: Names
    points: Points
    source: OperandSource | None
    lanes: int
    is_ragged: bool
    registers: str


class TileLoop(GroupWriter, ABC):
    """Writes the loop over tiles, which loads later tiles ahead.

    Rewrite::

        for tile:  acc += A(tile)*B(tile)

        A_tile[0], B_tile[0] = A(0), B(0)
        for tile:
            (barrier)
            A_tile[(tile + 1) % 2], B_tile[(tile + 1) % 2] = A(tile + 1), B(tile + 1)
            acc += A_tile[tile % 2]*B_tile[tile % 2]

    Entries beyond the extents are zero, so products may read whole tiles.

    Args:
        schedule: the schedule.
        sides: the sides of the product.
        parameters: those named ``depth``, ``stages`` and ``copies``.

    Attributes:
        summed: the summed indices, flattened.
        depth: length of a tile along them.
        stages: number of tiles of an operand in shared memory at once, 2 or more.
        batch: the values of indices that are the same for a whole tile.
        share: the iname of the shares of tiles, of which there are ``n_shares``: the
            group with share s of S has the tiles s, s + S, ... Empty if each group has
            all tiles.
        across, along: the sides, cut into tiles.
        items: the work-items of a group.
        around: the loops over groups and work-items.
    """

    across: Side
    along: Side
    keeps_order: bool
    """Whether a tile in shared memory keeps the order of axes of its operand. If not,
    the axis of the output indices is always last."""

    def __init__(
        self, schedule: Schedule, sides: Sides, parameters: Parameters
    ) -> None:
        super().__init__(schedule)
        self.sides, self.summed = sides, sides.summed
        self.depth: int = parameters["depth"]
        self.stages: int = parameters["stages"]
        copies = parameters["copies"]
        self.is_copied, self.is_late = copies != COPY_WAYS[1], copies == ARGUMENTS
        self.batch: Point = {}
        self.share, self.n_shares = "", 1

    def number_items(self, grid: Sequence[str], items: Items) -> None:
        """Assign the number of a work-item, in loops over the grid and the items."""
        self.items, self.around = items, (*grid, *reversed(items.inames))
        self.item = self.array("number", (), np.dtype(np.uint32))
        self.numbered = self.assign("number", var(self.item), items.number, self.around)

    @abstractmethod
    def write_sum(
        self, row: int, along: Tiled, across: Tiled, loops: Names, after: Names
    ) -> tuple[Names, str]:
        """Write the sums of a row: zero, the products of a tile, and the stores.

        Returns:
            The ids of the statements that read tiles, and of the last one in the loops.
        """

    def write_loop(self) -> None:
        """Write the loop, with the sums of all rows in it."""
        n_ahead, first = self.stages - 1, self.sides.first
        # rows that share an operand share its tiles; an operand on both sides needs two
        # kinds of tiles
        rows = self.schedule.rows
        pairs = [((row[first], True), (row[1 - first], False)) for row in rows]
        keys = dict.fromkeys(key for pair in pairs for key in pair)
        by_key = {key: self._make_loads(*key) for key in keys}
        loads = [load for operand_loads in by_key.values() for load in operand_loads]
        # the first stages - 1 tiles are loaded before the loop
        early = self.loop("early", size=n_ahead, tag="unr")
        early_loads = [
            self._load_tile(load, var(early), [*self.around, early], [], var(early))
            for load in loads
        ]
        closed = self._close_copies([*self.around, early], early_loads)
        number = f"{self.share} + {self.n_shares}*{{}}" if self.share else "{}"
        tile = self.loop("tile", f"{self.depth}*({number}) < {self.summed.size}")
        loops = (*self.around, tile)
        now, set_now = self.scalar("now", p.Remainder(var(tile), self.stages), loops)
        later = p.Sum((var(tile), n_ahead))
        slot, set_slot = self.scalar("slot", p.Remainder(later, self.stages), loops)
        before = [*closed, set_now, set_slot]
        if any(load.source is not None for load in loads):
            # stages - 1 tiles are in flight; the oldest has to be complete
            before = [self.state("wait", AwaitGroups(self.stages - 2), loops, before)]
        # after this barrier, no work-item reads the previous tile, whose slot is filled
        # next
        barrier = (self.barrier(loops, before), set_now, set_slot)
        ahead = [
            self._load_tile(
                load, later, loops, barrier, var(slot) if load.source else None
            )
            for load in loads
        ]
        closed = self._close_copies(loops, ahead)
        size, sized = self._get_summed_size()
        tiled = {
            key: self._make_tiled(
                key[0], operand_loads, now, self._number_tile(var(tile)), size
            )
            for key, operand_loads in by_key.items()
        }
        reads: list[str] = []
        last: list[str] = []
        for k, (of_across, of_along) in enumerate(pairs):
            row_reads, row_last = self.write_sum(
                k, tiled[of_along], tiled[of_across], loops, (*barrier, *closed, *sized)
            )
            reads += row_reads
            last.append(row_last)
        after = [*last, *ahead, set_slot]
        settled = [
            self._settle(load, var(slot), loops, after)
            for load in loads
            if load.source is None
        ]
        # the barrier and the wait above order these, which Loopy cannot see
        self.note_ordered(*early_loads, *ahead, *reads, *settled)

    def _number_tile(self, number: Expression) -> Expression:
        """Return the number of a tile among all, given its number in the share."""
        if not self.share:
            return number
        return p.Sum((var(self.share), self.n_shares * number))

    def _make_loads(self, operand: str, is_across: bool) -> list[Load]:
        """Make a load for an array, or for each array that a function reads."""
        side = self.across if is_across else self.along
        reads = self._find_reads(operand)
        if reads is not None:
            return [
                self._declare_load(operand, side, source) for source in reads.sources
            ]
        source = find_source(self.schedule, operand) if self.is_copied else None
        return [self._declare_load(operand, side, source)]

    def _find_reads(self, operand: str) -> Reads | None:
        """Find the entries of a function that is evaluated on tiles; else None."""
        return find_reads(self.schedule, operand) if self.is_late else None

    def _get_summed_size(self) -> tuple[Expression, Names]:
        """Return the number of terms, and the ids of statements that compute it."""
        is_late = any(map(self._find_reads, self.schedule.operands))
        if self.summed.is_known or not is_late:
            return self.summed.size_in_c, ()
        # use a scalar: Loopy's check of bounds does not support casts
        size, computed = self.scalar("size", self.summed.size_in_c, self.around)
        return var(size), (computed,)

    def _make_tiled(
        self,
        operand: str,
        loads: Sequence[Load],
        now: str,
        tile: Expression,
        size: Expression,
    ) -> Tiled:
        """Return an operand in terms of its tiles; it is zero beyond the sum."""
        reads, tiles = self._find_reads(operand), tuple(load.tile for load in loads)
        dtype = self.schedule.dtypes[operand]
        if reads is None:
            return Tiled(tiles, now, dtype, _get_first, is_function=False)
        start = self.depth * tile

        def value(entries: Sequence[Expression], deep: Expression) -> Expression:
            in_full = reads.value(entries)
            if self.summed.is_divided_by(self.depth):
                return in_full
            # entries beyond the sum are zero, but the function of zeros need not be
            inside = p.Comparison(p.Sum((start, deep)), "<", size)
            return p.If(inside, in_full, get_sum_dtype(dtype).type(0))

        return Tiled(tiles, now, dtype, value, is_function=True)

    def _declare_load(
        self, operand: str, side: Side, source: OperandSource | None
    ) -> Load:
        """Declare the tiles of an operand, and the part that a work-item loads."""
        dtype, is_deep = self.schedule.dtypes[operand], self._is_deep(operand)
        shape = (side.tile, self.depth) if is_deep else (self.depth, side.tile)
        is_kept = self.keeps_order or not is_deep
        n_rows, n_columns = shape if is_kept else shape[::-1]
        swizzle = UNSWIZZLED if is_deep else side.swizzle
        array = self.array(
            f"{operand}_tile",
            (self.stages, n_rows, n_columns + swizzle.get_padding(dtype.itemsize)),
            dtype, is_shared=True,
        )  # fmt: skip
        lanes, is_ragged = 1, False
        if source is not None and is_kept and swizzle.piece == 1:
            fast = self.summed if is_deep else side.flat
            lanes, is_ragged = self._count_lanes(source, operand, fast, shape)
        # the entries that a function reads are copied whatever their size
        if lanes * dtype.itemsize < MIN_COPY_BYTES and not self._find_reads(operand):
            source = None
        axes = partition(*shape, self.items.n, var(self.item), lanes)
        shares, ids = self.hold_starts(axes, self.around, (self.numbered,))
        deep, wide = shares[::-1] if is_deep else shares
        points = self.compute_points(
            side.flat, wide.n, lambda step: p.Sum((side.start, wide.at(step))),
            self.around, ids, tile=side.tile,
        )  # fmt: skip
        registers = ""
        if source is None:
            registers = self.array("ahead", (deep.n, wide.n), dtype)
        tile = SharedTile(array, is_deep and is_kept, swizzle)
        return Load(
            operand, tile, deep, wide, ids, points, source, lanes, is_ragged, registers
        )

    def _count_lanes(
        self, source: OperandSource, operand: str, fast: Flat, shape: tuple[int, int]
    ) -> tuple[int, bool]:
        """Return the entries that one copy moves within a row, and if it may be cut."""
        (last, _, extent), span = fast.parts[-1], self.schedule.spans[operand]
        is_row = bool(span) and span[-1] == last
        if not is_row or source.neighbour != source.arguments[-1]:
            return 1, False
        lanes = VECTOR_BYTES // (itemsize := self.schedule.dtypes[operand].itemsize)
        # short entries are always copied together: rows may end within a copy if they
        # are the whole side, and fewer may go together
        may_end = len(fast.parts) == 1 and itemsize < MIN_COPY_BYTES
        while lanes > 1:
            is_whole = isinstance(extent, int) and extent % lanes == 0
            is_shared = is_evenly_partitioned(shape[0], shape[1] // lanes, self.items.n)
            if (is_whole or may_end) and is_shared:
                return lanes, not is_whole
            lanes = lanes // 2 if itemsize < MIN_COPY_BYTES else 1
        return 1, False

    def _close_copies(self, loops: Sequence[str], begun: list[str]) -> list[str]:
        """Close a group of the copies of a tile, so that the loop can wait for it."""
        if not self.is_copied:
            return begun
        return [self.state("close", CloseGroup(), loops, begun), *begun]

    def _load_tile(
        self,
        load: Load,
        tile: Expression,
        loops: Sequence[str],
        after: Collection[str],
        slot: Expression | None,
    ) -> str:
        """Load a work-item's part of a tile; without a slot, to registers.

        Args:
            load: what to load.
            tile: number of the tile in the share, which may be beyond the last one.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            slot: slot of the buffer that receives the tile; None to load to registers.
        """
        start = self._number_tile(tile)
        deep = self.compute_points(
            self.summed, load.deep.n,
            lambda step: p.Sum((self.depth * start, load.deep.at(step))),
            loops, [*load.partitioned, *after], tile=None,
        )  # fmt: skip
        steps, (k, s) = self._make_step_loops(load)
        point = {**self.batch, **load.points.at(s), **deep.at(k)}
        values = tuple(point[index] for index in self.schedule.spans[load.operand])
        inside = (*deep.inside(k), *load.points.inside(s))
        before = (
            *load.partitioned, *load.points.statements, *deep.statements, *after
        )  # fmt: skip
        loops = (*loops, *steps)
        if slot is None:
            target = var(load.registers)[k, s]
        else:
            target = load.tile.loaded(slot, load.deep.at(k), load.wide.at(s))
        if load.source is not None:
            edge, step = (deep, k) if self._is_deep(load.operand) else (load.points, s)
            n_inside: Expression = load.lanes
            if load.is_ragged:
                rest = edge.get_rest(step)
                n_inside = p.If(p.Comparison(rest, "<", load.lanes), rest, load.lanes)
            # outside, it writes zeros: this needs no branch, and clears old entries
            if inside:
                n_inside = p.If(p.LogicalAnd(inside), n_inside, 0)
            n_copied = self.scalar("inside", n_inside, loops, before)
            begun = self.begin_copy(
                target, load.source, values, n_copied, loops, before, load.lanes
            )
            self.note_apart(begun)
            return begun
        value = var(self.schedule.rules[load.operand])(*values)
        if inside:
            # Loopy has no constants of bfloat16
            zero = get_sum_dtype(self.schedule.dtypes[load.operand]).type(0)
            value = p.If(p.LogicalAnd(inside), value, zero)
        computed = self.assign("load", target, value, loops, before)
        self.note_apart(computed)
        return computed

    def _is_deep(self, operand: str) -> bool:
        """Tell whether neighbouring work-items load an operand along the sum."""
        span = self.schedule.spans[operand]
        # the last index is contiguous
        return bool(span) and span[-1] in self.summed.indices

    def _settle(
        self, load: Load, slot: Expression, loops: Sequence[str], after: Collection[str]
    ) -> str:
        """Move a load from registers to its tile, after the products of this step.

        The products hide the latency of the loads.
        """
        steps, (k, s) = self._make_step_loops(load)
        target = load.tile.loaded(slot, load.deep.at(k), load.wide.at(s))
        settled = self.assign(
            "settle", target, var(load.registers)[k, s], [*loops, *steps],
            [*load.partitioned, *after],
        )  # fmt: skip
        self.note_apart(settled)
        return settled

    def _make_step_loops(
        self, load: Load
    ) -> tuple[Names, tuple[Expression, Expression]]:
        """Loop over a work-item's entries, along the sums and along the others."""
        k, s = (
            self.loop("step", size=share.n, tag="unr")
            for share in (load.deep, load.wide)
        )
        return (k, s), (var(k), var(s))


def _get_first(entries: Sequence[Expression], _deep: Expression) -> Expression:
    return entries[0]
