"""The loops of the family ``generic``: tiles of sums, or sums of several rows.

For ``ij->j`` along the free index j, and for ``ij->i`` along the summed index j::

    for j_tile:                              for i_block, i_rows:
        for j':  tile[j'] = 0                    tile[0], tile[1] = 0
        for i_step, j':  tile[j'] += ...         for j:  tile[0] += ..., tile[1] += ...
        for j':  out[j] = tile[j']               out[i], out[i + 1] = tile[0], tile[1]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, IndexList
from feinsum.transforms.primitives import LoopRange, NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import count_points, get_typical_extent

NO_INDEX = ""
"""The value of a parameter for which there is no index."""


Ranges: TypeAlias = Mapping[str, LoopRange]
"""The range of each index in the loops of a statement, outermost first."""


def list_cuts(einsum: BatchedEinsum, parameters: Parameters) -> dict[str, int]:
    """Return the output indices that are cut for the grid, with their blocks."""
    indices = {"vector": "width", "parallel": "block"}
    return {
        index: parameters[size]
        for name, size in indices.items()
        if (index := parameters[name]) in einsum.output
    }


def order_summed_indices(einsum: BatchedEinsum, vector: str) -> Names:
    """Order the summed indices: the vector index last, the next contiguous before."""
    return tuple(
        sorted(
            einsum.summation_indices,
            key=lambda index: (index == vector, -count_strided_entries(einsum, index)),
        )
    )


def find_jammed_index(einsum: BatchedEinsum, vector: str) -> str:
    """Return the output index whose jamming into a sum along ``vector`` saves most.

    It is empty if there is none, or if the vector index is free.

    >>> from feinsum import array, einsum
    >>> A, B = array("A", (30, 40, 50)), array("B", (40, 50))
    >>> find_jammed_index(einsum("xij,ij->xi", A, B), "j")
    'x'
    """
    if vector not in einsum.summation_indices:
        return NO_INDEX

    def count_shared(index: str) -> int:
        # operands without the index are loaded once for all rows of a tile
        shared = (t for t in einsum.inputs if vector in t and index not in t)
        return sum(count_points(einsum, term) for term in shared)

    return max(
        einsum.output,
        key=lambda i: (count_shared(i), get_typical_extent(einsum.extents[i])),
        default=NO_INDEX,
    )


def count_strided_entries(einsum: BatchedEinsum, index: str) -> int:
    """Count entries whose neighbours along ``index`` are not neighbours in memory."""
    return sum(
        count_points(einsum, term) for term in list_terms(einsum) if index in term[:-1]
    )


def list_terms(einsum: BatchedEinsum) -> list[IndexList]:
    """Return the distinct indices of every array that is read or written."""
    return [tuple(dict.fromkeys(t)) for t in (*einsum.inputs, einsum.output)]


class StreamedNest:
    """Writes the loops of each row: zero, sum and store, one after the other.

    Terms and rows after the last full step have separate loops.

    Attributes:
        vector: the index of the innermost loop; empty if there are no indices.
        summed: the summation indices, outermost first; the vector index, if it is
            one of them, is the last.
        jammed: the output index with ``step`` values in a tile, if the vector index is
            summed; empty for none.
        step: entries of the last summed index that one iteration adds, or values of
            the jammed index in a tile.
    """

    def __init__(
        self, schedule: Schedule, einsum: BatchedEinsum, parameters: Parameters
    ) -> None:
        self.schedule, self.writer = schedule, NestWriter(schedule)
        self.vector, self.step = parameters["vector"], int(parameters["step"])
        self.summed = order_summed_indices(einsum, self.vector)
        self.jammed = find_jammed_index(einsum, self.vector)
        self.sizes = {
            i: self._limit_to_extent(i, size)
            for i, size in list_cuts(einsum, parameters).items()
        }
        cut = [i for i, size in self.sizes.items() if size != schedule.extents[i]]
        self.tiles = {i: self.writer.blocks(i, self.sizes[i]) for i in cut}
        # an index that is not cut has one tile, and needs no axis of the grid
        for axis, tile in enumerate(self.tiles.values()):
            self.writer.tag(tile.loop, f"g.{axis}")
        is_free = self.vector in schedule.output
        self.private: Names = (self.vector,) if is_free else ()
        inner = (*self.private, self.jammed)
        outer = [index for index in schedule.output if index not in inner]
        self.around = self._with_inner_loops({}, outer)

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        n_rows = len(self.schedule.rows)
        is_summed = self.vector in self.summed
        # rows of a batch share the loops over tiles, and have their own loops inside
        ranges_of_tiles = self._list_row_tiles() if is_summed else []
        for row in range(n_rows):
            # the statements of a row of a batch follow all those of the previous row
            for ranges in ranges_of_tiles:
                self._sum_along(row, ranges, is_last=ranges is ranges_of_tiles[-1])
            if self.summed and not is_summed:
                self._sum_beside(row)
            elif not self.summed:
                ranges = self._with_inner_loops(self.around, self.private)
                value = self.schedule.multiply_row(row, _get_points(ranges))
                self._store(row, value, ranges)
        return self.writer.build()

    def _sum_beside(self, row: int) -> None:
        """Write a tile of sums, one for each value of the vector index."""
        dtype = self.schedule.get_row_dtype(row)
        shape = [self.sizes[index] for index in self.private] or [1]
        tile = self.writer.array(f"row_{row}_tile", shape, dtype)
        zero = self._with_inner_loops(self.around, self.private)
        entry = self._make_entry(tile, zero)
        after = [self._assign(f"{tile}_zero", entry, dtype.type(0), zero)]
        for step in self._list_steps():
            ranges = self._with_inner_loops(step, self.private)
            entry = self._make_entry(tile, ranges)
            value = p.Sum((entry, self._sum_terms(row, ranges)))
            after.append(self._assign(f"{tile}_add", entry, value, ranges, after))
        last = self._with_inner_loops(self.around, self.private)
        self._store(row, self._make_entry(tile, last), last, after)

    def _list_row_tiles(self) -> list[Ranges]:
        """Return the loops around sums along the vector index: full tiles, then rows.

        If the grid splits the jammed index, too, tiles divide its blocks.
        """
        jammed = self.jammed
        if jammed == NO_INDEX:
            return [self.around]
        cut = self.writer.cut(jammed, self.step, self.tiles.get(jammed), stem="rows")
        return [{**self.around, jammed: rows} for rows in cut if rows is not None]

    def _sum_along(self, row: int, around: Ranges, *, is_last: bool) -> None:
        """Write the sums of a tile of rows along the vector index."""
        dtype, jammed = self.schedule.get_row_dtype(row), self.jammed
        size = around[jammed].size if jammed else 1
        tile = self.writer.array(f"row_{row}_tile", (size,), dtype)

        def unroll_rows(ranges: Ranges) -> tuple[Expression, Ranges]:
            if size == 1:
                return var(tile)[(0,)], ranges
            row_of_tile = self.writer.loop("row", size=size, tag="unr")
            rows = ranges[jammed]
            rows = replace(rows, point=rows.point + var(row_of_tile))
            unrolled = LoopRange((row_of_tile,), var(row_of_tile))
            entry = var(tile)[(var(row_of_tile),)]
            return entry, {**ranges, jammed: rows, NO_INDEX: unrolled}

        entry, ranges = unroll_rows(around)
        zero = self._assign(f"{tile}_zero", entry, dtype.type(0), ranges)
        inside = self._with_inner_loops(around, self.summed)
        entry, ranges = unroll_rows(inside)
        added = p.Sum((entry, self.schedule.multiply_row(row, _get_points(ranges))))
        add = self._assign(f"{tile}_add", entry, added, ranges, [zero])
        entry, ranges = unroll_rows(around)
        self._store(row, entry, ranges, [zero, add], is_last=is_last)

    def _list_steps(self) -> Iterator[Ranges]:
        """Yield the loops over all summed indices: full steps, then the remainder."""
        *outer_summed, last = self.summed
        outer = self._with_inner_loops(self.around, outer_summed)
        size = self._limit_to_extent(last, self.step)
        step_ranges: tuple[LoopRange | None, ...] = (self.writer.entries(last),)
        if size > 1:
            step_ranges = self.writer.cut(last, size)
        yield from (
            {**outer, last: step_range}
            for step_range in step_ranges
            if step_range is not None
        )

    def _sum_terms(self, row: int, ranges: Ranges) -> Expression:
        """Return the products that an iteration adds."""
        last, points = self.summed[-1], _get_points(ranges)
        first = points[last]
        return _sum_in_pairs(
            [
                self.schedule.multiply_row(row, {**points, last: first + k})
                for k in range(ranges[last].size)
            ]
        )

    def _limit_to_extent(self, index: str, size: int) -> int:
        """Return ``size``, or the extent if that is known and smaller."""
        extent = self.schedule.extents[index]
        return max(1, min(size, extent)) if isinstance(extent, int) else size

    def _with_inner_loops(self, outer: Ranges, indices: Sequence[str]) -> Ranges:
        """Add inner loops over all values of indices, or over those of their tiles."""
        entries = {i: self.writer.entries(i, self.tiles.get(i)) for i in indices}
        return {**outer, **entries}

    def _make_entry(self, tile: str, ranges: Ranges) -> Expression:
        """Subscript a tile by the loops over its entries."""
        inner = tuple(var(ranges[index].loop) for index in self.private)
        return var(tile)[inner or (0,)]

    def _list_loops(self, ranges: Ranges) -> Names:
        grid = tuple(tile.loop for tile in self.tiles.values())
        return (
            *grid,
            *(iname for loop_range in ranges.values() for iname in loop_range.loops),
        )

    def _assign(
        self,
        stem: str,
        assignee: Expression,
        value: Expression,
        ranges: Ranges,
        after: Sequence[str] = (),
    ) -> str:
        return self.writer.assign(
            stem, assignee, value, self._list_loops(ranges), after
        )

    def _store(
        self,
        row: int,
        value: Expression,
        ranges: Ranges,
        after: Sequence[str] = (),
        *,
        is_last: bool = True,
    ) -> None:
        loops = self._list_loops(ranges)
        self.writer.store(
            row, value, _get_points(ranges), loops, after, is_last=is_last
        )


def _get_points(ranges: Ranges) -> dict[str, Expression]:
    return {index: loops.point for index, loops in ranges.items() if index != NO_INDEX}


def _sum_in_pairs(terms: Sequence[Expression]) -> Expression:
    """Sum terms in a balanced tree, in which most additions do not wait for others."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return p.Sum((_sum_in_pairs(terms[:half]), _sum_in_pairs(terms[half:])))
