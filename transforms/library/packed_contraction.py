"""Contractions of two operands by packed tiles, as matrix products are computed.

Source: Goto and van de Geijn 2008, van Zee and van de Geijn 2015 for the loops around
a register tile; Springer and Bientinesi 2018 (GETT) for tiles that span several
indices; paper, section 8.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, Extent
from feinsum.raising import LoopNest
from feinsum.transforms.library.packing_plan import Axis, Cut, Plan, make_plan
from feinsum.transforms.library.roles import (
    carriers,
    free_indices,
    has_real_dtype,
    is_plain,
    number,
    text,
    typical,
)
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters, Space, Transform, register

__all__ = ["PACKED_CONTRACTION"]


def packed_contraction(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Pack tiles of both operands, multiply them by register tiles.

    Rewrite, for ``ac,cb->ab`` with the vector index b and the register index a::

        for a, b:  out[a,b] = sum(c, A[a,c]*B[c,b])

        for b_tile, a_tile in parallel:
            sums[...] = 0
            for c_tile:
                B_pack[panel,c,v,:] = B(...)          # 0 outside of the array
                A_pack[block,c,r] = A(...)
                for panel, block:                     # r < rows, v < vectors unrolled
                    tile[r,v,:] = sums[panel,block,r,v,:]
                    for c:
                        tile[r,v,:] += A_pack[block,c,r]*B_pack[panel,c,v,:]
                    sums[panel,block,r,v,:] = tile[r,v,:]
            out[...] = sums[...]

    Tiles span as many indices as it takes to fill them. Where one tile holds all of the
    sum, a register tile is stored as soon as it is done.

    Parameters:
        vector: index in the output and in one operand; its entries are lanes.
        register: index in the output and in the other operand.
        lanes: entries of a vector.
        vectors: vectors of a register tile.
        rows: rows of a register tile.
        width: entries of a tile over the free indices of the vector index's operand.
        height: entries of a tile over those of the other operand.
        depth: entries of a tile over the summed indices.
    """
    schedule = begin(t_unit, nest)
    plan = make_plan(nest.einsum, schedule, parameters)
    return _Writing(schedule, plan).run().t_unit


@dataclass(frozen=True)
class _Pack:
    """A packed tile, and the statement that fills it."""

    array: str
    axes: tuple[Axis, ...]
    fill: str

    @property
    def place(self) -> tuple[str, tuple[Axis, ...]]:
        return self.array, self.axes


@dataclass(frozen=True)
class _Loops:
    """Inames over the entries of tiles, one per level of each index."""

    writing: _Writing
    inames: Mapping[str, Names]

    @property
    def points(self) -> dict[str, Expression]:
        """The place of each index in its array."""
        return {index: self._point(index) for index in self.inames}

    def all(self, *, last: str | None) -> list[str]:
        """All loops in the order of the indices, but for one that goes last."""
        names = [iname for names in self.inames.values() for iname in names]
        return sorted(names, key=lambda iname: iname == last)

    def outer(self, indices: Sequence[str]) -> list[str]:
        return [iname for index in indices for iname in self.inames[index][:1]]

    def iname(self, axis: Axis) -> str:
        index, level = axis
        return self.inames[index][level]

    def entry(self, array: str, axes: Sequence[Axis]) -> Expression:
        return var(array)[tuple(var(self.iname(axis)) for axis in axes)]

    def _point(self, index: str) -> Expression:
        cut, tile = self.writing.plan.cuts[index], self.writing.tiles.get(index)
        point = cut.size * var(tile) if tile else 0
        for iname, stride in zip(self.inames[index], cut.strides, strict=True):
            point += stride * var(iname)
        return point


class _Writing:
    """Writes the loops of a plan."""

    def __init__(self, schedule: Schedule, plan: Plan) -> None:
        self.schedule, self.plan = schedule, plan
        self.writer = NestWriter(schedule)
        cuts = [cut for cut in plan.cuts.values() if cut.n_tiles != 1]
        self.tiles = {cut.index: self._tile_loop(cut) for cut in cuts}
        self.grid = self._grid()
        self.deep = [self.tiles[i] for i in plan.summed_indices if i in self.tiles]

    def run(self) -> Schedule:
        packs = {name: self._pack(name) for name in self.schedule.operands}
        for row, operands in enumerate(self.schedule.rows):
            self._row(row, [packs[name] for name in operands])
        return self.writer.finished()

    def _tile_loop(self, cut: Cut) -> str:
        if cut.n_tiles is not None:
            return self.writer.loop(f"{cut.index}_tile", size=cut.n_tiles)
        return self.writer.loop(f"{cut.index}_tile", f"{cut.size}*{{}} < {cut.extent}")

    def _grid(self) -> list[str]:
        """The loops over tiles; those of most iterations run in parallel."""
        plan = self.plan
        free = [*reversed(plan.columns), *reversed(plan.rows), *plan.batch]
        cuts = [cut for cut in free if cut.index in self.tiles]
        by_length = sorted(cuts, key=lambda cut: -(cut.n_tiles or typical(cut.extent)))
        parallel = [cut for cut in cuts if cut in by_length[:3]]
        for axis, cut in enumerate(parallel):
            self.writer.tag(self.tiles[cut.index], f"g.{axis}")
        others = [cut for cut in cuts if cut not in parallel]
        return [self.tiles[cut.index] for cut in (*parallel, *others)]

    def _loops(
        self, stem: str, indices: Sequence[str], shared: Mapping[str, str] | None = None
    ) -> _Loops:
        """Loops over the entries of a tile; outer ones end where the array ends.

        Those inside are loops over registers: all of it, but for what is stored.

        Args:
            shared: outer loops to use again.
        """
        inames: dict[str, Names] = {}
        for index in indices:
            cut = self.plan.cuts[index]
            tile = self.tiles.get(index)
            position, made = f"{cut.size}*{tile}" if tile else "0", list[str]()
            for size, stride in zip(cut.levels, cut.strides, strict=True):
                position += f" + {stride}*{{0}}"
                if shared and not made:
                    made.append(shared[index])
                else:
                    is_bounded = not cut.is_exact and (not made or stem == "store")
                    limit = [f"{position} < {cut.extent}"] if is_bounded else []
                    made.append(self.writer.loop(f"{stem}_{index}", *limit, size=size))
                position = position.format(made[-1])
            inames[index] = tuple(made)
        return _Loops(self, inames)

    def _pack(self, name: str) -> _Pack:
        """Copy a tile of an operand, its functions evaluated, zero where it ends."""
        plan, schedule = self.plan, self.schedule
        term, dtype = schedule.spans[name], schedule.dtypes[name]
        loops = self._loops(f"{name}_pack", term)
        axes = plan.pack_axes(term)
        has_lanes = plan.columns[-1].index in term
        array = self._array(f"{name}_pack", axes, dtype, has_lanes=has_lanes)
        lane = loops.iname(axes[-1]) if has_lanes else None
        if lane is not None:
            self.writer.tag(lane, "unr")
        points = loops.points
        value = var(schedule.rules[name])(*(points[index] for index in term))
        inside = [
            p.Comparison(points[cut.index], "<", _as_expression(cut.extent))
            for cut in (plan.cuts[index] for index in term)
            if len(cut.levels) > 1 and not cut.is_exact
        ]
        if inside:
            value = p.If(p.LogicalAnd(tuple(inside)), value, dtype.type(0))
        order = [*self.grid, *self.deep, *loops.all(last=lane)]
        entry = loops.entry(array, axes)
        return _Pack(array, axes, self.writer.assign(array, entry, value, order))

    def _array(
        self, stem: str, axes: Sequence[Axis], dtype: np.dtype[Any], *, has_lanes: bool
    ) -> str:
        shape = [self.plan.cuts[index].levels[level] for index, level in axes]
        return self.writer.array(stem, shape, dtype, has_lanes=has_lanes)

    def _row(self, row: int, packs: Sequence[_Pack]) -> None:
        """Sum the register tiles of one row of the batch, and store them."""
        plan, dtype = self.plan, self.schedule.dtype_of_row(row)
        axes, place = plan.register_axes, plan.accumulator_axes
        tile = self._array(f"row_{row}_tile", axes, dtype, has_lanes=True)
        sums = self._array(f"row_{row}_sums", place, dtype, has_lanes=True)
        update = self._loops("sum", [*plan.free, *plan.summed_indices])
        around = {i: names[0] for i, names in update.inames.items() if names}
        first = self._loops("first", plan.free, around)
        last = self._loops("last", plan.free, around)
        start, after = dtype.type(0), [pack.fill for pack in packs]
        if plan.is_deep:
            start = first.entry(sums, place)
            after.append(self._zero(row, sums))
        product = p.Product(tuple(update.entry(*pack.place) for pack in packs))
        steps = (
            (first, first.entry(tile, axes), start),
            (update, entry := update.entry(tile, axes), p.Sum((entry, product))),
            (last, last.entry(sums, place), last.entry(tile, axes)),
        )
        for loops, assignee, value in steps:
            for axis, tag in zip(axes, ("unr", "unr", "vec"), strict=True):
                self.writer.tag(loops.iname(axis), tag)
            order = [*self.grid, *self.deep, *self._around(loops)]
            step = self.writer.assign(f"row_{row}", assignee, value, order, after)
            after = [*after, step]
        store = self._loops("store", plan.free, None if plan.is_deep else around)
        self.writer.tag(store.iname(axes[-1]), "unr")
        order = [*self.grid, *self._around(store)]
        self.writer.store(row, store.entry(sums, place), store.points, order, after)

    def _zero(self, row: int, sums: str) -> str:
        """Zero the sums ahead of all tiles of the summed indices; its id."""
        plan, dtype = self.plan, self.schedule.dtype_of_row(row)
        loops = self._loops("zero", plan.free)
        self.writer.tag(loops.iname(plan.register_axes[-1]), "vec")
        entry = loops.entry(sums, plan.accumulator_axes)
        order = [*self.grid, *self._around(loops)]
        return self.writer.assign(f"row_{row}_zero", entry, dtype.type(0), order)

    def _around(self, loops: _Loops) -> list[str]:
        """Loops over tiles of registers, over the sum if there is one, inside."""
        plan = self.plan
        summed = [i for i in plan.summed_indices if i in loops.inames]
        inner = [loops.iname(axis) for axis in plan.register_axes]
        return [*loops.outer(plan.free), *loops.outer(summed), *inner]


def _as_expression(extent: Extent) -> Expression:
    return extent if isinstance(extent, int) else var(extent.name)


def _space(einsum: BatchedEinsum) -> Space | None:
    """Two operands, a summed index in both, and free indices that split them."""
    if einsum.n_operands != 2 or not has_real_dtype(einsum):
        return None
    if not einsum.summation_indices or not is_plain(einsum):
        return None
    pairs = [
        (vector, register_index)
        for vector in free_indices(einsum)
        for register_index in free_indices(einsum)
        if carriers(einsum, vector) != carriers(einsum, register_index)
        and typical(einsum.extents[vector]) >= 8
    ]
    if not pairs:
        return None
    is_double = einsum.operands[0].dtype.itemsize == 8
    return {
        "vector": tuple(dict.fromkeys(v for v, _ in pairs)),
        "register": tuple(dict.fromkeys(r for _, r in pairs)),
        "lanes": (4, 8) if is_double else (8, 16),
        "vectors": (2, 1, 3, 4),
        "rows": (6, 4, 8, 12),
        "width": (96, 192, 384, 48),
        "height": (192, 96, 384, 48),
        "depth": (256, 128, 384, 64),
    }


def _constraint(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    vector, register_index = text(parameters, "vector"), text(parameters, "register")
    if carriers(einsum, vector) == carriers(einsum, register_index):
        return f"the indices {vector!r} and {register_index!r} are of one operand"
    n_registers = number(parameters, "rows") * number(parameters, "vectors")
    if not 6 <= n_registers <= 32:
        return f"{n_registers} accumulators"
    return None


PACKED_CONTRACTION = register(
    Transform(
        "packed_contraction",
        1,
        "two operands, packed in tiles over all indices, and multiplied in registers",
        _space,
        packed_contraction,
        _constraint,
    )
)
