"""Transposes by squares of vectors, which are transposed in registers.

For ``ij->ji`` and four lanes, a square of A is loaded by four vectors along j, and
stored by four vectors along i::

         j: 0  1  2  3              i: 0  1  2  3
    i: 0   a0 a1 a2 a3         j: 0   a0 b0 c0 d0
       1   b0 b1 b2 b3   -->      1   a1 b1 c1 d1
       2   c0 c1 c2 c3            2   a2 b2 c2 d2
       3   d0 d1 d2 d3            3   a3 b3 c3 d3

A tile is ``height`` entries of i, at least a cache line of the output, times ``width``
of j. Its squares are visited along i first, so that each line of the output is complete
before it leaves the caches. Strips narrower than a square are copied entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import log2

import loopy as lp
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import count_distinct_bytes, estimate_region_s
from feinsum.transforms.primitives import LoopRange, NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression
from feinsum.transforms.primitives.vector_store import is_contiguous
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import count_points, get_typical_extent, has_real_dtype


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Read vectors along one index, transpose squares, store vectors along another.

    Rewrite, for ``ij->ji``::

        for j, i:  out[j,i] = A[i,j]

        for i_tile, j_tile in parallel:
            for j_square, i_square:
                for k, lane < lanes unrolled:  square[k,lane] = A[i + k, j + lane]
                for lane < lanes unrolled:
                    vector[:] = square[:,lane]
                    out[j + lane, i:i + lanes] = vector[:]
            for i, j outside the squares:  out[j,i] = A[i,j]

    A tile is high enough to fill lines of the output, and wide, so that it reads few
    streams, each for long.

    Parameters:
        vector: the output index that is the last of an operand.
        lanes: entries of a vector.
        width: entries of a tile along that index.
        height: entries of a tile along the last output index.
        stores: ``cached``, or ``streamed`` past the caches where vectors are aligned.
    """
    return _TurnedNest(begin(t_unit, nest), parameters).written().t_unit


class _TurnedNest:
    """Writes the loops of :func:`apply`."""

    def __init__(self, schedule: Schedule, parameters: Parameters) -> None:
        self.schedule, self.lanes = schedule, int(parameters["lanes"])
        self.across, self.vector = schedule.output[-1], parameters["vector"]
        self.is_streamed = parameters["stores"] == "streamed"
        self.writer = NestWriter(schedule)
        sizes = {self.across: parameters["height"], self.vector: parameters["width"]}
        self.grid = {i: self.writer.blocks(i, size) for i, size in sizes.items()}
        other_indices = [index for index in schedule.output if index not in sizes]
        self.other_ranges = {i: self.writer.entries(i) for i in other_indices}
        # a grid has three axes: those of the tiles, and the longest other loop
        longest = sorted(
            other_indices,
            key=lambda index: -get_typical_extent(schedule.extents[index]),
        )
        loop_ranges = [
            *self.grid.values(),
            *(self.other_ranges[index] for index in longest),
        ]
        for axis, loop_range in enumerate(loop_ranges[:3]):
            self.writer.tag(loop_range.loop, f"g.{axis}")
        around = (*self.other_ranges.values(), *self.grid.values())
        self.around = tuple(loop_range.loop for loop_range in around)

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        across, vector = self.across, self.vector
        for row in range(len(self.schedule.rows)):
            # The strips come before the squares: the last store keeps the row's id, and
            # a tile may have no strips, but always has squares.
            rows, strip = self._cut(across)
            if strip is not None:
                whole_tile = self.writer.entries(vector, self.grid[vector])
                self._copy(row, strip, whole_tile)
            columns, strip = self._cut(vector)
            if strip is not None:
                # new loops: those of the squares below are nested in other loops
                squares, _ = self._cut(across)
                entry = self.writer.loop(across, size=self.lanes)
                point = squares.point + var(entry)
                self._copy(row, LoopRange((*squares.loops, entry), point), strip)
            self._transpose(row, rows, columns)
        return self.writer.build()

    def _cut(self, index: str) -> tuple[LoopRange, LoopRange | None]:
        """Cut a tile along an index into full squares and the entries after them."""
        block, lanes = self.grid[index], self.lanes
        squares, strip = self.writer.cut(index, lanes, block, stem="square")
        if squares is None:
            raise TransformError(f"index {index!r} is too short for vectors")
        return squares, strip

    def _transpose(self, row: int, across: LoopRange, along: LoopRange) -> None:
        """Read squares, transpose them, and store them."""
        writer, lanes = self.writer, self.lanes
        dtype, stem = self.schedule.get_row_dtype(row), f"row_{row}"
        square = writer.array(f"{stem}_square", (lanes, lanes), dtype, has_lanes=True)
        order = [*self.around, *along.loops, *across.loops]
        k, lane = (writer.loop(i, size=lanes, tag="unr") for i in ("k", "lane"))
        points = self._get_points(across.point + var(k), along.point + var(lane))
        read = writer.assign(
            square,
            var(square)[(var(k), var(lane))],
            self.schedule.multiply_row(row, points),
            [*order, k, lane],
        )
        # The square is filled by rows and read by columns: the compiler turns the
        # unrolled assignments into shuffles.
        column, row_entry = (
            writer.loop(i, size=lanes, tag="unr") for i in ("moved", "k")
        )
        points = self._get_points(
            across.point + var(row_entry), along.point + var(column)
        )
        value = var(square)[(var(row_entry), var(column))]
        # strided results cannot be stored as vectors
        if not is_contiguous(self.schedule, row, self.across):
            writer.store(row, value, points, [*order, column, row_entry], [read])
            return
        vector = writer.array(f"{stem}_vector", (lanes,), dtype, has_lanes=True)
        turn = writer.assign(
            vector,
            var(vector)[(var(row_entry),)],
            writer.scaled(row, value),
            [*order, column, row_entry],
            [read],
        )
        # a column of the square is a vector along the output
        writer.store_vector(
            row,
            var(vector),
            self._get_points(across.point, along.point + var(column)),
            [*order, column],
            [turn],
            lanes=lanes,
            is_streamed=self.is_streamed,
        )

    def _copy(self, row: int, across: LoopRange, along: LoopRange) -> None:
        """Copy the entries outside the squares, one by one."""
        points = self._get_points(across.point, along.point)
        value = self.schedule.multiply_row(row, points)
        order = [*self.around, *along.loops, *across.loops]
        self.writer.store(row, value, points, order, is_last=False)

    def _get_points(
        self, across: Expression, along: Expression
    ) -> Mapping[str, Expression]:
        points = {
            index: loop_range.point for index, loop_range in self.other_ranges.items()
        }
        return {**points, self.across: across, self.vector: along}


def find_turned_index(einsum: BatchedEinsum) -> str | None:
    """Return the last index of the largest operand that has to be transposed.

    Such an operand has the last index of the output, but not as its last one.

    >>> from feinsum import array, einsum
    >>> find_turned_index(einsum("ijk->kij", array("A", (8, 8, 8))))
    'k'
    """
    if einsum.summation_indices or not einsum.output:
        return None
    last = einsum.output[-1]
    ends = [
        term for term in einsum.inputs if term and term[-1] != last and last in term
    ]
    longest = max(ends, key=lambda term: count_points(einsum, term), default=None)
    return longest[-1] if longest else None


def space(workload: Workload) -> Space | None:
    """Fit transposes of real numbers whose both last indices are at least a vector."""
    einsum = workload.einsum
    vector = find_turned_index(einsum)
    if vector is None or not has_real_dtype(einsum):
        return None
    # vectors of AVX2; the other choice is twice as long, for AVX-512
    lanes = 32 // einsum.operands[0].dtype.itemsize
    last = einsum.output[-1]
    if min(get_typical_extent(einsum.extents[i]) for i in (vector, last)) < lanes:
        return None
    table: Table = {
        "vector": (vector,),
        "lanes": (lanes, 2 * lanes),
        "width": _limit_sizes(einsum, vector, (4096, 256, 1024, 64), 2 * lanes),
        "height": _limit_sizes(einsum, last, (2 * lanes, 64, 16, 32), 2 * lanes),
        "stores": ("streamed", "cached"),
    }
    first = {name: values[:1] for name, values in table.items()}
    # the recommended tiles, stored in both ways
    candidates = {**first, "stores": table["stores"]}
    return Space(table, partial(_find_problem, einsum), candidates)


def _limit_sizes(
    einsum: BatchedEinsum, index: str, sizes: Sequence[int], unit: int
) -> tuple[int, ...]:
    """Limit sizes of tiles to the extent of the index, rounded up to whole units."""
    extent = get_typical_extent(einsum.extents[index])
    rounded_up = -(-extent // unit) * unit
    return tuple(dict.fromkeys(min(size, rounded_up) for size in sizes))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    """Explain why tiles are not made of full squares; None if they are."""
    lanes = parameters["lanes"]
    for index in (parameters["vector"], einsum.output[-1]):
        if get_typical_extent(einsum.extents[index]) < lanes:
            return f"the index {index!r} is shorter than a vector of {lanes}"
    for name in ("width", "height"):
        if parameters[name] % lanes:
            return f"the {name} is no multiple of {lanes}, the lanes of a vector"
    return None


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel) -> float:
    """Predict the seconds of squares transposed in registers, and of single entries.

    Results that are streamed past the caches go to memory; their lines are not read.
    """
    lanes: int = parameters["lanes"]
    n_points = count_points(einsum, einsum.output)
    share_in_squares = 1.0
    for index in (parameters["vector"], einsum.output[-1]):
        extent = count_points(einsum, (index,))
        share_in_squares *= (extent - extent % lanes) / extent
    # A vector is loaded, takes part in log2(lanes) rounds of shuffles, and is stored.
    per_point = (
        share_in_squares * (2 + log2(lanes)) / lanes
        + (1 - share_in_squares) * cpu.STRIDED_CYCLES
    )
    # A store to the caches first reads the line, and writes it back later. A streamed
    # store bypasses them, but other work waits for it.
    read, written = count_distinct_bytes(einsum)
    is_streamed: bool = parameters["stores"] == "streamed"
    near_s = estimate_region_s(
        machine,
        einsum.batch_size * n_points * per_point,
        read if is_streamed else read + 2 * written,
        footprint=read + written,
    )
    return near_s + is_streamed * written / machine.bandwidth_bytes_per_s


TURNED = register(
    Transform(
        "turned",
        1,
        "transposes by squares of vectors that are turned in registers",
        space,
        apply,
        cost,
    )
)
