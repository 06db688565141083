"""Loops around packed tiles and register tiles, written from a plan.

Source: Goto and van de Geijn 2008, van Zee and van de Geijn 2015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from loopy.symbolic import SubstitutionMapper
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.ir import Extent, IndexList
from feinsum.transforms.library.packed_loops import Loops
from feinsum.transforms.library.packing_plan import Axis, Cut, Plan
from feinsum.transforms.library.roles import typical
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.primitives.vector_store import can_store_vectors, can_stream

__all__ = ["PackedNest"]

LEAST_EDGE = 3
"""Entries of a register tile whose edge has a loop of its own. Of two, the only one is
fixed by an equation, of which Loopy 2025.2 forgets that both sides have to be even.
"""


@dataclass(frozen=True)
class _Pack:
    """A packed tile, and the statements that fill it."""

    array: str
    axes: tuple[Axis, ...]
    fills: tuple[str, ...]


@dataclass(frozen=True)
class _Sums:
    """The sums of a row of the batch, and what has to run before they are read."""

    array: str
    around: Mapping[str, str]
    after: Sequence[str]


class PackedNest:
    """Writes the loops of a plan.

    Late operands are multiplied to the sums. Rewrite, for the vector index i and the
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
        is_row_inside: whether the loop over rows stands inside of that over columns.
        is_streamed: whether aligned vectors are stored past the caches.
    """

    def __init__(
        self, schedule: Schedule, plan: Plan, *, is_row_inside: bool, is_streamed: bool
    ) -> None:
        self.schedule, self.plan = schedule, plan
        self.is_streamed = is_streamed
        self.writer = NestWriter(schedule)
        cuts = [cut for cut in plan.cuts.values() if cut.n_tiles != 1]
        self.tiles = {cut.index: self._tile_loop(cut) for cut in cuts}
        self.deep = [self.tiles[c.index] for c in plan.summed if c.index in self.tiles]
        self.grid = self._grid()
        groups = (
            (plan.columns, plan.rows) if is_row_inside else (plan.rows, plan.columns)
        )
        self.free = [cut.index for group in groups for cut in group]
        self.postponed = [cut.index for cut in plan.postponed]
        self.packs: dict[Names, _Pack] = {}

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        roles = self.plan.roles
        for row, operands in enumerate(self.schedule.rows):
            left = self._pack(tuple(operands[k] for k in roles.left))
            right = self._pack((operands[roles.right],))
            sums = self._sum(row, left, right)
            self._store(row, sums, [operands[k] for k in roles.late])
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
        self,
        stem: str,
        indices: Sequence[str],
        shared: Mapping[str, str] | None = None,
        part: str = "all",
    ) -> Loops:
        """Loops over the entries of a tile; outer ones end where the array ends.

        Those inside are loops over registers: all of it, but for what is stored.

        Args:
            shared: outer loops to use again.
            part: ``all``, or those register tiles that are ``whole`` in the array, or
                the ``edge``, where one is not.
        """
        inames: dict[str, Names] = {}
        points: dict[str, Expression] = {}
        for index in indices:
            cut, tile = self.plan.cuts[index], self.tiles.get(index)
            point = cut.size * var(tile) if tile else 0
            position, made = f"{cut.size}*{tile}" if tile else "0", list[str]()
            for size, stride in zip(cut.levels, cut.strides, strict=True):
                position += f" + {stride}*{{0}}"
                if shared and index in shared and not made:
                    made.append(shared[index])
                else:
                    is_bounded = not cut.is_exact and (not made or stem == "store")
                    limits = [f"{position} < {cut.extent}"] if is_bounded else []
                    if len(cut.levels) > 1 and part != "all" and not made:
                        last = f"{position} + {stride - 1}"
                        sign = {"whole": "<", "edge": ">="}[part]
                        limits.append(f"{last} {sign} {cut.extent}")
                    made.append(self.writer.loop(f"{stem}_{index}", *limits, size=size))
                position = position.format(made[-1])
                point += stride * var(made[-1])
            inames[index], points[index] = tuple(made), point
        return Loops(inames, points)

    def _pack(self, names: Names) -> _Pack:
        """Copy a tile of a product of operands, zero where it ends.

        Their functions are evaluated, and sums over indices of theirs alone.
        """
        if names not in self.packs:
            self.packs[names] = self._new_pack(names)
        return self.packs[names]

    def _new_pack(self, names: Names) -> _Pack:
        plan, schedule = self.plan, self.schedule
        terms = [schedule.spans[name] for name in names]
        folded = tuple(i for i in plan.roles.folded if any(i in term for term in terms))
        term = _joint_term(terms, folded)
        axes = plan.pack_axes(term)
        has_lanes = plan.columns[-1].index in term
        dtype = schedule.dtypes[names[0]]
        array = self._array(f"{names[0]}_pack", axes, dtype, has_lanes=has_lanes)
        uneven = [
            cut
            for cut in (plan.cuts[index] for index in term)
            if len(cut.levels) > 1 and not cut.is_exact
        ]
        fills: list[str] = []
        is_split = uneven and uneven[0].strides[0] >= LEAST_EDGE
        for part in ("whole", "edge") if is_split else ("all",):
            loops = self._loops("pack", term, part=part)
            value = self._written_out(names, loops.points, folded)
            if uneven and part != "whole":
                inside = [
                    p.Comparison(loops.points[c.index], "<", _as_expression(c.extent))
                    for c in uneven
                ]
                value = p.If(p.LogicalAnd(tuple(inside)), value, dtype.type(0))
            lane = loops.iname(axes[-1]) if has_lanes else None
            if lane is not None:
                self.writer.tag(lane, "unr")
            order = [*self.grid, *self.deep, *loops.all(last=lane)]
            entry = loops.entry(array, axes)
            fills.append(self.writer.assign(array, entry, value, order, fills))
        return _Pack(array, axes, tuple(fills))

    def _written_out(
        self,
        names: Sequence[str],
        points: Mapping[str, Expression],
        summed: Names,
        sums: Mapping[tuple[int, ...], Expression] | None = None,
    ) -> Expression:
        """The sum of products of operands, term by term.

        Args:
            sums: a factor of each term, by the values of the summed indices.
        """
        schedule = self.schedule
        terms = []
        for values in product(*(range(typical(schedule.extents[i])) for i in summed)):
            at = {**points, **dict(zip(summed, values, strict=True))}
            factors = [
                var(schedule.rules[name])(
                    *(at[index] for index in schedule.spans[name])
                )
                for name in names
            ]
            factors += [sums[values]] if sums is not None else []
            terms.append(factors[0] if len(factors) == 1 else p.Product(tuple(factors)))
        return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))

    def _array(
        self, stem: str, axes: Sequence[Axis], dtype: np.dtype[Any], *, has_lanes: bool
    ) -> str:
        shape = [self.plan.cuts[index].levels[level] for index, level in axes]
        return self.writer.array(stem, shape, dtype, has_lanes=has_lanes)

    def _sum(self, row: int, left: _Pack, right: _Pack) -> _Sums:
        """Sum the register tiles of one row of the batch."""
        plan, dtype = self.plan, self.schedule.dtype_of_row(row)
        axes, place = plan.register_axes, plan.accumulator_axes
        tile = self._array(f"row_{row}_tile", axes, dtype, has_lanes=True)
        sums = self._array(f"row_{row}_sums", place, dtype, has_lanes=True)
        outer = [*self.free, *self.postponed]
        update = self._loops("sum", [*outer, *(cut.index for cut in plan.summed)])
        around = {i: update.inames[i][0] for i in outer}
        first, last = (self._loops(stem, outer, around) for stem in ("first", "last"))
        start, after = dtype.type(0), [*left.fills, *right.fills]
        if plan.is_deep:
            start = first.entry(sums, place)
            after.append(self._zero(row, sums))
        entry = update.entry(tile, axes)
        term = p.Product(tuple(update.entry(pk.array, pk.axes) for pk in (left, right)))
        for loops, assignee, value in (
            (first, first.entry(tile, axes), start),
            (update, entry, p.Sum((entry, term))),
            (last, last.entry(sums, place), last.entry(tile, axes)),
        ):
            for axis, tag in zip(axes, ("unr", "unr", "vec"), strict=True):
                self.writer.tag(loops.iname(axis), tag)
            order = [*self.grid, *self.deep, *self._around(loops)]
            step = self.writer.assign(f"row_{row}", assignee, value, order, after)
            after = [*after, step]
        shared = {} if plan.is_deep else {i: around[i] for i in self.free}
        return _Sums(sums, shared, after)

    def _zero(self, row: int, sums: str) -> str:
        """Zero the sums ahead of all tiles of the summed indices; its id."""
        plan, dtype = self.plan, self.schedule.dtype_of_row(row)
        loops = self._loops("zero", [*self.free, *self.postponed])
        self.writer.tag(loops.iname(plan.register_axes[-1]), "vec")
        entry = loops.entry(sums, plan.accumulator_axes)
        order = [*self.grid, *self._around(loops)]
        return self.writer.assign(f"row_{row}_zero", entry, dtype.type(0), order)

    def _around(self, loops: Loops) -> list[str]:
        """Loops over tiles of registers, over the sum if there is one, inside."""
        summed = [cut.index for cut in self.plan.summed if cut.index in loops.inames]
        postponed = [index for index in self.postponed if index in loops.inames]
        inner = [loops.iname(axis) for axis in self.plan.register_axes]
        return [*loops.outer([*self.free, *postponed, *summed]), *inner]

    def _store(self, row: int, sums: _Sums, late: Sequence[str]) -> None:
        """Store the sums, multiplied by the late operands if there are any."""
        plan, roles = self.plan, self.plan.roles
        loops = self._loops("store", self.free, sums.around)
        extents = self.schedule.extents
        outer = {i: self.writer.loop(i, size=extents[i]) for i in roles.outer}
        points = {
            **loops.points,
            **{index: var(name) for index, name in outer.items()},
            **{i: var(self.tiles[i]) if i in self.tiles else 0 for i in roles.batch},
        }
        *around, vector, lane = self._around(loops)
        order = [*self.grid, *around, *outer.values(), vector]
        if can_store_vectors(self.schedule, row, plan.columns[-1].index, plan.lanes):
            self._store_vectors(row, sums, late, loops, points, order)
            return
        if late:
            lanes, value = self._in_lanes(sums, late, loops, points)
            combined, step = self._vector(row, lanes, value, order, sums.after)
            value, after = var(combined)[(var(lane),)], [*sums.after, step]
        else:
            value, after = loops.entry(sums.array, plan.accumulator_axes), [*sums.after]
        self.writer.tag(lane, "unr")
        self.writer.store(row, value, points, [*order, lane], after)

    def _store_vectors(
        self,
        row: int,
        sums: _Sums,
        late: Sequence[str],
        loops: Loops,
        points: Mapping[str, Expression],
        order: Sequence[str],
    ) -> None:
        """Store vector by vector; a tile that fits everywhere from its registers."""
        plan = self.plan
        lanes, value = self._in_lanes(sums, late, loops, points)
        value = self.writer.scaled(row, value)
        vector, step = self._vector(row, lanes, value, order, sums.after)
        *registers, lane = (loops.iname(axis) for axis in plan.register_axes)
        if plan.rows[-1].is_exact and plan.columns[-1].is_exact:
            for iname in registers:
                self.writer.tag(iname, "unr")
        index = plan.columns[-1].index
        first = SubstitutionMapper(make_subst_func({lane: 0}))
        self.writer.store_vector(
            row,
            var(vector),
            {i: first(point) for i, point in points.items()},
            order,
            [*sums.after, step],
            lanes=plan.lanes,
            is_streamed=self.is_streamed
            and can_stream(self.schedule, row, index, plan.lanes),
        )

    def _in_lanes(
        self,
        sums: _Sums,
        late: Sequence[str],
        loops: Loops,
        points: Mapping[str, Expression],
    ) -> tuple[str, Expression]:
        """A loop over all lanes of a vector, and the value there."""
        lane = self.writer.loop("lane", size=self.plan.lanes, tag="vec")
        return lane, self._combined(sums, late, loops.with_lane(lane), points)

    def _vector(
        self,
        row: int,
        lane: str,
        value: Expression,
        order: Sequence[str],
        after: Sequence[str],
    ) -> tuple[str, str]:
        """A private vector; its name, and the id of its statement."""
        stem, dtype = f"row_{row}_value", self.schedule.dtype_of_row(row)
        vector = self.writer.array(stem, (self.plan.lanes,), dtype, has_lanes=True)
        entry = var(vector)[(var(lane),)]
        step = self.writer.assign(stem, entry, value, [*order, lane], after)
        return vector, step

    def _combined(
        self,
        sums: _Sums,
        late: Sequence[str],
        loops: Loops,
        points: Mapping[str, Expression],
    ) -> Expression:
        """Late operands times sums, summed over the postponed indices."""
        axes, summed = self.plan.accumulator_axes, tuple(self.postponed)
        extents = [range(cut.size) for cut in self.plan.postponed]
        entries = {
            values: loops.entry(
                sums.array, axes, dict(zip(summed, values, strict=True))
            )
            for values in product(*extents)
        }
        return self._written_out(late, points, summed, entries)


def _joint_term(terms: Sequence[IndexList], folded: Names) -> Names:
    """The indices of a product: those of the longest term, others before its last."""
    *head, last = [i for i in max(terms, key=len) if i not in folded]
    seen = {*head, last, *folded}
    others = dict.fromkeys(i for term in terms for i in term if i not in seen)
    return (*head, *others, last)


def _as_expression(extent: Extent) -> Expression:
    return extent if isinstance(extent, int) else var(extent.name)
