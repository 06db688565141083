"""Writes the loops of a product of elements with a matrix, on tensor cores.

For the gradient ``xre,rij,ej->xei`` the matrix D is the right factor, which each warp
loads once and keeps in registers. The elements are the rows of the left one::

    acc[r][e, i] += tile[e, j] @ D[r][i, j].T        (a warp: height e, width i)
    result[x][e, i] = sum(r, J[x,r,e] * acc[r][e, i])

Elements go down, in blocks of 16, rows i of the matrix go across, in blocks of 8; see
:mod:`feinsum.transforms.gpu.fragments` for what each lane holds. The time line of a
turn, with ``ahead``::

    settle   registers of this turn's tile -> shared memory, times the early factors
    load     the next tile -> registers           (global memory answers during `mma`)
    barrier
    mma      fragments of the tile @ fragments of the matrix
    share    sums times the late factors -> shared memory
    barrier
    store    results -> global memory, in the order in which they lie there
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from pymbolic import primitives as p
from pymbolic import var
from pytools.tag import Tag

from feinsum.targets.cuda.code import LeastGroups, OrderedLoads
from feinsum.transforms.gpu.fragments import (
    DOUBLE,
    HALVES,
    INTERLEAVED_COLUMN,
    QUAD,
    ZERO,
    Lane,
    WarpProduct,
)
from feinsum.transforms.gpu.layouts import clamped
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.gpu.operator_tiles import (
    ElementTiles,
    OperatorTiles,
    Points,
    StagedPart,
    TileStart,
)
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.multiply_fragments import COLUMNS, PRODUCTS, ROWS
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product


class _Factors(NamedTuple):
    """A product of operands in shared memory, for each element.

    Attributes:
        positions: of the operands.
        indices: but for the element.
    """

    positions: tuple[int, ...]
    indices: Names
    array: Expression

    def at(self, points: Points, element: Expression) -> Expression:
        return self.array[(*(points[i] for i in self.indices), element)]


RowParts: TypeAlias = tuple[StagedPart, list[tuple[_Factors, StagedPart]]]
"""What is streamed, and which factors are new."""


class OperatorMmaWriter(ElementTiles):
    """Writes the loops; see :func:`feinsum.transforms.gpu.operator_mma`.

    Attributes:
        along, across: the warp's place among elements, and among rows of the matrix.
        has_early_loads: whether loads stay before the barrier that follows them.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: Steps,
        tiles: OperatorTiles,
        *,
        has_early_loads: bool,
    ) -> None:
        super().__init__(schedule, steps.element, tiles)
        self.has_early_loads = has_early_loads
        self.steps = steps
        self.along = p.FloorDiv(var(self.warp), tiles.across)
        self.across = p.Remainder(var(self.warp), tiles.across)
        self.warp_product = WarpProduct(
            self.writer, Lane.of(self.lane), tiles.height, tiles.width, tiles.terms
        )
        self.rows, self.terms = self.flat(steps.rows), self.flat(steps.contracted)
        self.settled_factors: list[str] = []

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        steps, tiles, schedule = self.steps, self.tiles, self.schedule
        self.tile = self.shared("tile", (), (tiles.elements, tiles.stride))
        self.scales = self._factors("scales", tiles.scaling)
        self.factors = self._factors("factors", steps.late)
        shape = (tiles.elements, tiles.row_stride)
        self.result = self.shared("result", steps.fan, shape)
        self.matrices = {
            name: self._load_matrix(name)
            for name in dict.fromkeys(row[steps.matrix] for row in schedule.rows)
        }
        parts = [self._parts(k) for k in range(len(schedule.rows))]
        before = [self._pad()] if tiles.depth > tiles.n_terms else []
        loads: list[str] = []
        if tiles.is_ahead:
            loads = self._load_parts(parts[0], self.start_of_first(), before)
        for k in range(len(schedule.rows)):
            if not tiles.is_ahead:
                loads = self._load_parts(parts[k], self.now, before)
            settled = self._settle_parts(parts[k], [*loads, *before])
            settled, loads = self._await_tile(parts, k, settled)
            before = self._write_row(k, [*settled, *loads])
        self.writer.note_ordered(*self.shared_accesses)
        self.writer.note_apart(*self.shared_accesses)
        schedule = self.writer.finished().with_preamble(PRODUCTS)
        tags: set[Tag] = {LeastGroups(tiles.groups)}
        if self.has_early_loads:
            tags |= {OrderedLoads()}
        return schedule.with_kernel(tags=schedule.kernel.tags | tags)

    def _await_tile(
        self, parts: Sequence[RowParts], k: int, settled: list[str]
    ) -> tuple[list[str], list[str]]:
        """Wait until tiles are full, and load the next ones ahead; before, or after."""
        if not self.has_early_loads:
            settled = [*settled, self.writer.barrier(self.loops, settled)]
        loads = self._load_next(parts, k, settled) if self.tiles.is_ahead else []
        if self.has_early_loads:
            # behind this barrier, the compiler cannot move the loads into the product
            barrier = self.writer.barrier(self.loops, [*settled, *loads])
            settled = [*settled, barrier]
        return settled, loads

    def _write_row(self, k: int, after: Sequence[str]) -> list[str]:
        """Multiply what is in shared memory, and store it; the last barrier."""
        matrix = self.matrices[self.schedule.rows[k][self.steps.matrix]]
        shared = self._share_result(*self._multiply(matrix, after), after)
        # lanes store what other lanes have computed
        before = [self.writer.barrier(self.loops, [shared]), shared]
        self._store(k, before)
        return before

    def _parts(self, k: int) -> RowParts:
        """What of a row comes to shared memory, and is not there yet."""
        rows = self.schedule.rows
        new = []
        for factors in (self.scales, self.factors):
            if factors is None:
                continue
            names = [tuple(row[n] for n in factors.positions) for row in rows]
            # factors that all rows share are loaded with the first one
            if k == 0 or len({*names}) > 1:
                new.append((factors, self.stage(names[k])))
        streamed = rows[k][self.tiles.streamed]
        return self.stage((streamed,), self.steps.gathered), new

    # what comes in

    def _load_matrix(self, name: str) -> tuple[str, str]:
        """The right fragments of a matrix in registers, and what loads them.

        Their columns are interleaved: of eight rows of the matrix, the two that a lane
        gets in the sums are four apart, and lanes beside each other have rows beside
        each other; see :data:`INTERLEAVED_COLUMN`.
        """
        writer, tiles, product = self.writer, self.tiles, self.warp_product
        loops, points = self.unrolled(self.steps.deferred)
        shape = (
            tiles.width // COLUMNS, tiles.depth // tiles.terms, tiles.terms // QUAD
        )  # fmt: skip
        inames = [self.unroll(n) for n in shape]
        block, step, quad = map(var, inames)
        term = product.term(step, quad)
        row = self._matrix_row(block, product.lane.interleaved_column())
        points |= self.rows.unravel(self._existing(row))
        # the last instruction may have terms that are not there: nothing may be read
        # beyond the matrix, and NaN there times the zeros of the tile would be NaN
        is_padded = tiles.depth > tiles.n_terms
        existing = clamped(term, tiles.n_terms) if is_padded else term
        points |= self.terms.unravel(existing)
        value = calls_product(self.schedule, (name,), points)
        if is_padded:
            value = p.If(p.Comparison(term, "<", tiles.n_terms), value, ZERO)
        lengths = tuple(map(self.length, self.steps.deferred))
        array = writer.array("matrix", (*lengths, *shape), DOUBLE)
        loops = [*loops, *inames]
        entry = var(array)[tuple(map(var, loops))]
        return array, writer.assign("load", entry, value, [*self.around, *loops])

    def _pad(self) -> str:
        """Zero the terms of a tile that only fill the last instruction.

        It is done once, before the first turn: no tile is written there.
        """
        tiles, writer = self.tiles, self.writer
        n = tiles.depth - tiles.n_terms
        n_entries = n * tiles.elements
        step = self.unroll(-(-n_entries // self.n_items))
        at = p.Sum((var(self.item), self.n_items * var(step)))
        entry = self.tile[p.FloorDiv(at, n), p.Sum((tiles.n_terms, p.Remainder(at, n)))]
        return self.note_shared(
            writer.assign(
                "pad", entry, ZERO, [*self.around, step], [self.numbered],
                predicates=[p.Comparison(at, "<", n_entries)],
            )
        )  # fmt: skip

    def _load_next(
        self, parts: Sequence[RowParts], k: int, before: Collection[str]
    ) -> list[str]:
        """Load what comes after a row: the next one, or the first of the next turn."""
        if k + 1 < len(parts):
            return self._load_parts(parts[k + 1], self.now, before)
        return self._load_parts(parts[0], self.start_of_next(), before)

    def _load_parts(
        self, parts: RowParts, start: TileStart, before: Collection[str]
    ) -> list[str]:
        """Load all of a work-item's parts to registers, so that it waits once."""
        streamed, others = parts
        return [
            self.load_part(part, start, before)
            for part in (*(part for _, part in others), streamed)
        ]

    def _settle_parts(self, parts: RowParts, before: list[str]) -> list[str]:
        """Move all from registers to shared memory."""
        streamed, others = parts
        for factors, part in others:
            self.settled_factors.append(self._settle(factors, part, before))
        before = [*before, *self.settled_factors]
        # what scales an element may come from another work-item
        if self.scales and any(factors is self.scales for factors, _ in others):
            before.append(self.writer.barrier(self.loops, before))
        return [*before, self._fill(streamed, before)]

    def _settle(
        self, factors: _Factors, part: StagedPart, before: Collection[str]
    ) -> str:
        entries = self.entries_of_item(part, self.now)
        inames, points = self.unrolled(part.outer)
        points |= entries.points
        loops = (*inames, *entries.loops)
        return self.note_shared(
            self.writer.assign(
                "settle", factors.at(points, points[self.element]),
                var(part.array)[tuple(map(var, loops))], [*self.loops, *loops],
                [*entries.after, *before], predicates=entries.inside,
            )
        )  # fmt: skip

    def _fill(self, part: StagedPart, before: Collection[str]) -> str:
        """Scale what is streamed, into the tile."""
        steps, entries = self.steps, self.entries_of_item(part, self.now)
        dealt_out = {*part.slow, *part.fast}
        outer = [i for i in steps.tile if i not in dealt_out]
        inames, points = self.unrolled(outer)
        points |= entries.points
        element = points[self.element]
        terms: list[Expression] = []
        # gathered indices are added up on the way, and so the tile lacks them
        for gathered in self.values(steps.gathered):
            at = {**points, **gathered}
            value = var(part.array)[
                (*(at[i] for i in part.outer), *map(var, entries.loops))
            ]
            if self.scales:
                value = p.Product((self.scales.at(at, element), value))
            terms.append(value)
        return self.note_shared(
            self.writer.assign(
                "fill", self.tile[element, self.terms.ravel(points)], _sum(terms),
                [*self.loops, *inames, *entries.loops], [*entries.after, *before],
                predicates=entries.inside,
            )
        )  # fmt: skip

    # the product

    def _multiply(
        self, matrix: tuple[str, str], filled: Sequence[str]
    ) -> tuple[str, str]:
        """The array of a warp's sums, and what adds to it."""
        tiles, product = self.tiles, self.warp_product
        lengths = tuple(map(self.length, self.steps.deferred))
        acc, zero = product.zeroed(lengths, DOUBLE, self.loops, filled)
        step = self.unroll(tiles.depth // tiles.terms)

        def of_tile(
            block: Expression, quad: Expression, half: Expression
        ) -> Expression:
            return self.tile[self._element(block, half), product.term(var(step), quad)]

        shape = (tiles.height // ROWS, tiles.terms // QUAD, HALVES)
        left, loaded = product.load_fragments(
            "elements", shape, of_tile, [*self.loops, step], filled
        )
        self.note_shared(loaded)
        # one left fragment serves all deferred indices: these loops are the inner ones
        down, across, *inames = (self.unroll(n) for n in (*product.n_blocks, *lengths))
        outer = tuple(map(var, inames))
        return acc, product.multiply(
            (acc, tuple(inames)), left,
            (matrix[0], lambda block: (*outer, block, var(step), 0)),
            (*self.loops, step, down, across, *inames), (down, across),
            [zero, loaded, matrix[1]],
        )  # fmt: skip

    def _share_result(self, acc: str, summed: str, filled: Sequence[str]) -> str:
        """Multiply sums with what comes late, into shared memory."""
        tiles, steps = self.tiles, self.steps
        inames, points = self.unrolled(steps.fan)
        shape = (tiles.height // ROWS, HALVES, tiles.width // COLUMNS, 2)
        block = [self.unroll(n) for n in shape]
        down, half, across, e = map(var, block)
        points[self.element] = self._element(down, half)
        row = self._matrix_row(across, INTERLEAVED_COLUMN(e, self.warp_product.lane.t))
        points |= self.rows.unravel(self._existing(row))
        terms: list[Expression] = []
        for late in self.values(steps.deferred):
            # entry [h, e] of the sums of a fragment
            at = (
                *(late[i] for i in steps.deferred),
                down,
                across,
                p.Sum((2 * half, e)),
            )
            term = var(acc)[at]
            if self.factors:
                factor = self.factors.at({**points, **late}, points[self.element])
                term = p.Product((factor, term))
            terms.append(term)
        loops = [*self.loops, *inames, *block]
        # idle rows have room in the result: so no lane needs a guard
        entry = self._result_at(points, row)
        return self.note_shared(
            self.writer.assign("share", entry, _sum(terms), loops, [summed, *filled])
        )

    def _store(self, k: int, before: Sequence[str]) -> None:
        """Write results in the order in which they lie."""
        inames, fan = self.unrolled(self.steps.fan)
        part = StagedPart((), (), (self.element,), self.steps.rows, "")
        entries = self.entries_of_item(part, self.now)
        points = {**entries.points, **fan}
        stored = self.writer.store(
            k, self._result_at(points, self.rows.ravel(points)),
            {**entries.points_of_all, **fan}, [*self.loops, *inames, *entries.loops],
            [*before, *entries.after], predicates=entries.exists,
        )  # fmt: skip
        self.note_shared(stored)

    # small parts

    def _result_at(self, points: Points, row: Expression) -> Expression:
        at = tuple(points[i] for i in (*self.steps.fan, self.element))
        return self.result[(*at, row)]

    def _factors(self, stem: str, positions: tuple[int, ...]) -> _Factors | None:
        """Room for the product of operands, if there are any."""
        if not positions:
            return None
        spans = [self.schedule.spans[self.schedule.rows[0][k]] for k in positions]
        joint = dict.fromkeys(i for span in spans for i in span)
        indices = tuple(i for i in joint if i != self.element)
        # elements last: lanes of neighbouring elements read neighbours
        array = self.shared(stem, indices, (self.tiles.elements,))
        return _Factors(positions, indices, array)

    def _element(self, block: Expression, half: Expression) -> Expression:
        """A lane's element in its tile."""
        first = self.tiles.height * self.along
        return self.warp_product.row_or_column(first, ROWS, block, half)

    def _matrix_row(self, block: Expression, column: Expression) -> Expression:
        first = self.tiles.width * self.across
        return p.Sum((first, COLUMNS * block, column))

    def _existing(self, row: Expression) -> Expression:
        """A row of the matrix, or the last one for those that idle."""
        tiles = self.tiles
        if tiles.width * tiles.across == tiles.n_rows:
            return row
        return clamped(row, tiles.n_rows)


def _sum(terms: Sequence[Expression]) -> Expression:
    return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))
