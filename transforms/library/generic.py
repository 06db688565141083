"""Every einsum: plain loops in a good order, over blocks of the output.

The innermost loop runs along the index that is contiguous in most of the data, and the
OpenCL or C compiler vectorizes it. So the family fits any dtype and any extent.
For ``ij->j``, one work-group reads a panel of A from top to bottom and keeps its sums
in a private tile::

      j_tile = 0        1
          +--------+--------+--
    i = 0 |------->|        |          the kernel adds ``step`` rows to the tile at a
        1 |------->|        |          time: it then loads and stores each entry of
          |------->|        |          the tile once for ``step`` terms
    N - 1 |------->|        |
          +--------+--------+--
    tile  [ width  ]                   in the first level of a cache
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
from feinsum.transforms.primitives.compiler_hints import SUMS, VECTORS
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

    Rewrite, for ``ij->j`` with the vector index j::

        for j:  out[j] = sum(i, A[i,j])

        for j_tile in parallel:
            for j' < width:  tile[j'] = 0
            for i_step:                           # step entries of i each
                for j' < width:  tile[j'] += A[step*i_step, j] + ...
            for j' < width:  out[width*j_tile + j'] = tile[j']

    Rewrite, for ``ij->i`` with the vector index j::

        for i:  out[i] = sum(j, A[i,j])

        for i_tile in parallel:
            for i' < block:
                for j_step:                       # step independent sums
                    for lane < step:  tile[lane] += A[i, step*j_step + lane]
                out[block*i_tile + i'] = sum of the tile

    Parameters:
        vector: the index of the innermost loop, free or summed; empty for none.
        width: values of a free vector index per work-group.
        parallel: another output index that is distributed; empty for none.
        block: its values per work-group.
        step: entries of the innermost summed index added per iteration.
        vectors: vectors that the compiler makes of the loops, ``usual`` or ``widest``.
    """
    schedule = begin(t_unit, nest)
    vector, parallel = get_text(parameters, "vector"), get_text(parameters, "parallel")
    cuts = {}
    if vector in nest.einsum.output:
        cuts[vector] = get_number(parameters, "width")
    if parallel != NO_INDEX:
        cuts[parallel] = get_number(parameters, "block")
    summed = order_summed_indices(nest.einsum, vector)
    step = get_number(parameters, "step")
    streams = Streams(vector or None, summed, step, cuts)
    written = StreamedNest(schedule, streams).written()
    hint = get_text({"vectors": VECTORS[0], **parameters}, "vectors")
    return with_hints(written, sums=SUMS[0], vectors=hint).t_unit


def order_summed_indices(einsum: BatchedEinsum, vector: str) -> Names:
    """Order the summed indices: the vector index last, the next contiguous before."""
    return tuple(
        sorted(
            einsum.summation_indices,
            key=lambda index: (index == vector, -_count_strided_entries(einsum, index)),
        )
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
        vector: the index of the innermost loop; none if there are no indices.
        summed: the summation indices, outermost first; the vector index, if it is
            one of them, is the last.
        step: entries of the last summed index that one iteration adds.
        cuts: output indices that are cut for the grid, with the length of a block.
    """

    vector: str | None
    summed: Names
    step: int
    cuts: Mapping[str, int]


Ranges: TypeAlias = Mapping[str, LoopRange]
"""The range of each index in the loops of a statement, outermost first."""


class StreamedNest:
    """Writes the loops of each row: zero, sum and store, one after the other.

    The terms after the last full step are added in separate loops. Partial sums along a
    summed vector index are added up in pairs at the end::

        out[i] = total + ((tile[0] + tile[1]) + (tile[2] + tile[3]))
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
        self.private: Names = (streams.vector,) if streams.vector and is_free else ()
        outer = [index for index in schedule.output if index not in self.private]
        self.around = self._with_inner_loops({}, outer)

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        for row in range(len(self.schedule.rows)):
            # the statements of a row of a batch follow all those of the previous row
            if self.streams.vector in self.streams.summed:
                self._sum_along(row)
            elif self.streams.summed:
                self._sum_beside(row)
            else:
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

    def _sum_along(self, row: int) -> None:
        """Write partial sums along the vector index, and add them up at the end."""
        dtype, vector = self.schedule.get_row_dtype(row), self.streams.summed[-1]
        # no more partial sums than the loop has iterations
        width = self._limit_to_extent(vector, self.streams.step)
        tile = var(self.writer.array(f"row_{row}_tile", (width,), dtype))
        total = var(self.writer.array(f"row_{row}_total", (1,), dtype))[(0,)]
        stem, zero = f"row_{row}", dtype.type(0)
        lane = self._make_lane_loop(width)
        start = [
            self._assign(
                f"{stem}_zero", tile[lane.point], zero, {**self.around, vector: lane}
            ),
            self._assign(f"{stem}_zero", total, zero, self.around),
        ]
        updates = []
        for ranges in self._list_steps():
            step, entry = ranges[vector], total
            if step.size > 1:
                lane = self._make_lane_loop(step.size)
                step = LoopRange((*step.loops, *lane.loops), step.point + lane.point)
                entry = tile[lane.point]
            ranges = {**ranges, vector: step}
            value = p.Sum((entry, self._make_product(row, _get_points(ranges))))
            updates.append(self._assign(f"{stem}_add", entry, value, ranges, start))
        value = p.Sum((total, _sum_in_pairs([tile[(k,)] for k in range(width)])))
        after = [*start, *updates]
        after.append(self._assign(f"{stem}_end", total, value, self.around, after))
        self._store(row, total, self.around, after)

    def _make_lane_loop(self, size: int) -> LoopRange:
        iname = self.writer.loop("lane", size=size, tag="unr")
        return LoopRange((iname,), var(iname))

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
        self, row: int, value: Expression, ranges: Ranges, after: Sequence[str] = ()
    ) -> None:
        self.writer.store(
            row, value, _get_points(ranges), self._list_loops(ranges), after
        )


def _get_points(ranges: Ranges) -> dict[str, Expression]:
    return {index: loop_range.point for index, loop_range in ranges.items()}


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
        "step": (8, 1, 32) if einsum.summation_indices else (1,),
    }
    find_problem = partial(_find_problem, einsum)
    return Space(table, find_problem, is_searched=not suits_packing(einsum))


def _make_space_with_hint(workload: Workload) -> Space:
    space = _make_space(workload)
    return replace(space, table={**space, "vectors": VECTORS})


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
    fitting = [n for n in (1024, 256, 2048) if n * sum(sizes) <= cpu.SUMS_BYTES]
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
    vector, parallel = parameters["vector"], parameters["parallel"]
    if vector == parallel != NO_INDEX:
        return f"the index {vector!r} is the innermost loop already"
    if vector not in einsum.output and parameters["width"] != _list_widths(einsum)[0]:
        return "a summed vector index has no width"
    if parallel == NO_INDEX and parameters["block"] != _list_blocks(einsum)[0]:
        return "nothing is cut in blocks"
    return None


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds from the innermost loop and the number of blocks."""
    vector, parallel = get_text(parameters, "vector"), get_text(parameters, "parallel")
    most_bytes = 64 if parameters.get("vectors") == VECTORS[1] else 32
    step = get_number(parameters, "step")
    cycles = count_vector_cycles(
        einsum, vector, machine, most_bytes=most_bytes, step=step
    )
    n_groups = 1.0
    for index, size in ((parallel, "block"), (vector, "width")):
        if index in einsum.output:
            n_groups *= max(
                1.0, count_points(einsum, (index,)) / get_number(parameters, size)
            )
    loops = _list_loops(einsum, vector, get_number(parameters, "width"))
    seconds = predict_streaming_s(
        einsum, cycles, machine, n_groups=n_groups, loops=loops
    )
    # only tiles over a free vector index read memory in short runs
    if not einsum.summation_indices or vector not in einsum.output:
        return seconds
    return seconds + predict_restart_s(
        einsum,
        vector,
        order_summed_indices(einsum, vector)[-1],
        machine,
        n_rows=step,
        width=get_number(parameters, "width"),
        in_registers=False,
    )


def _list_loops(
    einsum: BatchedEinsum, vector: str, width: int
) -> list[tuple[str, int]]:
    """Return the loops with their extents, outermost first."""
    order = (i for i in einsum.output if i != vector)
    loops = [
        (i, count_points(einsum, (i,)))
        for i in (*order, *order_summed_indices(einsum, vector))
    ]
    if vector not in einsum.output:
        return loops
    extent = count_points(einsum, (vector,))
    width = min(width, extent)
    return [(vector, -(-extent // width)), *loops, (vector, width)]


GENERIC = register(
    Transform(
        "generic",
        1,
        "any einsum: unit strides innermost, blocks of the output over the grid",
        _make_space,
        apply_generic,
    )
)
GENERIC_ON_CPUS = register(
    replace(
        GENERIC,
        version=2,
        summary="generic@1, with a hint to the compiler of a CPU",
        space=_make_space_with_hint,
        devices=frozenset({"cpu"}),
        cost=_predict_s,
    )
)
