"""Packed tiles, in which a register tile reads contiguous entries in each step.

Packing B for ``ac,cb->ab`` with panels of two vectors of four lanes::

    B[c,b] in memory                     B_pack[panel,c,vector,lane]
    c: 0   b0 .. b7 | b8 .. b15          panel 0:  c 0: b0 .. b7
       1   b0 .. b7 | b8 .. b15    -->             c 1: b0 .. b7
       2   b0 .. b7 | b8 .. b15                    c 2: b0 .. b7
                                         panel 1:  c 0: b8 .. b15
                                                   ...

If b is not the last axis of B, its lines in memory run across the panel. The code then
loads squares of ``lanes`` times ``lanes`` entries along memory, and transposes them in
registers. Entries beyond the end of the array are zero, so the sums need no condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from constantdict import constantdict
from loopy.symbolic import SubstitutionMapper
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import IndexList
from feinsum.raising import value_of
from feinsum.raising.expressions import make_product, make_sum, rename, substitute
from feinsum.transforms.library.packed.plan import Axis, Cut, PackingPlan
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.primitives.vector_store import (
    Lines,
    compute_offset,
    find_lines,
    load_vector,
    transpose_square,
)
from feinsum.transforms.roles import get_typical_extent


@dataclass(frozen=True)
class Pack:
    """A packed tile, and the statements that fill it."""

    array: str
    axes: tuple[Axis, ...]
    fills: tuple[str, ...]


@dataclass(frozen=True)
class _Square:
    """A private square: as many vectors as a vector has lanes.

    Attributes:
        outer: the loops around it.
        across: the loop over lanes of the pack.
        along: the loop over entries that are contiguous in the operand.
    """

    array: str
    outer: list[str]
    across: str
    along: str

    def moved(self, entry: Expression, across: str, along: str) -> Expression:
        """Substitute other loops over the square in an expression."""
        return rename(entry, {self.across: across, self.along: along})


class Packer:
    """Copies tiles of operands, each product of operands once.

    Args:
        is_explicit: whether the code loads and transposes squares by vectors, instead
            of leaving that to the compiler.

    Attributes:
        square_dtypes: dtypes of the squares that C statements load and transpose.
    """

    def __init__(
        self, schedule: Schedule, loops: TileLoops, *, is_explicit: bool
    ) -> None:
        self.schedule, self.loops, self.plan = schedule, loops, loops.plan
        self.writer, self.is_explicit = loops.writer, is_explicit
        self.square_dtypes: set[np.dtype[Any]] = set()
        self.packs: dict[Names, Pack] = {}

    def pack(self, names: Names) -> Pack:
        """Pack a tile of a product of operands, with zeros beyond the end.

        Packing evaluates operands that are functions, and sums over folded indices.
        """
        if names not in self.packs:
            self.packs[names] = self._make_pack(names)
        return self.packs[names]

    def _make_pack(self, names: Names) -> Pack:
        plan, schedule = self.plan, self.schedule
        terms = [schedule.spans[name] for name in names]
        folded = tuple(i for i in plan.roles.folded if any(i in term for term in terms))
        term = _join_terms(terms, folded)
        axes = plan.order_pack_axes(term)
        dtype = schedule.dtypes[names[0]]
        has_lanes = plan.columns[-1].index in term
        array = self.loops.array(f"{names[0]}_pack", axes, dtype, has_lanes=has_lanes)
        turned = plan.find_turned_index(term)
        cuts = (plan.cuts[index] for index in term)
        main = next(cut for cut in cuts if len(cut.levels) > 1)
        # one pack serves all rows of the batch with these operands
        fills: list[str] = []
        # full register tiles are copied without a comparison; only the edge is padded
        for region in _list_regions(main):
            loops = self.loops.over("pack", term, region=region, turned=turned)
            value = write_out(schedule, names, loops.points, folded)
            # zeros beyond the end add nothing to the sums
            if not main.is_exact and region != "whole":
                end = value_of(main.extent)
                inside = p.Comparison(loops.points[main.index], "<", end)
                value = p.If(inside, value, dtype.type(0))
            fill = self._fill if turned is None else self._pack_by_squares
            fills += fill(Pack(array, axes, tuple(fills)), loops, value)
        return Pack(array, axes, tuple(fills))

    def _fill(self, pack: Pack, loops: Loops, value: Expression) -> list[str]:
        """Pack entry by entry, after the pack's other statements; lanes innermost."""
        inner = loops.lanes(pack.axes)
        for iname in inner:
            self.writer.tag(iname, "unr")
        order = [*self.loops.around, *loops.all(last=inner)]
        entry = loops.entry(pack.array, pack.axes)
        return [self.writer.assign(pack.array, entry, value, order, pack.fills)]

    def _pack_by_squares(
        self, pack: Pack, loops: Loops, value: Expression
    ) -> list[str]:
        """Pack by squares, which are read along memory and transposed."""
        size = self.plan.lanes
        dtype = self.writer.get_dtype(pack.array)
        array = self.writer.array("square", (size, size), dtype, has_lanes=True)
        *outer, across, along = loops.all(last=loops.lanes(pack.axes))
        square = _Square(array, [*self.loops.around, *outer], across, along)
        self.writer.tag(across, "unr")
        # a value that reads anything but contiguous entries of this dtype cannot be
        # computed by vectors
        kernel = self.schedule.kernel
        lines = find_lines(kernel, value, along, dtype) if self.is_explicit else None
        if lines is None:
            return self._transpose_entries(pack, loops, square, value)
        return self._transpose_vectors(pack, loops, square, lines)

    def _transpose_entries(
        self, pack: Pack, loops: Loops, square: _Square, value: Expression
    ) -> list[str]:
        """Transpose a square entry by entry; the compiler may vectorize that."""
        writer, (row, column) = self.writer, self._make_square_loops(square)
        for iname in (square.along, row, column):
            writer.tag(iname, "unr")
        order = [*square.outer, square.across, square.along]
        entry = var(square.array)[(var(square.across), var(square.along))]
        read = writer.assign(square.array, entry, value, order, pack.fills)
        return [
            read,
            writer.assign(
                pack.array,
                square.moved(loops.entry(pack.array, pack.axes), row, column),
                var(square.array)[(var(row), var(column))],
                [*square.outer, row, column],
                [*pack.fills, read],
            ),
        ]

    def _transpose_vectors(
        self, pack: Pack, loops: Loops, square: _Square, lines: Lines
    ) -> list[str]:
        """Load vectors along memory, and transpose them in registers.

        Rewrite, for the lanes b and the index c along which the operand lies::

            for b, c:  square[b,c] = f(B[b,c])
            for b, c:  B_pack[c,b] = square[b,c]

            for b:
                line[b,:] = B[b,:]
                square[b,:] = f(line[b,:])
            (transpose the square)
            for c:  B_pack[c,:] = square[c,:]
        """
        writer, (column, row) = self.writer, self._make_square_loops(square)
        dtype, size = writer.get_dtype(square.array), self.plan.lanes
        self.square_dtypes.add(dtype)
        order = [*square.outer, square.across]
        for iname, tag in ((square.along, "vec"), (row, "unr"), (column, "vec")):
            writer.tag(iname, tag)
        lane = (var(square.across), var(square.along))
        after, loaded = [*pack.fills], dict[Expression, Expression]()
        for read in lines.reads:
            vector, *steps = self._load_line(read, square, tuple(order), tuple(after))
            loaded[read], after = var(vector)[(var(square.along),)], [*after, *steps]
        value = SubstitutionMapper(loaded.get)(lines.value)
        entry, order = var(square.array)[lane], [*order, square.along]
        evaluated = writer.assign(square.array, entry, value, order, after)
        transpose = transpose_square(square.array, dtype, size)
        after = [*after, evaluated]
        transposed = writer.add("transpose", transpose, square.outer, after)
        moved = writer.assign(
            pack.array,
            square.moved(loops.entry(pack.array, pack.axes), column, row),
            var(square.array)[(var(row), var(column))],
            [*square.outer, row, column],
            [*after, transposed],
        )
        return [*after[len(pack.fills) :], transposed, moved]

    def _load_line(
        self, read: p.Subscript, square: _Square, loops: Names, after: Names
    ) -> Names:
        """Load a private vector; return its name and the ids of the statements."""
        writer, size = self.writer, self.plan.lanes
        kernel, name = self.schedule.kernel, read.aggregate.name
        dtype = writer.get_dtype(square.array)
        vector = writer.array("line", (size,), dtype, has_lanes=True)
        flat = compute_offset(kernel, substitute(read, {square.along: 0}))
        offset, offset_id = writer.scalar("place", flat, loops, after)
        load = load_vector(vector, name, offset, dtype, size)
        return vector, offset_id, writer.add(vector, load, loops, (*after, offset_id))

    def _make_square_loops(self, square: _Square) -> tuple[str, str]:
        """Make loops over a square for the statement that reads it."""
        size = self.plan.lanes
        across, along = (
            self.writer.loop(iname, size=size)
            for iname in (square.across, square.along)
        )
        return across, along


def _list_regions(cut: Cut) -> tuple[str, ...]:
    """Return the regions of the main index that are packed separately.

    Regions known to be empty are left out: Loopy refuses constant empty domains.
    """
    unit = cut.strides[0]
    # Nothing is beyond the end, or the edge cannot have separate loops: that of a
    # register tile of two has one entry, which an equation determines, and Loopy 2025.2
    # drops the condition that both sides of it must be even.
    if cut.is_exact or unit < 3:
        return ("all",)
    if not isinstance(cut.extent, int):
        return ("whole", "edge")
    is_there = {"whole": cut.extent >= unit, "edge": cut.extent % unit != 0}
    return tuple(region for region in is_there if is_there[region])


def write_out(
    schedule: Schedule,
    names: Sequence[str],
    points: Mapping[str, Expression],
    summed: Names,
    sums: Mapping[tuple[int, ...], Expression] | None = None,
) -> Expression:
    """Write out a sum of products of operands, term by term.

    Args:
        schedule: the schedule.
        names: the operands of the product.
        points: value of each index that is not summed.
        summed: the summed indices.
        sums: a factor of each term, by the values of the summed indices.
    """
    terms = []
    for values in product(
        *(range(get_typical_extent(schedule.extents[i])) for i in summed)
    ):
        points_of_term = {**points, **dict(zip(summed, values, strict=True))}
        factors = [schedule.multiply((name,), points_of_term) for name in names]
        factors += [sums[values]] if sums is not None else []
        terms.append(make_product(factors))
    return make_sum(terms)


def _join_terms(terms: Sequence[IndexList], folded: Names) -> Names:
    """Return the indices of a product: the longest term, others before its last one."""
    *head, last = [i for i in max(terms, key=len) if i not in folded]
    seen = {*head, last, *folded}
    other_indices = dict.fromkeys(i for term in terms for i in term if i not in seen)
    return (*head, *other_indices, last)


@dataclass(frozen=True)
class Loops:
    """Inames over the entries of tiles, one per level of each index.

    Attributes:
        turned: an index of one level that has two loops, the inner one as long as a
            vector.
        joined: lengths of indices without an own axis: they share the axis of the index
            before them. An index without inames also shares the loop of that index.
    """

    inames: Mapping[str, Names]
    points: Mapping[str, Expression]
    turned: str | None = None
    n_lanes: int = 1
    joined: Mapping[str, int] = constantdict()

    def outer(self, indices: Sequence[str]) -> list[str]:
        return [iname for index in indices for iname in self.inames[index][:1]]

    def all(self, *, last: Sequence[str]) -> list[str]:
        """Return all inames in the order of the indices, but some of them last."""
        names = [iname for names in self.inames.values() for iname in names]
        return [*(iname for iname in names if iname not in last), *last]

    def lanes(self, axes: Sequence[Axis]) -> list[str]:
        """Return the inames over lanes of an array, and those of a turned index."""
        across = [self.iname(axis) for axis in axes if axis[1] == 2]
        return [*across, *(self.inames[self.turned][1:] if self.turned else ())]

    def with_inner(self, *inner: str) -> Loops:
        """Replace the innermost loops of the vector index."""
        *_, index = [i for i, names in self.inames.items() if len(names) == 3]
        outer = self.inames[index][: -len(inner)]
        return replace(self, inames={**self.inames, index: (*outer, *inner)})

    def iname(self, axis: Axis) -> str:
        index, level = axis
        return self.inames[index][level]

    def entry(
        self, array: str, axes: Sequence[Axis], fixed: Mapping[str, int] | None = None
    ) -> Expression:
        """Subscript an array; ``fixed`` has the values of some indices of one level."""
        fixed, subscripts = fixed or {}, list[Expression]()
        for axis in axes:
            index = axis[0]
            if index in fixed:
                subscripts.append(fixed[index])
            elif index not in self.joined:
                subscripts.append(self._make_subscript(axis))
            elif self.inames[index]:
                subscripts[-1] = self.joined[index] * subscripts[
                    -1
                ] + self._make_subscript(axis)
        return var(array)[tuple(subscripts)]

    def _make_subscript(self, axis: Axis) -> Expression:
        if axis[0] == self.turned:
            outer, inner = map(var, self.inames[self.turned])
            return self.n_lanes * outer + inner
        return var(self.iname(axis))


class TileLoops:
    """The loops of a plan: over tiles, some of them in parallel, and inside tiles.

    Attributes:
        tiles: the loop over the tiles of each index that has several.
        grid: the loops over tiles of output indices, outermost first.
        deep: the loops over tiles of summed indices.
    """

    def __init__(self, writer: NestWriter, plan: PackingPlan) -> None:
        self.writer, self.plan = writer, plan
        cuts = [cut for cut in plan.cuts.values() if cut.n_tiles != 1]
        self.tiles = {cut.index: self._make_tile_loop(cut) for cut in cuts}
        self.deep = [self.tiles[c.index] for c in plan.summed if c.index in self.tiles]
        self.grid = self._order_grid()
        self.joined = constantdict({cut.index: cut.size for cut in plan.joined[1:]})

    @property
    def around(self) -> list[str]:
        """The loops over tiles: of output indices, then of summed ones."""
        return [*self.grid, *self.deep]

    def over(
        self,
        stem: str,
        indices: Sequence[str],
        shared: Mapping[str, str] | None = None,
        region: str = "all",
        level: int = 0,
        turned: str | None = None,
        *,
        is_joined: bool = False,
    ) -> Loops:
        """Make loops over the entries of a tile, the outer ones up to the array's end.

        Inner loops run over full register tiles or vectors, with padding. Only stores
        stop at the end of the array at every level.

        Args:
            stem: beginning of the loops' names.
            indices: the indices.
            shared: outer loops to use again.
            region: ``whole`` for register tiles that are entirely inside the array,
                ``edge`` for the others, ``all`` for both.
            level: the level to which ``region`` refers: 0 for register tiles, 1 for
                vectors.
            turned: an index of one level that gets a second one, as long as a vector.
            is_joined: whether joined indices share one loop, and so have no points.
        """
        inames: dict[str, Names] = {}
        points: dict[str, Expression] = {}
        if is_joined and self.plan.joined:
            inames = self._make_joined_loop(stem, self.plan.joined)
        for index in [i for i in indices if i not in inames]:
            cut, tile = self.plan.cuts[index], self.tiles.get(index)
            has_region = region != "all" and len(cut.levels) > level + 1
            if index == turned:
                lanes = self.plan.lanes
                cut = replace(cut, levels=(cut.size // lanes, lanes))
            # the position, as an expression for reads and as text for bounds of loops
            point = cut.size * var(tile) if tile else 0
            position, loops = f"{cut.size}*{tile}" if tile else "0", list[str]()
            for size, stride in zip(cut.levels, cut.strides, strict=True):
                position += f" + {stride}*{{0}}"
                if shared and index in shared and not loops:
                    loops.append(shared[index])
                else:
                    is_bounded = not cut.is_exact and (not loops or stem == "store")
                    limits = [f"{position} < {cut.extent}"] if is_bounded else []
                    if has_region and len(loops) == level:
                        last = f"{position} + {stride - 1}"
                        sign = {"whole": "<", "edge": ">="}[region]
                        limits.append(f"{last} {sign} {cut.extent}")
                    loops.append(
                        self.writer.loop(f"{stem}_{index}", *limits, size=size)
                    )
                position = position.format(loops[-1])
                point += stride * var(loops[-1])
            inames[index], points[index] = tuple(loops), point
        return Loops(inames, points, turned, self.plan.lanes, self.joined)

    def _make_joined_loop(self, stem: str, cuts: Sequence[Cut]) -> dict[str, Names]:
        first, *other_indices = (cut.index for cut in cuts)
        size = prod(cut.size for cut in cuts)
        iname = self.writer.loop(f"{stem}_{first}", size=size)
        return {first: (iname,), **dict.fromkeys(other_indices, ())}

    def _make_tile_loop(self, cut: Cut) -> str:
        if cut.n_tiles is not None:
            return self.writer.loop(f"{cut.index}_tile", size=cut.n_tiles)
        return self.writer.loop(f"{cut.index}_tile", f"{cut.size}*{{}} < {cut.extent}")

    def _order_grid(self) -> list[str]:
        """Order the loops over tiles, and map the longest three to the grid."""
        plan = self.plan
        free = [*reversed(plan.columns), *reversed(plan.rows), *plan.batch]
        cuts = [cut for cut in free if cut.index in self.tiles]
        # A grid has three axes. The longest loops give the most work-groups; the others
        # run inside a work-group.
        by_length = sorted(
            cuts, key=lambda cut: -(cut.n_tiles or get_typical_extent(cut.extent))
        )
        parallel = [cut for cut in cuts if cut in by_length[:3]]
        for axis, cut in enumerate(parallel):
            self.writer.tag(self.tiles[cut.index], f"g.{axis}")
        sequential = [cut for cut in cuts if cut not in parallel]
        return [self.tiles[cut.index] for cut in (*parallel, *sequential)]

    def array(
        self, stem: str, axes: Sequence[Axis], dtype: np.dtype[Any], *, has_lanes: bool
    ) -> str:
        shape: list[int] = []
        for index, level in axes:
            if index in self.joined:
                shape[-1] *= self.joined[index]
            else:
                shape.append(self.plan.cuts[index].levels[level])
        return self.writer.array(stem, shape, dtype, has_lanes=has_lanes)
