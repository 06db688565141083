"""Sums along rows, several rows at a time.

For ``ij,j->i`` with three rows, a matrix-vector product keeps a vector of sums for each
row in a register, and loads x once for all of them::

                 j ---->
    i, row 0   [A A A A|A A A A| ...  * x  ->  tile[0]
       row 1   [A A A A|A A A A| ...  * x  ->  tile[1]
       row 2   [A A A A|A A A A| ...  * x  ->  tile[2]
                 ^ the same x[j:j+4] for all rows

A single sum would wait for the latency of each addition; three wait at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, points
from feinsum.transforms.library.generic import streaming_order
from feinsum.transforms.library.streaming_cost import (
    jammed_cycles,
    out_of_order_s,
    restart_s,
    streaming_s,
)
from feinsum.transforms.primitives import NestWriter, Schedule, begin, with_hints
from feinsum.transforms.primitives.compiler_hints import (
    SUMS,
    VECTORS,
    with_rows_apart,
)
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import number, text, typical, volume

GROUP_POINTS = 1 << 15
"""Iterations of a work-group that make its start negligible."""


def unroll_and_jam(
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
        text(parameters, "index"),
        number(parameters, "rows"),
        streaming_order(nest.einsum, text(parameters, "inner")),
        text(parameters, "parallel"),
        number(parameters, "block"),
    )
    written = with_rows_apart(_JammedNest(begin(t_unit, nest), plan).written())
    vectors = text(parameters, "vectors")
    return with_hints(written, sums=SUMS[1], vectors=vectors).t_unit


@dataclass(frozen=True)
class _Plan:
    """Which index plays which part; see :func:`unroll_and_jam`."""

    index: str
    rows: int
    summed: Names
    parallel: str
    block: int


@dataclass(frozen=True)
class _Tile:
    """Rows that are summed at a time.

    Attributes:
        loops: around the sums, outermost first.
        points: the values of all output indices but the jammed one.
        first: the jammed index of the first row.
        size: how many rows there are.
    """

    loops: Names
    points: dict[str, Expression]
    first: Expression
    size: int


class _JammedNest:
    """Writes the nests of each row of the einsum: full tiles, then what is left."""

    def __init__(self, schedule: Schedule, plan: _Plan) -> None:
        self.schedule, self.plan = schedule, plan
        self.writer = NestWriter(schedule)
        extent = schedule.extents[plan.parallel]
        self.grid = self.writer.loop(
            f"{plan.parallel}_block", f"{plan.block}*{{}} < {extent}", tag="g.0"
        )

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        # rows of a batch share the tiles, but have loops of their own inside
        tiles = [*self._tiles()]
        for row in range(len(self.schedule.rows)):
            for tile in tiles:
                self._sum(row, tile, is_last=tile is tiles[-1])
        return self.writer.finished()

    def _tiles(self) -> Iterator[_Tile]:
        """Full tiles, and the rows that are left over, each alone."""
        plan, writer = self.plan, self.writer
        # Tiles do not cross the blocks of the grid, if these are of the same index.
        loops, points = self._outside()
        extent, size = self.schedule.extents[plan.index], plan.rows
        is_cut = plan.parallel == plan.index
        start = f"{plan.block}*{self.grid} + " if is_cut else ""
        n_tiles = plan.block // size if is_cut else None
        base = plan.block * var(self.grid) if is_cut else 0
        # Loopy refuses a loop whose literal domain is empty.
        if not isinstance(extent, int) or extent >= size:
            full = writer.loop(
                "tile", f"{start}{size}*{{}} + {size} <= {extent}", size=n_tiles
            )
            yield _Tile((*loops, full), points, base + size * var(full), size)
        if isinstance(extent, int) and extent % size == 0:
            return
        last = writer.loop(
            "last",
            f"{extent} < {start}{size}*{{}} + {size}",
            f"{start}{size}*{{}} < {extent}",
            size=n_tiles,
        )
        left = writer.loop("left", f"{start}{size}*{last} + {{}} < {extent}", size=size)
        first = base + size * var(last) + var(left)
        yield _Tile((*loops, last, left), points, first, 1)

    def _outside(self) -> tuple[Names, dict[str, Expression]]:
        """Loops over the blocks and over the other output indices."""
        plan, writer = self.plan, self.writer
        loops, points = [self.grid], {}
        for index in self.schedule.output:
            if index == plan.index:
                continue
            extent = self.schedule.extents[index]
            if index == plan.parallel:
                start = f"{plan.block}*{self.grid}"
                bound = f"{start} + {{}} < {extent}"
                iname = writer.loop(index, bound, size=plan.block)
                points[index] = plan.block * var(self.grid) + var(iname)
            else:
                iname = writer.loop(index, size=extent)
                points[index] = var(iname)
            loops.append(iname)
        return tuple(loops), points

    def _sum(self, row: int, tile: _Tile, *, is_last: bool) -> None:
        """Zero, add and store the sums of a tile."""
        dtype, writer = self.schedule.dtype_of_row(row), self.writer
        name = writer.array(f"row_{row}_tile", (tile.size,), dtype)
        entry, loops, _ = self._sum_of_row(name, tile)
        start = writer.assign(f"{name}_zero", entry, dtype.type(0), loops)
        entry, loops, at = self._sum_of_row(name, tile, self._sums())
        product = calls_product(self.schedule, self.schedule.rows[row], at)
        added = p.Sum((entry, product))
        add = writer.assign(f"{name}_add", entry, added, loops, [start])
        entry, loops, at = self._sum_of_row(name, tile)
        writer.store(row, entry, at, loops, [start, add], is_last=is_last)

    def _sums(self) -> dict[str, str]:
        """Return a loop over each summed index, outermost first."""
        extents = self.schedule.extents
        return {i: self.writer.loop(i, size=extents[i]) for i in self.plan.summed}

    def _sum_of_row(
        self, name: str, tile: _Tile, sums: dict[str, str] | None = None
    ) -> tuple[Expression, Names, dict[str, Expression]]:
        """The sum of one row, the loops around it, and the values of all indices."""
        sums = sums or {}
        inside: Sequence[str] = [*sums.values()]
        at = {**tile.points, **{i: var(loop) for i, loop in sums.items()}}
        if tile.size == 1:
            at[self.plan.index] = tile.first
            return var(name)[(0,)], (*tile.loops, *inside), at
        row = self.writer.loop("row", size=tile.size, tag="unr")
        at[self.plan.index] = tile.first + var(row)
        return var(name)[(var(row),)], (*tile.loops, *inside, row), at


def _space(workload: Workload) -> Space | None:
    """Sums along an index in which some operand has unit stride."""
    einsum = workload.einsum
    # only along unit strides can the compiler load vectors of the summed index
    inner = _inner(einsum)
    if not einsum.output or not inner:
        return None
    by_length = sorted(einsum.output, key=lambda i: -typical(einsum.extents[i]))
    table: Table = {
        "index": _jammed(einsum, inner[0]),
        "rows": (8, 4, 2, 16, 1),
        "inner": inner,
        "parallel": tuple(by_length[:2]),
        "block": _blocks(einsum, by_length[0]),
        "vectors": VECTORS,
    }
    return Space(table, partial(_find_problem, einsum), proposes_all=True)


def _inner(einsum: BatchedEinsum) -> tuple[str, ...]:
    last = [term[-1] for term in einsum.inputs if term and term.count(term[-1]) == 1]
    summed = [index for index in dict.fromkeys(last) if index not in einsum.output]
    return tuple(sorted(summed, key=lambda i: -typical(einsum.extents[i])))[:2]


def _jammed(einsum: BatchedEinsum, inner: str) -> tuple[str, ...]:
    """Those first that save most, since operands do not have them."""

    def shared(index: str) -> int:
        # what does not have the index is loaded once for all rows of a tile
        others = (t for t in einsum.inputs if inner in t and index not in t)
        return sum(volume(einsum, term) for term in others)

    indices = sorted(
        einsum.output, key=lambda i: (-shared(i), -typical(einsum.extents[i]))
    )
    return tuple(indices[:2])


def _blocks(einsum: BatchedEinsum, longest: str) -> tuple[int, ...]:
    """Multiples of all numbers of rows, with enough work for a group; and a few."""
    # iterations for one value of the longest index
    each = max(1, volume(einsum, einsum.indices) // typical(einsum.extents[longest]))
    block = max(16, GROUP_POINTS // each // 16 * 16)
    return tuple(dict.fromkeys((block, 16, 4 * block, 2)))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    extent, rows = einsum.extents[text(parameters, "index")], parameters["rows"]
    if isinstance(extent, int) and number(parameters, "rows") > max(extent, 2):
        return f"there are no {rows} rows of extent {extent}"
    if parameters["parallel"] != parameters["index"]:
        return None
    block = number(parameters, "block")
    is_cut = block % number(parameters, "rows") != 0
    return f"{rows} rows do not divide a block of {block}" if is_cut else None


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    index, inner = text(parameters, "index"), text(parameters, "inner")
    most_bytes = 64 if parameters["vectors"] == VECTORS[1] else 32
    rows = number(parameters, "rows")
    cycles = jammed_cycles(
        einsum, index, inner, machine, rows=rows, most_bytes=most_bytes
    )
    parallel, block = text(parameters, "parallel"), number(parameters, "block")
    n_groups = max(1.0, points(einsum, (parallel,)) / block)
    loops = _loops(einsum, index, inner, rows)
    seconds = streaming_s(einsum, cycles, machine, n_groups=n_groups, loops=loops)
    seconds += restart_s(einsum, inner, index, machine, n_rows=rows)
    return seconds + out_of_order_s(
        einsum, index, machine, inner=inner, parallel=parallel
    )


def _loops(
    einsum: BatchedEinsum, index: str, inner: str, rows: int
) -> list[tuple[str, int]]:
    """Return the loops with their extents, outermost first."""
    extent = points(einsum, (index,))
    others = (i for i in einsum.output if i != index)
    return [
        *((i, points(einsum, (i,))) for i in others),
        (index, -(-extent // rows)),
        *((i, points(einsum, (i,))) for i in streaming_order(einsum, inner)),
        (index, min(rows, extent)),
    ]


UNROLL_AND_JAM = register(
    Transform(
        "unroll_and_jam",
        1,
        "sums along rows, several rows at a time",
        _space,
        unroll_and_jam,
        _cost,
        devices=frozenset({"cpu"}),
    )
)
