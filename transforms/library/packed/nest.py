"""Loops around packed tiles and register tiles, written from a plan.

The loops of a matrix product ``ac,cb->ab``, and the level of memory from which the
inner loops read each array::

    for b_tile, a_tile in parallel             the grid
      for c_tile                               packs A and B: second level
        for panel of columns                   B_pack[panel]: first level
          for block of rows                    tile[r,v,:]: registers
            for c                              B_pack[panel,c], A_pack[block,c]
              for r < rows, v < vectors        unrolled: multiply-adds

Source: Goto and van de Geijn 2008, van Zee and van de Geijn 2015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum
from feinsum.raising.expressions import substitute
from feinsum.transforms.library.packed.plan import Axis, make_plan
from feinsum.transforms.library.packed.tiles import (
    Loops,
    Pack,
    Packer,
    TileLoops,
    write_out,
)
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.compiler_hints import (
    FORGET_REGISTERS,
    PREAMBLE,
    hold_in_register,
)
from feinsum.transforms.primitives.schedule import Expression
from feinsum.transforms.primitives.vector_store import is_contiguous, with_square_macros
from feinsum.transforms.registry import Parameters

REGISTER_TAGS = ("unr_hint", "unr_hint", "vec")
"""Tags of the loops over rows, vectors and lanes. ``unr_hint`` leaves unrolling to the
compiler, which keeps the code short.
"""


@dataclass(frozen=True)
class _Sums:
    """The sums of a row of the batch.

    Attributes:
        array: array of the sums.
        around: the loop over each index that is still open when they are stored.
        after: ids of the statements before the store.
    """

    array: str
    around: Mapping[str, str]
    after: Sequence[str]


class PackedNest:
    """Writes the loops of a plan.

    It multiplies the sums by the late operands. Rewrite, for the vector index i and the
    register index e::

        for x, e, i:  out[x,e,i] = sum((r,j), J[x,r,e]*D[r,i,j]*u[e,j])

        for e_tile in parallel:
            D_pack[panel,r,j,v,:], u_pack[block,row,j] = ...
            for panel, block:
                for r:
                    tile[row,v,:] = 0
                    for j:  tile[row,v,:] += u_pack[block,row,j]*D_pack[panel,r,j,v,:]
                    sums[r,row,v,:] = tile[row,v,:]
                for row, x, v:
                    out[x,e,i] = sum(r, J[x,r,e]*sums[r,row,v,:])

    Args:
        is_explicit: whether the code has shuffles that transpose squares, and says what
            to hold in registers; otherwise both are left to the compiler.
    """

    def __init__(
        self,
        schedule: Schedule,
        einsum: BatchedEinsum,
        parameters: Parameters,
        *,
        is_explicit: bool,
    ) -> None:
        self.schedule, self.is_explicit = schedule, is_explicit
        # whether aligned vectors are stored past the caches
        self.is_streamed: bool = parameters["stores"] == "streamed"
        self.plan = plan = make_plan(einsum, schedule.extents, parameters)
        self.writer = NestWriter(schedule)
        self.loops = TileLoops(self.writer, plan)
        self.packer = Packer(schedule, self.loops, is_explicit=is_explicit)
        groups = [plan.columns, plan.rows]
        if parameters["inside"] != "rows":
            groups.reverse()
        self.free = [cut.index for group in groups for cut in group]
        self.postponed = [cut.index for cut in plan.postponed]

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        roles = self.plan.roles
        for row, operands in enumerate(self.schedule.rows):
            left = self.packer.pack(tuple(operands[k] for k in roles.left))
            right = self.packer.pack((operands[roles.right],))
            sums = self._sum(row, left, right)
            self._store(row, sums, [operands[k] for k in roles.late])
        written = self.writer.build()
        for dtype in self.packer.square_dtypes:
            written = with_square_macros(written, dtype, self.plan.lanes)
        return written.with_preamble(PREAMBLE) if self.is_explicit else written

    def _sum(self, row: int, left: Pack, right: Pack) -> _Sums:
        """Sum the register tiles of one row of the batch."""
        plan, dtype = self.plan, self.schedule.get_row_dtype(row)
        axes, sum_axes = plan.register_axes, plan.accumulator_axes
        tile = self.loops.array(f"row_{row}_tile", axes, dtype, has_lanes=True)
        sums = self.loops.array(f"row_{row}_sums", sum_axes, dtype, has_lanes=True)
        # The three statements share the loops over panels and blocks, and have their
        # own loops inside: Loopy then fuses them into one pass over the register tiles.
        outer = [*self.free, *self.postponed]
        summed = [cut.index for cut in plan.summed]
        update = self.loops.over("sum", [*outer, *summed], is_joined=True)
        shared = {i: update.inames[i][0] for i in outer}
        first, last = (
            self.loops.over(stem, outer, shared) for stem in ("first", "last")
        )
        # If one tile holds the whole sum, registers start at zero and are stored at
        # once. Otherwise an array holds the sums from one tile to the next.
        start, after = dtype.type(0), [*left.fills, *right.fills]
        if plan.is_deep:
            start = first.entry(sums, sum_axes)
            after.append(self._zero(row, sums))
        if self.is_explicit:
            tiles = self.loops.around
            # values that the compiler holds for packing must not displace the sums
            after.append(self.writer.add("forget", FORGET_REGISTERS, tiles, after))
        after.append(self._assign(row, first, first.entry(tile, axes), start, after))
        if self.is_explicit:
            right, steps = self._hold_column(row, right, update, after)
            after += steps
        entry = update.entry(tile, axes)
        term = p.Product(tuple(update.entry(pk.array, pk.axes) for pk in (left, right)))
        after.append(self._assign(row, update, entry, p.Sum((entry, term)), after))
        total = last.entry(tile, axes)
        after.append(self._assign(row, last, last.entry(sums, sum_axes), total, after))
        # a complete register tile is stored inside the loops over panels and blocks
        around = {} if plan.is_deep else {i: shared[i] for i in self.free}
        return _Sums(sums, around, after)

    def _assign(
        self,
        row: int,
        loops: Loops,
        assignee: Expression,
        value: Expression,
        after: Sequence[str],
    ) -> str:
        """Add a statement for a register tile, and return its id."""
        for axis, tag in zip(self.plan.register_axes, REGISTER_TAGS, strict=True):
            self.writer.tag(loops.iname(axis), tag)
        order = [*self.loops.around, *self._order_loops(loops)]
        return self.writer.assign(f"row_{row}", assignee, value, order, after)

    def _hold_column(
        self, row: int, right: Pack, update: Loops, after: Sequence[str]
    ) -> tuple[Pack, list[str]]:
        """Hold the vectors of a column in registers, in each step of the sum.

        Rewrite::

            for c:  tile[r,v,:] += A_pack[block,c,r]*B_pack[panel,c,v,:]

            for c:
                column[v,:] = B_pack[panel,c,v,:]
                (hold column[v] in a register)
                tile[r,v,:] += A_pack[block,c,r]*column[v,:]
        """
        writer, (row_axis, *axes) = self.writer, self.plan.register_axes
        n_rows, n_vectors, lanes = (
            self.plan.cuts[index].levels[level] for index, level in (row_axis, *axes)
        )
        dtype = writer.get_dtype(right.array)
        column = self.loops.array(f"row_{row}_column", axes, dtype, has_lanes=True)
        vector = writer.loop("vector", size=n_vectors, tag=REGISTER_TAGS[1])
        lane = writer.loop("lane", size=lanes, tag=REGISTER_TAGS[2])
        loops = update.with_inner(vector, lane)
        # the statement that holds a vector is outside of the loop over lanes
        *order, _ = [*self.loops.around, *self._order_loops(loops, axes)]
        load = writer.assign(
            f"row_{row}_column",
            loops.entry(column, axes),
            loops.entry(right.array, right.axes),
            [*order, lane],
            after,
        )
        hold = hold_in_register(
            column,
            vector,
            n_bytes=lanes * dtype.itemsize,
            n_held=n_rows * n_vectors + n_vectors + 1,
        )
        hold_id = writer.add(f"row_{row}_hold", hold, order, [*after, load])
        return Pack(column, tuple(axes), ()), [load, hold_id]

    def _zero(self, row: int, sums: str) -> str:
        """Zero the sums ahead of all tiles of the summed indices; return the id."""
        plan, dtype = self.plan, self.schedule.get_row_dtype(row)
        loops = self.loops.over("zero", [*self.free, *self.postponed])
        self.writer.tag(loops.iname(plan.register_axes[-1]), "vec")
        entry = loops.entry(sums, plan.accumulator_axes)
        order = [*self.loops.grid, *self._order_loops(loops)]
        return self.writer.assign(f"row_{row}_zero", entry, dtype.type(0), order)

    def _order_loops(self, loops: Loops, axes: Sequence[Axis] = ()) -> list[str]:
        """Order loops: over panels and blocks, over the sum, then inside a tile."""
        summed = [cut.index for cut in self.plan.summed if cut.index in loops.inames]
        postponed = [index for index in self.postponed if index in loops.inames]
        inner = [loops.iname(axis) for axis in axes or self.plan.register_axes]
        return [*loops.outer([*self.free, *postponed, *summed]), *inner]

    def _store(self, row: int, sums: _Sums, late: Sequence[str]) -> None:
        """Store the sums, multiplied by the late operands if there are any.

        Full vectors are stored at once if their entries are contiguous in memory.
        """
        cut, lanes = self.plan.columns[-1], self.plan.lanes
        extent = cut.extent if isinstance(cut.extent, int) else None
        has_vectors = extent is None or extent >= lanes
        if not (has_vectors and is_contiguous(self.schedule, row, cut.index)):
            self._store_entries(row, sums, late, "all")
            return
        # separate loops store the entries after the last full vector
        if extent is None or extent % lanes:
            self._store_entries(row, sums, late, "edge")
        self._store_vectors(row, sums, late)

    def _make_store_loops(
        self, sums: _Sums, region: str
    ) -> tuple[Loops, dict[str, Expression], list[str]]:
        """Return a store's loops, the output's point, and all inames in order."""
        roles, tiles = self.plan.roles, self.loops.tiles
        loops = self.loops.over("store", self.free, sums.around, region, level=1)
        extents = self.schedule.extents
        outer = {i: self.writer.loop(i, size=extents[i]) for i in roles.outer}
        points = {
            **loops.points,
            **{index: var(name) for index, name in outer.items()},
            **{i: var(tiles[i]) if i in tiles else 0 for i in roles.batch},
        }
        # loops over outer indices go outside of the lanes, which are stored together
        *around, vector, lane = self._order_loops(loops)
        order = [*self.loops.grid, *around, *outer.values(), vector, lane]
        return loops, points, order

    def _store_entries(
        self, row: int, sums: _Sums, late: Sequence[str], region: str
    ) -> None:
        """Store single entries: all of them, or those after the last full vector."""
        loops, points, [*order, lane] = self._make_store_loops(sums, region)
        after = [*sums.after]
        if late:
            lanes, products = self._loop_over_lanes(sums, late, loops, points)
            combined, step = self._assign_vector(row, lanes, products, order, after)
            value, after = var(combined)[(var(lane),)], [*after, step]
        else:
            value = loops.entry(sums.array, self.plan.accumulator_axes)
        self.writer.tag(lane, "unr")
        self.writer.store(
            row, value, points, [*order, lane], after, is_last=region == "all"
        )

    def _store_vectors(self, row: int, sums: _Sums, late: Sequence[str]) -> None:
        """Store full vectors, straight from the registers if no tile is cut."""
        plan = self.plan
        loops, points, [*order, lane] = self._make_store_loops(sums, "whole")
        lanes, value = self._loop_over_lanes(sums, late, loops, points)
        value = self.writer.scaled(row, value)
        vector, step = self._assign_vector(row, lanes, value, order, sums.after)
        # a tile that is never cut is stored straight from its registers, unrolled
        if plan.rows[-1].is_exact and plan.columns[-1].is_exact:
            for axis in plan.register_axes[:-1]:
                self.writer.tag(loops.iname(axis), "unr_hint")
        self.writer.store_vector(
            row,
            var(vector),
            # the address of a vector is that of its first lane
            {i: substitute(point, {lane: 0}) for i, point in points.items()},
            order,
            [*sums.after, step],
            lanes=plan.lanes,
            is_streamed=self.is_streamed,
        )

    def _loop_over_lanes(
        self,
        sums: _Sums,
        late: Sequence[str],
        loops: Loops,
        points: Mapping[str, Expression],
    ) -> tuple[str, Expression]:
        """Loop over the lanes of a vector; return the iname and the value of a lane."""
        lane = self.writer.loop("lane", size=self.plan.lanes, tag="vec")
        return lane, self._combine(sums, late, loops.with_inner(lane), points)

    def _assign_vector(
        self,
        row: int,
        lane: str,
        value: Expression,
        order: Sequence[str],
        after: Sequence[str],
    ) -> tuple[str, str]:
        """Assign a private vector; return its name and the id of the statement."""
        stem, dtype = f"row_{row}_value", self.schedule.get_row_dtype(row)
        vector = self.writer.array(stem, (self.plan.lanes,), dtype, has_lanes=True)
        entry = var(vector)[(var(lane),)]
        step = self.writer.assign(stem, entry, value, [*order, lane], after)
        return vector, step

    def _combine(
        self,
        sums: _Sums,
        late: Sequence[str],
        loops: Loops,
        points: Mapping[str, Expression],
    ) -> Expression:
        """Multiply late operands and sums, summed over the postponed indices."""
        axes, summed = self.plan.accumulator_axes, tuple(self.postponed)
        extents = [range(cut.size) for cut in self.plan.postponed]
        entries = {
            values: loops.entry(
                sums.array, axes, dict(zip(summed, values, strict=True))
            )
            for values in product(*extents)
        }
        return write_out(self.schedule, late, points, summed, entries)
