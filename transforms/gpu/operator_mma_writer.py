"""Writes the loops of a product of elements with a matrix, on tensor cores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from pymbolic import primitives as p
from pymbolic import var
from pytools.tag import Tag

from feinsum.targets.cuda.code import LeastGroups, OrderedLoads
from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.gpu.operator_tiles import (
    DOUBLE,
    ZERO,
    ElementTiles,
    OperatorTiles,
    Part,
    Points,
    Start,
)
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    PRODUCTS,
    ROWS,
    FragmentProduct,
    multiply_fragments,
)
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


Parts: TypeAlias = tuple[Part, list[tuple[_Factors, Part]]]
"""What is streamed, and what else is new."""


class OperatorMmaWriter(ElementTiles):
    """Writes the loops; see :func:`feinsum.transforms.gpu.operator_mma`."""

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
        self.of_eight = p.FloorDiv(var(self.lane), 4)
        self.in_four = p.Remainder(var(self.lane), 4)
        self.rows, self.terms = self.flat(steps.rows), self.flat(steps.contracted)
        self.held: list[str] = []

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        steps, tiles, schedule = self.steps, self.tiles, self.schedule
        self.tile = self.shared("tile", (), (tiles.elements, tiles.stride))
        self.scales = self._factors("scales", tiles.scaling)
        self.factors = self._factors("factors", steps.late)
        shape = (tiles.elements, tiles.row_stride)
        self.result = self.shared("result", steps.fan, shape)
        self.matrices = {
            name: self._matrix(name)
            for name in dict.fromkeys(row[steps.matrix] for row in schedule.rows)
        }
        parts = [self._parts(k) for k in range(len(schedule.rows))]
        before = [self._padded()] if tiles.depth > tiles.n_terms else []
        loads: list[str] = []
        if tiles.is_ahead:
            loads = self._loads(parts[0], self.start_of_first(), before)
        for k in range(len(schedule.rows)):
            if not tiles.is_ahead:
                loads = self._loads(parts[k], self.now, before)
            settled = self._all_settled(parts[k], [*loads, *before])
            settled, loads = self._awaited(parts, k, settled)
            before = self._row(k, [*settled, *loads])
        self.writer.note_ordered(*self.ordered)
        self.writer.note_apart(*self.ordered)
        schedule = self.writer.finished().with_preamble(PRODUCTS)
        tags: set[Tag] = {LeastGroups(tiles.groups)}
        if self.has_early_loads:
            tags |= {OrderedLoads()}
        return schedule.with_kernel(tags=schedule.kernel.tags | tags)

    def _awaited(
        self, parts: Sequence[Parts], k: int, settled: list[str]
    ) -> tuple[list[str], list[str]]:
        """Wait until tiles are full, and load the next ones ahead; before, or after."""
        if not self.has_early_loads:
            settled = [*settled, self.writer.barrier(self.loops, settled)]
        loads = self._next_loads(parts, k, settled) if self.tiles.is_ahead else []
        if self.has_early_loads:
            # behind this barrier, the compiler cannot move the loads into the product
            barrier = self.writer.barrier(self.loops, [*settled, *loads])
            settled = [*settled, barrier]
        return settled, loads

    def _row(self, k: int, after: Sequence[str]) -> list[str]:
        """Multiply what is in shared memory, and store it; the last barrier."""
        matrix = self.matrices[self.schedule.rows[k][self.steps.matrix]]
        shared = self._shared_result(*self._product(matrix, after), after)
        before = [self.writer.barrier(self.loops, [shared]), shared]
        self._store(k, before)
        return before

    def _parts(self, k: int) -> Parts:
        """What of a row comes to shared memory, and is not there yet."""
        rows = self.schedule.rows
        found = []
        for factors in (self.scales, self.factors):
            if factors is None:
                continue
            names = [tuple(row[n] for n in factors.positions) for row in rows]
            if k == 0 or len({*names}) > 1:
                found.append((factors, self.part(names[k])))
        streamed = rows[k][self.tiles.streamed]
        return self.part((streamed,), self.steps.gathered), found

    # what comes in

    def _matrix(self, name: str) -> tuple[str, str]:
        """The array of what a lane multiplies with, and what reads it.

        Of eight rows, the ones that a lane gets in the sums are four apart: so lanes
        beside each other have rows beside each other.
        """
        writer, tiles = self.writer, self.tiles
        loops, points = self.unrolled(self.steps.kept)
        shape = (tiles.width // COLUMNS, tiles.depth // tiles.terms, tiles.terms // 4)
        inames = [writer.loop("u", size=n, tag="unr") for n in shape]
        block, step, four = map(var, inames)
        term = p.Sum((tiles.terms * step, 4 * four, self.in_four))
        column = p.Sum(
            (4 * p.Remainder(self.of_eight, 2), p.FloorDiv(self.of_eight, 2))
        )
        row = self._matrix_row(block, column)
        points |= self.rows.points(self._existing(row))
        is_padded = tiles.depth > tiles.n_terms
        limited = _clamped(term, tiles.n_terms) if is_padded else term
        points |= self.terms.points(limited)
        value = calls_product(self.schedule, (name,), points)
        if is_padded:
            value = p.If(p.Comparison(term, "<", tiles.n_terms), value, ZERO)
        kept = tuple(map(self.length, self.steps.kept))
        array = writer.array("matrix", (*kept, *shape), DOUBLE)
        loops = [*loops, *inames]
        entry = var(array)[tuple(map(var, loops))]
        return array, writer.assign("load", entry, value, [*self.around, *loops])

    def _padded(self) -> str:
        """Zero the terms of a tile that only fill the last instruction."""
        tiles, writer = self.tiles, self.writer
        n = tiles.depth - tiles.n_terms
        n_entries = n * tiles.elements
        step = writer.loop("u", size=-(-n_entries // self.n_items), tag="unr")
        at = p.Sum((var(self.item), self.n_items * var(step)))
        place = p.FloorDiv(at, n), p.Sum((tiles.n_terms, p.Remainder(at, n)))
        return self.noted(
            writer.assign(
                "pad", self.tile[place], ZERO, [*self.around, step], [self.numbered],
                predicates=[p.Comparison(at, "<", n_entries)],
            )
        )  # fmt: skip

    def _next_loads(
        self, parts: Sequence[Parts], k: int, before: Collection[str]
    ) -> list[str]:
        """Load what comes after a row: the next one, or the first of the next turn."""
        if k + 1 < len(parts):
            return self._loads(parts[k + 1], self.now, before)
        return self._loads(parts[0], self.start_of_next(), before)

    def _loads(self, parts: Parts, start: Start, before: Collection[str]) -> list[str]:
        """Have all of a work-item's parts in registers, so that it waits once."""
        streamed, others = parts
        return [
            self.loaded(part, start, before)
            for part in (*(part for _, part in others), streamed)
        ]

    def _all_settled(self, parts: Parts, before: list[str]) -> list[str]:
        """Move all from registers to shared memory."""
        streamed, others = parts
        for factors, part in others:
            self.held.append(self._settled(factors, part, before))
        before = [*before, *self.held]
        if self.scales and any(factors is self.scales for factors, _ in others):
            before.append(self.writer.barrier(self.loops, before))
        return [*before, self._filled(streamed, before)]

    def _settled(self, factors: _Factors, part: Part, before: Collection[str]) -> str:
        dealt = self.dealt(part, self.now)
        inames, points = self.unrolled(part.outer)
        points |= dealt.points
        loops = (*inames, *dealt.loops)
        return self.noted(
            self.writer.assign(
                "settle", factors.at(points, points[self.element]),
                var(part.array)[tuple(map(var, loops))], [*self.loops, *loops],
                [*dealt.after, *before], predicates=dealt.inside,
            )
        )  # fmt: skip

    def _filled(self, part: Part, before: Collection[str]) -> str:
        """Scale what is streamed, into the tile."""
        steps, dealt = self.steps, self.dealt(part, self.now)
        known = {*part.slow, *part.fast}
        outer = [i for i in steps.tile if i not in known]
        inames, points = self.unrolled(outer)
        points |= dealt.points
        element = points[self.element]
        terms: list[Expression] = []
        for more in self.values(steps.gathered):
            at = {**points, **more}
            place = (*(at[i] for i in part.outer), *map(var, dealt.loops))
            value = var(part.array)[place]
            if self.scales:
                value = p.Product((self.scales.at(at, element), value))
            terms.append(value)
        return self.noted(
            self.writer.assign(
                "fill", self.tile[element, _joined(self.terms, points)], _sum(terms),
                [*self.loops, *inames, *dealt.loops], [*dealt.after, *before],
                predicates=dealt.inside,
            )
        )  # fmt: skip

    # the product

    def _product(
        self, matrix: tuple[str, str], filled: Sequence[str]
    ) -> tuple[str, str]:
        """The array of a warp's sums, and what adds to it."""
        writer, tiles = self.writer, self.tiles
        n_blocks, n_columns = tiles.height // ROWS, tiles.width // COLUMNS
        kept = tuple(map(self.length, self.steps.kept))
        acc = writer.array("acc", (*kept, n_blocks, n_columns, 4), DOUBLE)
        every = [self.unroll(n) for n in (*kept, n_blocks, n_columns, 4)]
        zero = writer.assign(
            "zero", var(acc)[tuple(map(var, every))], ZERO, [*self.loops, *every],
            filled,
        )  # fmt: skip
        step = self.unroll(tiles.depth // tiles.terms)
        left, loaded = self._fragments(step, filled)
        b, c, *inames = (self.unroll(n) for n in (n_blocks, n_columns, *kept))
        loops = (*self.loops, step, b, c, *inames)
        at = tuple(map(var, inames))
        (sums, *one), (held, *two), (given, *three) = (
            writer.offset_scalar(entry, loops)
            for entry in (
                var(acc)[(*at, var(b), var(c), 0)],
                var(left)[var(b), 0, 0],
                var(matrix[0])[(*at, var(c), var(step), 0)],
            )
        )
        factors = (acc, sums), (left, held), (matrix[0], given)
        multiply = partial(multiply_fragments, FragmentProduct(tiles.terms, *factors))
        after = [zero, loaded, matrix[1], *one, *two, *three]
        return acc, writer.add("multiply", multiply, loops, after)

    def _fragments(self, step: str, filled: Sequence[str]) -> tuple[str, str]:
        """What a lane holds of a warp's elements for one instruction of each block."""
        writer, tiles = self.writer, self.tiles
        shape = (tiles.height // ROWS, tiles.terms // 4, 2)
        array = writer.array("elements", shape, DOUBLE)
        inames = [self.unroll(n) for n in shape]
        b, q, h = map(var, inames)
        term = p.Sum((tiles.terms * var(step), 4 * q, self.in_four))
        entry = self.tile[self._element(b, h), term]
        return array, self.noted(
            writer.assign(
                "fragment", var(array)[b, q, h], entry, [*self.loops, step, *inames],
                filled,
            )
        )  # fmt: skip

    def _shared_result(self, acc: str, summed: str, filled: Sequence[str]) -> str:
        """Multiply sums with what comes late, into shared memory."""
        tiles, steps = self.tiles, self.steps
        inames, points = self.unrolled(steps.fan)
        shape = (tiles.height // ROWS, 2, tiles.width // COLUMNS, 2)
        block = [self.unroll(n) for n in shape]
        b, h, c, e = map(var, block)
        points[self.element] = self._element(b, h)
        row = self._matrix_row(c, p.Sum((4 * e, self.in_four)))
        points |= self.rows.points(self._existing(row))
        terms: list[Expression] = []
        for kept in self.values(steps.kept):
            at = (*(kept[i] for i in steps.kept), b, c, p.Sum((2 * h, e)))
            term = var(acc)[at]
            if self.factors:
                factor = self.factors.at({**points, **kept}, points[self.element])
                term = p.Product((factor, term))
            terms.append(term)
        loops = [*self.loops, *inames, *block]
        entry = self._result_at(points, row)
        return self.noted(
            self.writer.assign("share", entry, _sum(terms), loops, [summed, *filled])
        )

    def _store(self, k: int, before: Sequence[str]) -> None:
        """Write results in the order in which they lie."""
        inames, fan = self.unrolled(self.steps.fan)
        part = Part((), (), (self.element,), self.steps.rows, "")
        dealt = self.dealt(part, self.now)
        points = {**dealt.points, **fan}
        done = self.writer.store(
            k, self._result_at(points, _joined(self.rows, points)),
            {**dealt.of_all, **fan}, [*self.loops, *inames, *dealt.loops],
            [*before, *dealt.after], predicates=dealt.exists,
        )  # fmt: skip
        self.noted(done)

    # small parts

    def _result_at(self, points: Points, row: Expression) -> Expression:
        at = tuple(points[i] for i in (*self.steps.fan, self.element))
        return self.result[(*at, row)]

    def _factors(self, stem: str, positions: tuple[int, ...]) -> _Factors | None:
        """Room for the product of operands, if there are any."""
        if not positions:
            return None
        spans = [self.schedule.spans[self.schedule.rows[0][k]] for k in positions]
        found = dict.fromkeys(i for span in spans for i in span)
        indices = tuple(i for i in found if i != self.element)
        array = self.shared(stem, indices, (self.tiles.elements,))
        return _Factors(positions, indices, array)

    def _element(self, block: Expression, half: Expression) -> Expression:
        """A lane's element in its tile."""
        first = self.tiles.height * self.along
        return p.Sum((first, ROWS * block, 8 * half, self.of_eight))

    def _matrix_row(self, block: Expression, column: Expression) -> Expression:
        first = self.tiles.width * self.across
        return p.Sum((first, COLUMNS * block, column))

    def _existing(self, row: Expression) -> Expression:
        """A row of the matrix, or the last one for those that idle."""
        tiles = self.tiles
        if tiles.width * tiles.across == tiles.n_rows:
            return row
        return _clamped(row, tiles.n_rows)


def _sum(terms: Sequence[Expression]) -> Expression:
    return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))


def _joined(flat: Flat, points: Points) -> Expression:
    """Several indices as one, the last of them the fastest."""
    value: Expression = 0
    for index, extent in zip(flat.indices, flat.extents, strict=True):
        value = points[index] if value == 0 else value * extent + points[index]
    return value


def _clamped(value: Expression, extent: Expression) -> Expression:
    """The value, or the last one below an extent."""
    return p.If(p.Comparison(value, "<", extent), value, extent - 1)
