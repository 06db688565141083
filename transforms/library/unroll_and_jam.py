"""Sums along rows, several rows at a time.

For the matrix-vector product ``ij,j->i`` with three rows, the kernel keeps a vector of
sums for each row in a register, and loads x once for all three::

                 j ---->
    i, row 0   [A A A A|A A A A| ...  * x  ->  tile[0]
       row 1   [A A A A|A A A A| ...  * x  ->  tile[1]
       row 2   [A A A A|A A A A| ...  * x  ->  tile[2]
                 ^ the same x[j:j+4] for all rows

Each addition to a sum waits for the previous one; additions to three sums overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import count_points
from feinsum.transforms.library.generic import order_summed_indices
from feinsum.transforms.library.streaming_cost import (
    count_jammed_cycles,
    predict_out_of_order_s,
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


def apply_unroll_and_jam(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Unroll a loop over an output index, and jam the copies into the innermost sum.

    Rewrite, for ``ij,j->i`` with the jammed index i and the sum over j innermost::

        for i:  out[i] = sum(j, A[i,j]*x[j])

        for i_block in parallel, i_tile:
            tile[0], ..., tile[rows - 1] = 0
            for j:
                for row < rows unrolled:  tile[row] += A[i + row, j]*x[j]
            for row < rows unrolled:  out[i + row] = tile[row]
        for i after the last full tile:  out[i] = sum(j, A[i,j]*x[j])

    Additions of several rows do not wait for each other, memory is read in several
    streams, and data shared by rows is read once. The compiler splits the sum into
    lanes.

    Parameters:
        index: the output index that is jammed.
        rows: its values summed at a time.
        inner: the summed index of the innermost loop.
        parallel: the output index that is distributed, possibly the same.
        block: its values per work-group.
        vectors: vectors that the compiler makes of the loops, ``usual`` or ``widest``.

    Source: Callahan, Carr and Kennedy 1990 (unroll-and-jam, for register reuse).
    """
    plan = _Plan(
        get_text(parameters, "index"),
        get_number(parameters, "rows"),
        order_summed_indices(nest.einsum, get_text(parameters, "inner")),
        get_text(parameters, "parallel"),
        get_number(parameters, "block"),
    )
    written = with_rows_apart(_JammedNest(begin(t_unit, nest), plan).written())
    vectors = get_text(parameters, "vectors")
    return with_hints(written, sums=SUMS[1], vectors=vectors).t_unit


@dataclass(frozen=True)
class _Plan:
    """Parameters of :func:`apply_unroll_and_jam`, and the summed indices in order."""

    index: str
    rows: int
    summed: Names
    parallel: str
    block: int


class _JammedNest:
    """Writes the nests of each row of the einsum: full tiles, then the remainder."""

    def __init__(self, schedule: Schedule, plan: _Plan) -> None:
        self.schedule, self.plan = schedule, plan
        self.writer = NestWriter(schedule)
        self.block = self.writer.blocks(plan.parallel, plan.block, stem="block")
        self.writer.tag(self.block.loop, "g.0")

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        plan, writer = self.plan, self.writer
        other_ranges = {
            index: writer.entries(index, self.block if index == plan.parallel else None)
            for index in self.schedule.output
            if index != plan.index
        }
        # if the grid splits the same index, tiles divide its blocks
        block = self.block if plan.parallel == plan.index else None
        cut_ranges = writer.cut(plan.index, plan.rows, block, stem="rows")
        tiles = [cut_range for cut_range in cut_ranges if cut_range is not None]
        # rows of a batch share the loops over tiles, and have their own loops inside
        for row in range(len(self.schedule.rows)):
            for tile in tiles:
                self._sum(
                    row, {**other_ranges, plan.index: tile}, is_last=tile is tiles[-1]
                )
        return writer.build()

    def _sum(self, row: int, ranges: dict[str, LoopRange], *, is_last: bool) -> None:
        """Zero, add and store the sums of a tile."""
        dtype, writer = self.schedule.get_row_dtype(row), self.writer
        size = ranges[self.plan.index].size
        name = writer.array(f"row_{row}_tile", (size,), dtype)
        entry, loops, _ = self._make_sum(name, ranges)
        start = writer.assign(f"{name}_zero", entry, dtype.type(0), loops)
        sums = {index: writer.entries(index) for index in self.plan.summed}
        entry, loops, points = self._make_sum(name, ranges, sums)
        product = multiply_rules(self.schedule, self.schedule.rows[row], points)
        added = p.Sum((entry, product))
        add = writer.assign(f"{name}_add", entry, added, loops, [start])
        entry, loops, points = self._make_sum(name, ranges)
        writer.store(row, entry, points, loops, [start, add], is_last=is_last)

    def _make_sum(
        self,
        name: str,
        ranges: dict[str, LoopRange],
        sums: Mapping[str, LoopRange] | None = None,
    ) -> tuple[Expression, Names, dict[str, Expression]]:
        """Return one row's sum, the loops around it, and the values of all indices."""
        tile = ranges[self.plan.index]
        inside = {**ranges, **(sums or {})}
        loops = [
            self.block.loop,
            *(i for loop_range in inside.values() for i in loop_range.loops),
        ]
        points = {index: loop_range.point for index, loop_range in inside.items()}
        if tile.size == 1:
            return var(name)[(0,)], tuple(loops), points
        row = self.writer.loop("row", size=tile.size, tag="unr")
        points[self.plan.index] = tile.point + var(row)
        return var(name)[(var(row),)], (*loops, row), points


def _make_space(workload: Workload) -> Space | None:
    """Fit sums over the last index of some operand."""
    einsum = workload.einsum
    # the compiler can load vectors of the summed index only where its stride is 1
    inner = _find_inner_indices(einsum)
    if not einsum.output or not inner:
        return None
    by_length = sorted(
        einsum.output, key=lambda i: -get_typical_extent(einsum.extents[i])
    )
    table: Table = {
        "index": _find_jammed_indices(einsum, inner[0]),
        "rows": (8, 4, 2, 16, 1),
        "inner": inner,
        "parallel": tuple(by_length[:2]),
        "block": _list_blocks(einsum, by_length[0]),
        "vectors": VECTORS,
    }
    return Space(table, partial(_find_problem, einsum))


def _find_inner_indices(einsum: BatchedEinsum) -> tuple[str, ...]:
    last = [term[-1] for term in einsum.inputs if term and term.count(term[-1]) == 1]
    summed = [index for index in dict.fromkeys(last) if index not in einsum.output]
    return tuple(sorted(summed, key=lambda i: -get_typical_extent(einsum.extents[i])))[
        :2
    ]


def _find_jammed_indices(einsum: BatchedEinsum, inner: str) -> tuple[str, ...]:
    """Return the two output indices whose jamming saves the most loads."""

    def shared(index: str) -> int:
        # operands without the index are loaded once for all rows of a tile
        shared_terms = (t for t in einsum.inputs if inner in t and index not in t)
        return sum(count_index_tuples(einsum, term) for term in shared_terms)

    indices = sorted(
        einsum.output,
        key=lambda i: (-shared(i), -get_typical_extent(einsum.extents[i])),
    )
    return tuple(indices[:2])


def _list_blocks(einsum: BatchedEinsum, longest: str) -> tuple[int, ...]:
    """Return block sizes: with enough work, in multiples of all tile heights; and 2."""
    # iterations for one value of the longest index
    points_per_value = max(
        1,
        count_index_tuples(einsum, einsum.indices)
        // get_typical_extent(einsum.extents[longest]),
    )
    block = max(16, cpu.GROUP_POINTS // points_per_value // 16 * 16)
    return tuple(dict.fromkeys((block, 16, 4 * block, 2)))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    extent, rows = einsum.extents[get_text(parameters, "index")], parameters["rows"]
    if isinstance(extent, int) and get_number(parameters, "rows") > max(extent, 2):
        return f"there are no {rows} rows of extent {extent}"
    if parameters["parallel"] != parameters["index"]:
        return None
    block = get_number(parameters, "block")
    is_cut = block % get_number(parameters, "rows") != 0
    return f"{rows} rows do not divide a block of {block}" if is_cut else None


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    index, inner = get_text(parameters, "index"), get_text(parameters, "inner")
    most_bytes = 64 if parameters["vectors"] == VECTORS[1] else 32
    rows = get_number(parameters, "rows")
    cycles = count_jammed_cycles(
        einsum, index, inner, machine, rows=rows, most_bytes=most_bytes
    )
    parallel, block = get_text(parameters, "parallel"), get_number(parameters, "block")
    n_groups = max(1.0, count_points(einsum, (parallel,)) / block)
    loops = _list_loops(einsum, index, inner, rows)
    seconds = predict_streaming_s(
        einsum, cycles, machine, n_groups=n_groups, loops=loops
    )
    seconds += predict_restart_s(einsum, inner, index, machine, n_rows=rows)
    return seconds + predict_out_of_order_s(
        einsum, index, machine, inner=inner, parallel=parallel
    )


def _list_loops(
    einsum: BatchedEinsum, index: str, inner: str, rows: int
) -> list[tuple[str, int]]:
    """Return the loops with their extents, outermost first."""
    extent = count_points(einsum, (index,))
    other_indices = (i for i in einsum.output if i != index)
    return [
        *((i, count_points(einsum, (i,))) for i in other_indices),
        (index, -(-extent // rows)),
        *((i, count_points(einsum, (i,))) for i in order_summed_indices(einsum, inner)),
        (index, min(rows, extent)),
    ]


UNROLL_AND_JAM = register(
    Transform(
        "unroll_and_jam",
        1,
        "sums along rows, several rows at a time",
        _make_space,
        apply_unroll_and_jam,
        _predict_s,
        devices=frozenset({"cpu"}),
    )
)
