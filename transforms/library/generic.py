"""Every einsum: plain loops in a good order, over blocks of the output.

The innermost loop runs along an index that is contiguous in most of the data, and the
OpenCL or C compiler vectorizes it. So the family fits any dtype and any extent. A free
index has a tile of sums: for ``ij->j``, a work-group reads a panel of A from top to
bottom and keeps the sums of its columns in the first level of a cache::

      j_tile = 0        1
          +--------+--------+--
    i = 0 |------->|        |          the kernel adds ``step`` rows to the tile at a
        1 |------->|        |          time: it then loads and stores each entry of
          |------->|        |          the tile once for ``step`` terms
    N - 1 |------->|        |
          +--------+--------+--
    tile  [ width  ]

Along a summed index, several results are summed at a time: for ``ij,j->i``, a vector of
sums for each of ``step`` rows stays in a register, and x is loaded once for all::

                 j ---->
    i, row 0   [A A A A|A A A A| ...  * x  ->  tile[0]
       row 1   [A A A A|A A A A| ...  * x  ->  tile[1]
       row 2   [A A A A|A A A A| ...  * x  ->  tile[2]
                 ^ the same x[j:j+4] for all rows

Each addition to a sum waits for the previous one; additions to three sums overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import count_points
from feinsum.transforms.library.packed.packed_contraction import suits_packing
from feinsum.transforms.library.streaming_cost import (
    count_sum_cycles,
    count_vector_cycles,
    predict_restart_s,
    predict_streaming_s,
)
from feinsum.transforms.primitives import (
    LoopRange,
    NestWriter,
    Schedule,
    begin,
    with_hints,
)
from feinsum.transforms.primitives.compiler_hints import (
    SUMS,
    VECTORS,
    list_sums,
    with_rows_apart,
)
from feinsum.transforms.primitives.schedule import Expression, Names, multiply_rules
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import (
    count_index_tuples,
    get_number,
    get_text,
    get_typical_extent,
)

NO_INDEX = ""
"""The value of a parameter for which there is no index."""


def apply_generic(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Stream through all arrays, blocks of the output in parallel.

    Rewrite, for ``ij->j`` with the free vector index j::

        for j:  out[j] = sum(i, A[i,j])

        for j_tile in parallel:
            for j' < width:  tile[j'] = 0
            for i_step:                           # step entries of i each
                for j' < width:  tile[j'] += A[step*i_step, j] + ...
            for j' < width:  out[width*j_tile + j'] = tile[j']

    Rewrite, for ``ij,j->i`` with the summed vector index j::

        for i:  out[i] = sum(j, A[i,j]*x[j])

        for i_block in parallel, i_rows:
            tile[0], ..., tile[step - 1] = 0
            for j:
                for row < step unrolled:  tile[row] += A[i + row, j]*x[j]
            for row < step unrolled:  out[i + row] = tile[row]
        for i after the last full tile:  out[i] = sum(j, A[i,j]*x[j])

    The compiler splits these sums into lanes, as far as their order is free.

    Parameters:
        vector: the index of the innermost loop, free or summed; empty for none.
        width: values of a free vector index per work-group.
        parallel: another output index that is distributed; empty for none.
        block: its values per work-group.
        step: entries of the innermost summed index added per iteration, or results that
            are summed together along a summed vector index.
        vectors: vectors that the compiler makes of the loops, ``usual`` or ``widest``.

    Source: Callahan, Carr and Kennedy 1990 (unroll-and-jam, for register reuse).
    """
    vector, einsum = get_text(parameters, "vector"), nest.einsum
    streams = Streams(
        vector,
        order_summed_indices(einsum, vector),
        find_jammed_index(einsum, vector),
        get_number(parameters, "step"),
        _list_cuts(einsum, parameters),
    )
    written = StreamedNest(begin(t_unit, nest), streams).written()
    sums = SUMS[0]
    if vector in einsum.summation_indices:
        sums, written = list_sums(einsum)[-1], with_rows_apart(written)
    vectors = get_text(parameters, "vectors")
    return with_hints(written, sums=sums, vectors=vectors).t_unit


def _list_cuts(einsum: BatchedEinsum, parameters: Parameters) -> dict[str, int]:
    """Return the output indices that are cut for the grid, with their blocks."""
    indices = {"vector": "width", "parallel": "block"}
    return {
        index: get_number(parameters, size)
        for name, size in indices.items()
        if (index := get_text(parameters, name)) in einsum.output
    }


def order_summed_indices(einsum: BatchedEinsum, vector: str) -> Names:
    """Order the summed indices: the vector index last, the next contiguous before."""
    return tuple(
        sorted(
            einsum.summation_indices,
            key=lambda index: (index == vector, -_count_strided_entries(einsum, index)),
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
        return sum(count_index_tuples(einsum, term) for term in shared)

    return max(
        einsum.output,
        key=lambda i: (count_shared(i), get_typical_extent(einsum.extents[i])),
        default=NO_INDEX,
    )


def _count_strided_entries(einsum: BatchedEinsum, index: str) -> int:
    """Count entries whose neighbours along ``index`` are not neighbours in memory."""
    return sum(
        count_index_tuples(einsum, term)
        for term in _list_terms(einsum)
        if index in term[:-1]
    )


def _list_terms(einsum: BatchedEinsum) -> list[IndexList]:
    """Return the distinct indices of every array that is read or written."""
    return [tuple(dict.fromkeys(t)) for t in (*einsum.inputs, einsum.output)]


@dataclass(frozen=True)
class Streams:
    """The role of each index in a :class:`StreamedNest`.

    Attributes:
        vector: the index of the innermost loop; empty if there are no indices.
        summed: the summation indices, outermost first; the vector index, if it is
            one of them, is the last.
        jammed: the output index with ``step`` values in a tile, if the vector index is
            summed; empty for none.
        step: entries of the last summed index that one iteration adds, or values of
            the jammed index in a tile.
        cuts: output indices that are cut for the grid, with the length of a block.
    """

    vector: str
    summed: Names
    jammed: str
    step: int
    cuts: Mapping[str, int]


Ranges: TypeAlias = Mapping[str, LoopRange]
"""The range of each index in the loops of a statement, outermost first."""


class StreamedNest:
    """Writes the loops of each row: zero, sum and store, one after the other.

    Terms and rows after the last full step have separate loops.
    """

    def __init__(self, schedule: Schedule, streams: Streams) -> None:
        self.schedule, self.streams = schedule, streams
        self.writer = NestWriter(schedule)
        self.sizes = {
            i: self._limit_to_extent(i, size) for i, size in streams.cuts.items()
        }
        cut = [i for i, size in self.sizes.items() if size != schedule.extents[i]]
        self.tiles = {i: self.writer.blocks(i, self.sizes[i]) for i in cut}
        # an index that is not cut has one tile, and needs no axis of the grid
        for axis, tile in enumerate(self.tiles.values()):
            self.writer.tag(tile.loop, f"g.{axis}")
        is_free = streams.vector in schedule.output
        self.private: Names = (streams.vector,) if is_free else ()
        inner = (*self.private, streams.jammed)
        outer = [index for index in schedule.output if index not in inner]
        self.around = self._with_inner_loops({}, outer)

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        n_rows, streams = len(self.schedule.rows), self.streams
        is_summed = streams.vector in streams.summed
        # rows of a batch share the loops over tiles, and have their own loops inside
        ranges_of_tiles = self._list_row_tiles() if is_summed else []
        for row in range(n_rows):
            # the statements of a row of a batch follow all those of the previous row
            for ranges in ranges_of_tiles:
                self._sum_along(row, ranges, is_last=ranges is ranges_of_tiles[-1])
            if streams.summed and not is_summed:
                self._sum_beside(row)
            elif not streams.summed:
                ranges = self._with_inner_loops(self.around, self.private)
                self._store(row, self._make_product(row, _get_points(ranges)), ranges)
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
        jammed = self.streams.jammed
        if jammed == NO_INDEX:
            return [self.around]
        cut = self.writer.cut(
            jammed, self.streams.step, self.tiles.get(jammed), stem="rows"
        )
        return [{**self.around, jammed: rows} for rows in cut if rows is not None]

    def _sum_along(self, row: int, around: Ranges, *, is_last: bool) -> None:
        """Write the sums of a tile of rows along the vector index."""
        dtype, jammed = self.schedule.get_row_dtype(row), self.streams.jammed
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
        inside = self._with_inner_loops(around, self.streams.summed)
        entry, ranges = unroll_rows(inside)
        added = p.Sum((entry, self._make_product(row, _get_points(ranges))))
        add = self._assign(f"{tile}_add", entry, added, ranges, [zero])
        entry, ranges = unroll_rows(around)
        self._store(row, entry, ranges, [zero, add], is_last=is_last)

    def _list_steps(self) -> Iterator[Ranges]:
        """Yield the loops over all summed indices: full steps, then the remainder."""
        *outer_summed, last = self.streams.summed
        outer = self._with_inner_loops(self.around, outer_summed)
        size = self._limit_to_extent(last, self.streams.step)
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
        last, points = self.streams.summed[-1], _get_points(ranges)
        first = points[last]
        return _sum_in_pairs(
            [
                self._make_product(row, {**points, last: first + k})
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

    def _make_product(self, row: int, points: Mapping[str, Expression]) -> Expression:
        return multiply_rules(self.schedule, self.schedule.rows[row], points)

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


def _make_space(workload: Workload) -> Space:
    """Fit every einsum; indices that are contiguous in most of the data come first."""
    einsum = workload.einsum
    vectors = sorted(
        einsum.indices, key=lambda index: _rank_vector_index(einsum, index)
    )
    first = vectors[0] if vectors else NO_INDEX
    # the longest other output index gives the most work-groups
    parallel = [i for i in einsum.output if i != first] or list(einsum.output[:1])
    parallel.sort(key=lambda index: -get_typical_extent(einsum.extents[index]))
    if einsum.output in ((), (first,)):
        parallel = [NO_INDEX]
    table: Table = {
        "vector": tuple(vectors[:3]) or (NO_INDEX,),
        "width": _list_widths(einsum),
        "parallel": tuple(parallel[:2]),
        "block": _list_blocks(einsum),
        "step": (8, 1, 32, 4, 2) if einsum.summation_indices else (1,),
        "vectors": VECTORS,
    }
    find_problem = partial(_find_problem, einsum)
    return Space(table, find_problem, is_searched=not suits_packing(einsum))


def _rank_vector_index(einsum: BatchedEinsum, index: str) -> tuple[float, bool]:
    """Count array entries, weighted if they are strided or the loop is short."""
    n_entries = sum(count_index_tuples(einsum, term) for term in _list_terms(einsum))
    n_counted = n_entries + (cpu.STRIDED_WEIGHT - 1) * _count_strided_entries(
        einsum, index
    )
    # a short innermost loop is mostly overhead
    shortness = max(
        1.0, cpu.MIN_LENGTH / max(get_typical_extent(einsum.extents[index]), 1)
    )
    return shortness * n_counted, index not in einsum.output


def _list_widths(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return the widths of blocks: long ones without a sum, which needs no tile."""
    if not einsum.summation_indices:
        return (4096, 512, 32768)
    sizes = [dtype.itemsize for dtype in einsum.output_dtypes]
    fitting = [n for n in (1024, 256, 2048) if n * sum(sizes) <= cpu.PANEL_BYTES]
    return tuple(fitting) or (64,)


def _list_blocks(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return numbers of rows: enough work for a group, then 4 times more and less."""
    n_points = count_index_tuples(einsum, einsum.indices)
    longest = max(
        (get_typical_extent(einsum.extents[i]) for i in einsum.output), default=1
    )
    block = max(1, cpu.GROUP_POINTS * longest // max(n_points, 1))
    block = min(1 << (block.bit_length() - 1), 4096)
    return tuple(dict.fromkeys((block, 4 * block, max(1, block // 4))))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    vector, parallel = get_text(parameters, "vector"), parameters["parallel"]
    step, block = get_number(parameters, "step"), get_number(parameters, "block")
    if vector == parallel != NO_INDEX:
        return f"the index {vector!r} is the innermost loop already"
    if vector not in einsum.output and parameters["width"] != _list_widths(einsum)[0]:
        return "a summed vector index has no width"
    if parallel == NO_INDEX and block != _list_blocks(einsum)[0]:
        return "nothing is cut in blocks"
    if vector not in einsum.summation_indices:
        return None if step in (1, 8, 32) else f"{step} terms are no better than 8"
    jammed = find_jammed_index(einsum, vector)
    extent = einsum.extents[jammed] if jammed else 1
    if step > min(get_typical_extent(extent), cpu.MOST_STREAMS) > 0:
        return f"there are no {step} rows to be summed together"
    # a block of the grid consists of whole tiles, but for the last one
    if parallel == jammed != NO_INDEX and block % step:
        return f"{step} rows do not divide a block of {block}"
    return None


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds from the innermost loop and the number of blocks."""
    vector, step = get_text(parameters, "vector"), get_number(parameters, "step")
    jammed, width = find_jammed_index(einsum, vector), get_number(parameters, "width")
    most_bytes = 64 if parameters["vectors"] == VECTORS[1] else 32
    is_summed = vector in einsum.summation_indices
    if is_summed:
        cycles = count_sum_cycles(
            einsum, vector, machine, most_bytes=most_bytes, jammed=jammed, rows=step
        )
    else:
        cycles = count_vector_cycles(
            einsum, vector, machine, most_bytes=most_bytes, step=step
        )
    n_groups = 1.0
    for index, size in _list_cuts(einsum, parameters).items():
        n_groups *= max(1.0, count_points(einsum, (index,)) / size)
    loops = _list_loops(einsum, vector, jammed, step if is_summed else width)
    seconds = predict_streaming_s(
        einsum, cycles, machine, n_groups=n_groups, loops=loops
    )
    if is_summed:
        return seconds + predict_restart_s(einsum, vector, jammed, machine, n_rows=step)
    # only tiles over a free vector index read memory in short runs
    if not einsum.summation_indices:
        return seconds
    return seconds + predict_restart_s(
        einsum,
        vector,
        order_summed_indices(einsum, vector)[-1],
        machine,
        n_rows=step,
        width=width,
    )


def _list_loops(
    einsum: BatchedEinsum, vector: str, jammed: str, size: int
) -> list[tuple[str, int]]:
    """Return the loops with their extents, outermost first.

    Args:
        einsum: the einsum, with known extents.
        vector: index of the innermost loop.
        jammed: index of the rows of a tile; empty for none.
        size: rows of a tile, or entries of a tile along a free vector index.
    """
    inner = jammed or (vector if vector in einsum.output else NO_INDEX)
    order = (i for i in einsum.output if i != inner)
    summed = order_summed_indices(einsum, vector)
    outer, sums = (
        [(i, count_points(einsum, (i,))) for i in indices]
        for indices in (order, summed)
    )
    if inner == NO_INDEX:
        return [*outer, *sums]
    extent = count_points(einsum, (inner,))
    size = min(size, extent)
    tiles = (inner, -(-extent // size))
    # tiles of a free vector index are distributed; those of rows are inner loops
    around = [*outer, tiles] if jammed else [tiles, *outer]
    return [*around, *sums, (inner, size)]


GENERIC = register(
    Transform(
        "generic",
        3,
        "any einsum: unit strides innermost, blocks of the output over the grid",
        _make_space,
        apply_generic,
        _predict_s,
    )
)
