"""Every einsum: plain loops in a good order, over blocks of the output.

The innermost loop runs along the index that is contiguous in most of the data. The
OpenCL or C compiler makes vectors of it, so the family takes any dtype and any extent.
For ``ij->j``, one work-group reads a panel of A from top to bottom and keeps its sums
in a private tile::

      j_tile = 0        1
          +--------+--------+--
    i = 0 |------->|        |          step rows are added to the tile at a time,
        1 |------->|        |          so that each entry of the tile is loaded and
          |------->|        |          stored once for ``step`` terms
    N - 1 |------->|        |
          +--------+--------+--
    tile  [ width  ]                   in the first level of a cache
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import loopy as lp
from constantdict import constantdict
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, points
from feinsum.transforms.library.packed.packed_contraction import suits_packing
from feinsum.transforms.library.streaming_cost import (
    restart_s,
    streaming_s,
    vector_cycles,
)
from feinsum.transforms.primitives import NestWriter, Schedule, begin, with_hints
from feinsum.transforms.primitives.compiler_hints import SUMS, VECTORS
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import number, text, typical, volume

NO_INDEX = ""
"""Value of a parameter where no index fits."""

MIN_LENGTH = 16
"""Shorter loops cost more for each of their iterations."""
STRIDED = 4
"""What an entry costs if its neighbours are not used with it."""
GROUP_POINTS = 1 << 15
"""Iterations of a work-group that make its start negligible."""
TILE_BYTES = 1 << 16
"""Of the sums of all rows; more would leave the first levels of a cache."""


def generic(
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
    vector, parallel = text(parameters, "vector"), text(parameters, "parallel")
    cuts = {}
    if vector in nest.einsum.output:
        cuts[vector] = number(parameters, "width")
    if parallel != NO_INDEX:
        cuts[parallel] = number(parameters, "block")
    summed = streaming_order(nest.einsum, vector)
    step = number(parameters, "step")
    streams = Streams(vector or None, summed, step, cuts)
    written = StreamedNest(schedule, streams).written()
    hint = text({"vectors": VECTORS[0], **parameters}, "vectors")
    return with_hints(written, sums=SUMS[0], vectors=hint).t_unit


def streaming_order(einsum: BatchedEinsum, vector: str) -> Names:
    """Order the summation indices: the vector index last, the nearest before it."""
    return tuple(
        sorted(
            einsum.summation_indices,
            key=lambda index: (index == vector, -_strided_volume(einsum, index)),
        )
    )


def _strided_volume(einsum: BatchedEinsum, index: str) -> int:
    """Count entries whose neighbours along ``index`` are not neighbours in memory."""
    return sum(volume(einsum, term) for term in _terms(einsum) if index in term[:-1])


def _terms(einsum: BatchedEinsum) -> list[IndexList]:
    """Return the distinct indices of every array that is read or written."""
    return [tuple(dict.fromkeys(t)) for t in (*einsum.inputs, einsum.output)]


@dataclass(frozen=True)
class Streams:
    """What each index is in a :class:`StreamedNest`.

    Attributes:
        vector: the index of the innermost loop; none if there are no indices.
        summed: the summation indices, outermost first; the vector index, if it is
            one of them, is the last.
        step: entries of the last summed index that one iteration adds.
        cuts: output indices that are cut for the grid, and the entries of a part.
    """

    vector: str | None
    summed: Names
    step: int
    cuts: Mapping[str, int]


@dataclass(frozen=True)
class _Loops:
    """Inames, outermost first, and the value that they give to each index."""

    inames: Names
    points: Mapping[str, Expression]

    def inside(self, iname: str, **points: Expression) -> _Loops:
        """Return these loops with one more inside."""
        return _Loops((*self.inames, iname), {**self.points, **points})


@dataclass(frozen=True)
class _Step:
    """An iteration over the last summed index.

    Attributes:
        first: the first value of the index.
        size: how many values it adds.
    """

    loops: _Loops
    first: Expression
    size: int


class StreamedNest:
    """Writes the loops of each row: zero, sum and store, one after the other.

    Along a vector index of the output each entry has a sum of its own, to which each
    iteration adds several terms. Rewrite, for ``ij,i->j`` with the vector index j::

        for j:  out[j] = sum(i, A[i,j]*x[i])

        for j_tile in parallel:
            for j' < width:  tile[j'] = 0
            for i_step < floor(N/step):
                for j' < width:
                    tile[j'] += A[step*i_step, width*j_tile + j']*x[step*i_step] + ...
            for i after these, j' < width:  tile[j'] += ...
            for j' < width:  out[width*j_tile + j'] = tile[j']

    Along a vector index that is summed there are several partial sums, so that no
    addition waits for the one before. Rewrite, for ``ij->i`` and the vector index j::

        for i:  out[i] = sum(j, A[i,j])

        for i in parallel:
            tile[0], ..., tile[step - 1], total = 0
            for j_step < floor(N/step):
                for lane < step unrolled:  tile[lane] += A[i, step*j_step + lane]
            for j after these:  total += A[i,j]
            out[i] = total + ((tile[0] + tile[1]) + ...)
    """

    def __init__(self, schedule: Schedule, streams: Streams) -> None:
        self.schedule, self.streams = schedule, streams
        self.writer = NestWriter(schedule)
        self.sizes = {i: self._fitting(i, size) for i, size in streams.cuts.items()}
        cut = [i for i, size in self.sizes.items() if size != schedule.extents[i]]
        self.tiles = {index: self._tile_loop(index) for index in cut}
        # an index that is not cut has one tile, and needs no axis of the grid
        for axis, iname in enumerate(self.tiles.values()):
            self.writer.tag(iname, f"g.{axis}")
        is_free = streams.vector in schedule.output
        self.private: Names = (streams.vector,) if streams.vector and is_free else ()
        outer = [index for index in schedule.output if index not in self.private]
        grid = _Loops(tuple(self.tiles.values()), constantdict())
        self.around = self._within(grid, outer)

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        for row in range(len(self.schedule.rows)):
            # Each row of a batch has statements of its own, after those of the row
            # before.
            if self.streams.vector in self.streams.summed:
                self._sum_along(row)
            elif self.streams.summed:
                self._sum_beside(row)
            else:
                loops = self._within(self.around, self.private)
                self._store(row, self._product(row, loops.points), loops)
        return self.writer.finished()

    def _sum_beside(self, row: int) -> None:
        """Write a tile with a sum for each entry along the vector index."""
        dtype = self.schedule.dtype_of_row(row)
        shape = [self.sizes[index] for index in self.private] or [1]
        tile = self.writer.array(f"row_{row}_tile", shape, dtype)
        zero = self._within(self.around, self.private)
        entry = self._entry(tile, zero.inames)
        after = [self._assign(f"{tile}_zero", entry, dtype.type(0), zero)]
        for step in self._steps():
            loops = self._within(step.loops, self.private)
            entry = self._entry(tile, loops.inames)
            value = p.Sum((entry, self._terms(row, step, loops)))
            after.append(self._assign(f"{tile}_add", entry, value, loops, after))
        last = self._within(self.around, self.private)
        self._store(row, self._entry(tile, last.inames), last, after)

    def _sum_along(self, row: int) -> None:
        """Write partial sums along the vector index, added up at the end."""
        dtype, vector = self.schedule.dtype_of_row(row), self.streams.summed[-1]
        # a loop shorter than the partial sums has as many of them as it has iterations
        width = self._fitting(vector, self.streams.step)
        tile = var(self.writer.array(f"row_{row}_tile", (width,), dtype))
        total = var(self.writer.array(f"row_{row}_total", (1,), dtype))[(0,)]
        stem = f"row_{row}"
        lane = self.writer.loop("lane", size=width, tag="unr")
        entry, zero = tile[(var(lane),)], dtype.type(0)
        start = [
            self._assign(f"{stem}_zero", entry, zero, self.around.inside(lane)),
            self._assign(f"{stem}_zero", total, zero, self.around),
        ]
        updates = []
        for step in self._steps():
            loops, at, entry = step.loops, step.first, total
            if step.size > 1:
                lane = self.writer.loop("lane", size=step.size, tag="unr")
                loops, at = loops.inside(lane), at + var(lane)
                entry = tile[(var(lane),)]
            value = p.Sum((entry, self._product(row, {**loops.points, vector: at})))
            updates.append(self._assign(f"{stem}_add", entry, value, loops, start))
        value = p.Sum((total, _in_pairs([tile[(k,)] for k in range(width)])))
        after = [*start, *updates]
        after.append(self._assign(f"{stem}_end", total, value, self.around, after))
        self._store(row, total, self.around, after)

    def _steps(self) -> Iterator[_Step]:
        """Yield the loops over all summed indices: full steps, then the remainder."""
        *others, last = self.streams.summed
        extent, outer = self.schedule.extents[last], self._within(self.around, others)
        size = self._fitting(last, self.streams.step)
        if size == 1:
            loop = self.writer.loop(last, size=extent)
            yield _Step(outer.inside(loop), var(loop), 1)
            return
        full = self.writer.loop(f"{last}_step", f"{size}*{{0}} + {size} <= {extent}")
        yield _Step(outer.inside(full), size * var(full), size)
        if isinstance(extent, int) and extent % size == 0:
            return
        # in loops of its own: a condition in the full steps would keep compilers from
        # making vectors of them
        left = [f"{extent} < {size}*{{0}} + {size}", f"{size}*{{0}} < {extent}"]
        tile = self.writer.loop(f"{last}_left", *left)
        rest = self.writer.loop(last, f"{size}*{tile} + {{}} < {extent}", size=size)
        yield _Step(outer.inside(tile).inside(rest), size * var(tile) + var(rest), 1)

    def _terms(self, row: int, step: _Step, loops: _Loops) -> Expression:
        """Return the products that an iteration adds."""
        last = self.streams.summed[-1]
        points = [{**loops.points, last: step.first + k} for k in range(step.size)]
        return _in_pairs([self._product(row, at) for at in points])

    def _fitting(self, index: str, size: int) -> int:
        """Return ``size``, or the extent if that is known and smaller."""
        extent = self.schedule.extents[index]
        return max(1, min(size, extent)) if isinstance(extent, int) else size

    def _tile_loop(self, index: str) -> str:
        extent, size = self.schedule.extents[index], self.sizes[index]
        return self.writer.loop(f"{index}_tile", f"{size}*{{}} < {extent}")

    def _within(self, outer: _Loops, indices: Sequence[str]) -> _Loops:
        """Add loops inside others, over the entries of a tile or a whole index."""
        loops = outer
        for index in indices:
            extent, tile = self.schedule.extents[index], self.tiles.get(index)
            if tile is None:
                iname = self.writer.loop(index, size=extent)
                loops = loops.inside(iname, **{index: var(iname)})
                continue
            size = self.sizes[index]
            # without a bound the compiler knows the trip count
            is_exact = isinstance(extent, int) and extent % size == 0
            bound = [] if is_exact else [f"{size}*{tile} + {{}} < {extent}"]
            iname = self.writer.loop(index, *bound, size=size)
            loops = loops.inside(iname, **{index: size * var(tile) + var(iname)})
        return loops

    def _entry(self, tile: str, inames: Names) -> Expression:
        """Subscript a tile by the innermost of these loops."""
        n_axes = len(self.private)
        inner = inames[len(inames) - n_axes :]
        return var(tile)[tuple(map(var, inner)) if inner else (0,)]

    def _product(self, row: int, points: Mapping[str, Expression]) -> Expression:
        return calls_product(self.schedule, self.schedule.rows[row], points)

    def _assign(
        self,
        stem: str,
        assignee: Expression,
        value: Expression,
        loops: _Loops,
        after: Sequence[str] = (),
    ) -> str:
        return self.writer.assign(stem, assignee, value, loops.inames, after)

    def _store(
        self, row: int, value: Expression, loops: _Loops, after: Sequence[str] = ()
    ) -> None:
        self.writer.store(row, value, loops.points, loops.inames, after)


def _in_pairs(terms: Sequence[Expression]) -> Expression:
    """Sum terms as a balanced tree, whose additions do not wait for each other."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return p.Sum((_in_pairs(terms[:half]), _in_pairs(terms[half:])))


def _space(workload: Workload) -> Space:
    """Fit every einsum; indices of unit stride come first."""
    einsum = workload.einsum
    vectors = sorted(einsum.indices, key=lambda index: _vector_cost(einsum, index))
    first = vectors[0] if vectors else NO_INDEX
    # the longest other output index gives the most work-groups
    parallel = [i for i in einsum.output if i != first] or list(einsum.output[:1])
    parallel.sort(key=lambda index: -typical(einsum.extents[index]))
    if einsum.output in ((), (first,)):
        parallel = [NO_INDEX]
    table: Table = {
        "vector": tuple(vectors[:3]) or (NO_INDEX,),
        "width": _widths(einsum),
        "parallel": tuple(parallel[:2]),
        "block": _blocks(einsum),
        "step": (8, 1, 32) if einsum.summation_indices else (1,),
    }
    return Space(
        table,
        partial(_find_problem, einsum),
        proposes_all=True,
        is_searched=lambda: not suits_packing(einsum),
    )


def _space_with_hint(workload: Workload) -> Space:
    space = _space(workload)
    return replace(space, table={**space, "vectors": VECTORS})


def _vector_cost(einsum: BatchedEinsum, index: str) -> tuple[float, bool]:
    """Count the entries of all arrays, strided ones and short loops as more."""
    n_entries = sum(volume(einsum, term) for term in _terms(einsum))
    n_counted = n_entries + (STRIDED - 1) * _strided_volume(einsum, index)
    # a short innermost loop is mostly overhead
    shortness = max(1.0, MIN_LENGTH / max(typical(einsum.extents[index]), 1))
    return shortness * n_counted, index not in einsum.output


def _widths(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return the widths of tiles; without a sum there is none, and blocks are long."""
    if not einsum.summation_indices:
        return (4096, 512, 32768)
    sizes = [dtype.itemsize for dtype in einsum.output_dtypes]
    fitting = [n for n in (1024, 256, 2048) if n * sum(sizes) <= TILE_BYTES]
    return tuple(fitting) or (64,)


def _blocks(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return numbers of rows: enough work for a group, then some more and less."""
    others = volume(einsum, einsum.indices)
    longest = max((typical(einsum.extents[i]) for i in einsum.output), default=1)
    block = max(1, GROUP_POINTS * longest // max(others, 1))
    block = min(1 << (block.bit_length() - 1), 4096)
    return tuple(dict.fromkeys((block, 4 * block, max(1, block // 4))))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    vector, parallel = parameters["vector"], parameters["parallel"]
    if vector == parallel != NO_INDEX:
        return f"the index {vector!r} is the innermost loop already"
    if vector not in einsum.output and parameters["width"] != _widths(einsum)[0]:
        return "a summed vector index has no width"
    if parallel == NO_INDEX and parameters["block"] != _blocks(einsum)[0]:
        return "nothing is cut in blocks"
    return None


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Estimate the seconds by the innermost loop and the number of blocks."""
    vector, parallel = text(parameters, "vector"), text(parameters, "parallel")
    most_bytes = 64 if parameters.get("vectors") == VECTORS[1] else 32
    step = number(parameters, "step")
    cycles = vector_cycles(einsum, vector, machine, most_bytes=most_bytes, step=step)
    n_groups = 1.0
    for index, size in ((parallel, "block"), (vector, "width")):
        if index in einsum.output:
            n_groups *= max(1.0, points(einsum, (index,)) / number(parameters, size))
    loops = _loops(einsum, vector, number(parameters, "width"))
    seconds = streaming_s(einsum, cycles, machine, n_groups=n_groups, loops=loops)
    # Only a sum over an outer index reads panels in short runs.
    if not einsum.summation_indices or vector not in einsum.output:
        return seconds
    return seconds + restart_s(
        einsum,
        vector,
        streaming_order(einsum, vector)[-1],
        machine,
        n_rows=step,
        width=number(parameters, "width"),
        in_registers=False,
    )


def _loops(einsum: BatchedEinsum, vector: str, width: int) -> list[tuple[str, int]]:
    """Return the loops with their extents, outermost first."""
    order = (i for i in einsum.output if i != vector)
    loops = [
        (i, points(einsum, (i,))) for i in (*order, *streaming_order(einsum, vector))
    ]
    if vector not in einsum.output:
        return loops
    extent = points(einsum, (vector,))
    width = min(width, extent)
    return [(vector, -(-extent // width)), *loops, (vector, width)]


GENERIC = register(
    Transform(
        "generic",
        1,
        "any einsum: unit strides innermost, blocks of the output over the grid",
        _space,
        generic,
    )
)
GENERIC_ON_CPUS = register(
    replace(
        GENERIC,
        version=2,
        summary="generic@1, with a hint to the compiler of a CPU",
        space=_space_with_hint,
        devices=frozenset({"cpu"}),
        cost=_cost,
    )
)
