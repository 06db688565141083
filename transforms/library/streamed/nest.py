"""Loops that stream arrays through a private tile, written from a choice of roles.

Plain loops whose innermost one has unit stride are left to the vectorizer of the
OpenCL compiler, so that they serve every dtype and every extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from constantdict import constantdict
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product


@dataclass(frozen=True)
class Streams:
    """The roles of the indices; see :class:`StreamedNest`.

    Attributes:
        vector: the index of the innermost loop; none if there are no indices.
        summed: the summation indices, outermost first; the vector index, if it is
            one of them, is the last.
        step: entries of the last summed index that one iteration adds.
        cuts: output indices that are cut for the grid, and the entries of a part.
        across: the output index whose loop is innermost in the stores, if that is
            not the vector index; both are cut.
    """

    vector: str | None
    summed: Names
    step: int
    cuts: Mapping[str, int]
    across: str | None = None


@dataclass(frozen=True)
class _Loops:
    """Inames, outermost first, and the value that they give to each index."""

    inames: Names
    points: Mapping[str, Expression]

    def inside(self, iname: str, **points: Expression) -> _Loops:
        """With one more loop, the innermost."""
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
        for axis, iname in enumerate(self.tiles.values()):
            self.writer.tag(iname, f"g.{axis}")
        in_tile = (streams.across, streams.vector)
        self.private = tuple(i for i in in_tile if i in schedule.output)
        outer = [index for index in schedule.output if index not in self.private]
        grid = _Loops(tuple(self.tiles.values()), constantdict())
        self.around = self._within(grid, outer)

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        for row in range(len(self.schedule.rows)):
            if self.streams.vector in self.streams.summed:
                self._sum_along(row)
            elif self.streams.summed or self.streams.across is not None:
                self._sum_beside(row)
            else:
                loops = self._within(self.around, self.private)
                self._store(row, self._product(row, loops.points), loops)
        return self.writer.finished()

    def _sum_beside(self, row: int) -> None:
        """A tile of sums, one for each entry; its loops are turned for the store."""
        dtype = self.schedule.dtype_of_row(row)
        shape = [self.sizes[index] for index in self.private] or [1]
        tile = self.writer.array(f"row_{row}_tile", shape, dtype)
        after: list[str] = []
        if self.streams.summed:
            zero = self._within(self.around, self.private)
            entry = self._entry(tile, zero.inames)
            after.append(self._assign(f"{tile}_zero", entry, dtype.type(0), zero))
        for step in self._steps():
            loops = self._within(step.loops, self.private)
            entry, value = (
                self._entry(tile, loops.inames),
                self._terms(row, step, loops),
            )
            if after:
                value = p.Sum((entry, value))
            after.append(self._assign(f"{tile}_add", entry, value, loops, after))
        last = self._within(self.around, self.private[::-1])
        n_around = len(self.around.inames)
        self._store(row, self._entry(tile, last.inames[n_around:][::-1]), last, after)

    def _sum_along(self, row: int) -> None:
        """Partial sums along the vector index, added up at the end."""
        dtype, vector = self.schedule.dtype_of_row(row), self.streams.summed[-1]
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
            loops, at, place = step.loops, step.first, total
            if step.size > 1:
                lane = self.writer.loop("lane", size=step.size, tag="unr")
                loops, at = loops.inside(lane), at + var(lane)
                place = tile[(var(lane),)]
            value = p.Sum((place, self._product(row, {**loops.points, vector: at})))
            updates.append(self._assign(f"{stem}_add", place, value, loops, start))
        value = p.Sum((total, _in_pairs([tile[(k,)] for k in range(width)])))
        after = [*start, *updates]
        after.append(self._assign(f"{stem}_end", total, value, self.around, after))
        self._store(row, total, self.around, after)

    def _steps(self) -> Iterator[_Step]:
        """The iterations over all summed indices: full steps, then what is left."""
        if not self.streams.summed:
            yield _Step(self.around, 0, 1)
            return
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
        # apart: a condition in full steps would keep compilers from making vectors
        left = [f"{extent} < {size}*{{0}} + {size}", f"{size}*{{0}} < {extent}"]
        tile = self.writer.loop(f"{last}_left", *left)
        rest = self.writer.loop(last, f"{size}*{tile} + {{}} < {extent}", size=size)
        yield _Step(outer.inside(tile).inside(rest), size * var(tile) + var(rest), 1)

    def _terms(self, row: int, step: _Step, loops: _Loops) -> Expression:
        """The products that an iteration adds."""
        if not self.streams.summed:
            return self._product(row, loops.points)
        last = self.streams.summed[-1]
        points = [{**loops.points, last: step.first + k} for k in range(step.size)]
        return _in_pairs([self._product(row, at) for at in points])

    def _fitting(self, index: str, size: int) -> int:
        """``size``, or the extent if that is known and smaller."""
        extent = self.schedule.extents[index]
        return max(1, min(size, extent)) if isinstance(extent, int) else size

    def _tile_loop(self, index: str) -> str:
        extent, size = self.schedule.extents[index], self.sizes[index]
        return self.writer.loop(f"{index}_tile", f"{size}*{{}} < {extent}")

    def _within(self, outer: _Loops, indices: Sequence[str]) -> _Loops:
        """Loops inside others, over the entries of a tile or over a whole index."""
        loops = outer
        for index in indices:
            extent, tile = self.schedule.extents[index], self.tiles.get(index)
            if tile is None:
                iname = self.writer.loop(index, size=extent)
                loops = loops.inside(iname, **{index: var(iname)})
                continue
            size = self.sizes[index]
            is_exact = isinstance(extent, int) and extent % size == 0
            bound = [] if is_exact else [f"{size}*{tile} + {{}} < {extent}"]
            iname = self.writer.loop(index, *bound, size=size)
            loops = loops.inside(iname, **{index: size * var(tile) + var(iname)})
        return loops

    def _entry(self, tile: str, inames: Names) -> Expression:
        """The entry of a tile whose axes are the innermost of these loops."""
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
    """A sum of pairs of pairs: additions that do not wait for each other."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return p.Sum((_in_pairs(terms[:half]), _in_pairs(terms[half:])))
