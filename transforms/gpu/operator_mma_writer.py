"""Writes the loops of a product of elements by a matrix, on tensor cores.

A group multiplies ``turns`` tiles of ``elements`` one after another. A tile moves from
global memory to registers while the previous tile is multiplied. Then it moves to
shared memory, where the warps of the group read it in fragments::

    global memory      u[e, 0..34]               rows of 35 terms, say, of each element
         |  all work-items, neighbours along the terms (``partition_raggedly``)
    registers          ahead[steps]              a few entries of each work-item
         |  scaled by factors of the element; barrier
    shared memory      tile[32][36]              an odd multiple of 4 between elements
         |  fragments of 16 elements and 4 terms
    tensor cores       sums of 32 elements and 8 rows of the matrix, for each warp

For the gradient ``xre,rij,ej->xei``, the matrix D is the right factor. Each warp loads
its part once, and keeps it in registers. The elements are rows of the left factor::

    acc[r][e, i] += tile[e, j] @ D[r][i, j].T        (a warp: height e, width i)
    result[x][e, i] = sum(r, J[x,r,e] * acc[r][e, i])

Elements are in blocks of 16 down, rows i of the matrix in blocks of 8 across; see
:mod:`feinsum.transforms.gpu.fragments` for what each lane holds. The time line of a
turn, with ``ahead``::

    settle   registers of this turn's tile -> shared memory, times the early factors
    load     the next tile -> registers           (global memory answers during `mma`)
    barrier
    mma      fragments of the tile @ fragments of the matrix
    share    sums times the late factors -> shared memory
    barrier
    store    results -> global memory, in their order there

If the streamed operand is a function of arrays, such as ``0.5*(a[f,e,j] + b[f,e,j])``
for both sides of a face, `load` would wait for the arrays to evaluate it. So entries
are copied without registers, after the barrier, each to a place of its own in shared
memory, and `settle` evaluates the function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from pymbolic import primitives as p
from pymbolic import var
from pytools.tag import Tag

from feinsum.targets.cuda.code import LeastGroups, OrderedLoads
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.fragments import (
    DOUBLE,
    HALVES,
    INTERLEAVED,
    INTERLEAVED_SUM_COLUMN,
    QUAD,
    ZERO,
    WarpProduct,
)
from feinsum.transforms.gpu.layouts import Share, clamp, partition_raggedly
from feinsum.transforms.gpu.operator_steps import OperatorSteps, OperatorTiles
from feinsum.transforms.gpu.sources import Reads, find_reads, find_source
from feinsum.transforms.gpu.tiles import GroupWriter, Point, express_extent
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.copy_async import (
    COPIES,
    AsyncCopy,
    await_groups,
    close_group,
    copy_async,
)
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    PRODUCTS,
    ROWS,
    WARP,
)
from feinsum.transforms.primitives.schedule import Expression, Names, multiply_rules


class _Factors(NamedTuple):
    """A product of operands for each element, in shared memory.

    Attributes:
        positions: positions of the operands.
        indices: their indices, except for the element.
        array: the shared array.
    """

    positions: tuple[int, ...]
    indices: Names
    array: Expression

    def at(self, points: Point, element: Expression) -> Expression:
        return self.array[(*(points[i] for i in self.indices), element)]


class _CopiedFunction(NamedTuple):
    """A function of array entries, which each work-item copies to a place of its own.

    Attributes:
        reads: the function.
        arrays: the shared arrays of the copies of each entry, with an axis for the
            work-items.
        item: number of the work-item.
    """

    reads: Reads
    arrays: Names
    item: Expression

    def list_entries(self, subscripts: Sequence[Expression]) -> list[p.Subscript]:
        """Return the copies of the entries at one step of a work-item."""
        return [var(array)[(*subscripts, self.item)] for array in self.arrays]


class _StagedPart(NamedTuple):
    """Entries that pass through registers on their way to shared memory.

    Attributes:
        operands: the operands whose product is staged.
        outer: indices of unrolled loops.
        slow, fast: the other indices, distributed to work-items; neighbours differ in
            the fast ones.
        array: the array in registers.
        copied: the function that is evaluated later, on copies of the entries that it
            reads; None if operands are evaluated at the load.
    """

    operands: Names
    outer: Names
    slow: Names
    fast: Names
    array: str
    copied: _CopiedFunction | None = None

    def at(self, *subscripts: Expression) -> Expression:
        """Return a value that has been loaded."""
        if self.copied is None:
            return var(self.array)[subscripts]
        return self.copied.reads.value(self.copied.list_entries(subscripts))


class _TileStart(NamedTuple):
    """The scalar that holds the first element of a tile.

    Attributes:
        loops: the loops in which it is assigned.
        name: its name.
        insn_id: id of the statement that computes it.
    """

    loops: Names
    name: str
    insn_id: str


class _Entries(NamedTuple):
    """A work-item's entries of a tile.

    Attributes:
        loops: unrolled loops over them.
        points: the value of each index; elements are counted within their tile.
        points_of_all: the same, but elements are counted from the first of all.
        inside: conditions that the tile has the entry, and no other work-item has it.
        exists: the same, and that the element exists.
        after: ids of the statements that compute these values.
    """

    loops: Names
    points: Point
    points_of_all: Point
    inside: tuple[Expression, ...]
    exists: tuple[Expression, ...]
    after: Names


RowParts: TypeAlias = tuple[_StagedPart, list[tuple[_Factors, _StagedPart]]]
"""The staged part of the streamed operand, and those of factors to be loaded."""


class OperatorMmaWriter(GroupWriter):
    """Writes the loops; see :func:`feinsum.transforms.gpu.operator_mma`.

    Args:
        has_early_loads: whether loads stay before the barrier that follows them.

    Attributes:
        around: loops over the groups and their work-items.
        loops: the same, and the loop over turns.
        now: the start of the tile of a turn.
        down: the number of the warp's block of elements.
        across: the number of the warp's block of rows of the matrix.
        shared_accesses: ids of the statements that read or write shared memory.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: OperatorSteps,
        tiles: OperatorTiles,
        *,
        has_early_loads: bool,
    ) -> None:
        super().__init__(schedule, steps.element, tiles.elements)
        self.steps, self.tiles, self.has_early_loads = steps, tiles, has_early_loads
        self.extent = schedule.extents[steps.element]
        of_group, of_tile = tiles.elements * tiles.turns, tiles.elements
        group = self.loop("group", f"{of_group}*{{}} < {self.extent}", tag="g.0")
        warp = self.loop("warp", size=tiles.n_warps, tag="l.1")
        lane = self.loop("lane", size=WARP, tag="l.0")
        self.around = (group, warp, lane)
        # the last group may have fewer turns, and its last tile fewer elements
        within = f"{of_group}*{group} + {of_tile}*{{}} < {self.extent}"
        turn = self.loop("turn", within, size=tiles.turns)
        self.loops = (*self.around, turn)
        self.first = of_group * var(group)
        self.now = self._assign_start(
            p.Sum((self.first, of_tile * var(turn))), self.loops
        )
        number = p.Sum((var(lane), WARP * var(warp)))
        self.item, self.numbered = self.scalar("number", number, self.around)
        self.n_items = WARP * tiles.n_warps
        self.down = p.FloorDiv(var(warp), tiles.across)
        self.across = p.Remainder(var(warp), tiles.across)
        self.product = WarpProduct(self, lane, tiles.height, tiles.width, tiles.terms)
        self.rows, self.terms = self.flat(steps.rows), self.flat(steps.contracted)
        self.shared_accesses: list[str] = []
        self.settled_factors: list[str] = []
        self._partitions: dict[tuple[int, int], tuple[list[Share], Names]] = {}
        self._left: dict[tuple[Expression, str], tuple[str, str]] = {}
        self._copies: dict[tuple[tuple[int, ...], int], Names] = {}

    def written(self) -> Schedule:
        """Return the schedule with the nest replaced."""
        steps, tiles, schedule = self.steps, self.tiles, self.schedule
        self.tile = self._declare_shared("tile", (), (tiles.elements, tiles.stride))
        self.scales = self._declare_factors("scales", tiles.scaling)
        self.factors = self._declare_factors("factors", steps.late)
        shape = (tiles.elements, tiles.row_stride)
        self.result = self._declare_shared("result", steps.fan, shape)
        self.matrices = {
            name: self._load_matrix(name)
            for name in dict.fromkeys(row[steps.matrix] for row in schedule.rows)
        }
        parts_of_rows = [self._list_parts(k) for k in range(len(schedule.rows))]
        before = [self._zero_padding()] if tiles.depth > tiles.n_terms else []
        loads: list[str] = []
        if tiles.is_ahead:
            start = self._assign_start(self.first, self.around)
            loads = [
                *self._load_parts(parts_of_rows[0], start, before),
                *self._copy_parts(parts_of_rows[0], start, before),
            ]
        for k in range(len(schedule.rows)):
            if not tiles.is_ahead:
                loads = self._load_parts(parts_of_rows[k], self.now, before)
            settled = self._settle_parts(parts_of_rows[k], [*loads, *before])
            settled, loads = self._await_tile(parts_of_rows, k, settled)
            before = self._write_row(k, [*settled, *loads])
        self.note_ordered(*self.shared_accesses)
        self.note_apart(*self.shared_accesses)
        schedule = self.build().with_preamble(PRODUCTS)
        if self._copies:
            schedule = schedule.with_preamble(COPIES)
        tags: set[Tag] = {LeastGroups(tiles.groups)}
        if self.has_early_loads:
            tags |= {OrderedLoads()}
        return schedule.with_kernel(tags=schedule.kernel.tags | tags)

    def _await_tile(
        self, parts_of_rows: Sequence[RowParts], k: int, settled: list[str]
    ) -> tuple[list[str], list[str]]:
        """Wait for full tiles; load the next ones before or after the barrier."""
        if not self.has_early_loads:
            settled = [*settled, self.barrier(self.loops, settled)]
        loads: list[str] = []
        if self.tiles.is_ahead:
            row_parts, start = self._get_next(parts_of_rows, k)
            loads = self._load_parts(row_parts, start, settled)
        if self.has_early_loads:
            # the compiler cannot move the loads past this barrier, into the product
            settled = [*settled, self.barrier(self.loops, [*settled, *loads])]
        if self.tiles.is_ahead:
            # after the barrier, as copies overwrite what was read before it
            loads += self._copy_parts(row_parts, start, settled)
        return settled, loads

    def _write_row(self, k: int, after: Sequence[str]) -> list[str]:
        """Multiply and store a row; return the ids of the last barrier and before."""
        matrix = self.matrices[self.schedule.rows[k][self.steps.matrix]]
        shared = self._share_result(*self._multiply(matrix, after), after)
        # lanes store results of other lanes
        before = [self.barrier(self.loops, [shared]), shared]
        output_part = _StagedPart((), (), (self.element,), self.steps.rows, "")
        entries = self._loop_over_entries(output_part, self.now)
        inames, fan = self.loop_over(self.steps.fan, "unr")
        points = {**entries.points, **fan}
        stored = self.store(
            k, self._get_result_entry(points, self.rows.ravel(points)),
            {**entries.points_of_all, **fan}, [*self.loops, *inames, *entries.loops],
            [*before, *entries.after], predicates=entries.exists,
        )  # fmt: skip
        self._note_shared(stored)
        return before

    def _list_parts(self, k: int) -> RowParts:
        """Return the parts of a row that are not yet in shared memory."""
        rows = self.schedule.rows
        new_factors = []
        for factors in (self.scales, self.factors):
            if factors is None:
                continue
            names = [tuple(row[n] for n in factors.positions) for row in rows]
            # factors that all rows share are loaded with the first row
            if k == 0 or len({*names}) > 1:
                new_factors.append((factors, self._stage(names[k])))
        streamed = self._stage((rows[k][self.tiles.streamed],), self.steps.gathered)
        return self._with_copies(streamed), new_factors

    def _with_copies(self, part: _StagedPart) -> _StagedPart:
        """Copy the entries that a function reads, to evaluate it after the product.

        The evaluation at a load would wait for it, and so keep it from overlapping with
        the product. Copies take no registers.
        """
        tiles, (operand,) = self.tiles, part.operands
        reads = find_reads(self.schedule, operand)
        is_plain = find_source(self.schedule, operand) is not None
        if reads is None or is_plain or not (tiles.is_ahead and self.has_early_loads):
            return part
        shape = (*self._arrays[part.array].shape, self.n_items)
        n_bytes = 8 * (tiles.n_shared + prod(shape) * len(reads.sources))
        # two groups are enough to wait for copies and barriers in turns
        if min(tiles.groups, 2) * n_bytes > h.SHARED_BYTES_SM80:
            return part
        del self._arrays[part.array]
        # the rows of a batch are copied one after another
        key = shape, len(reads.sources)
        if key not in self._copies:
            self._copies[key] = tuple(
                self.array("ahead", shape, DOUBLE, is_shared=True)
                for _ in reads.sources
            )
        copied = _CopiedFunction(reads, self._copies[key], var(self.item))
        return part._replace(copied=copied)

    # which entries a work-item takes

    def _stage(self, operands: Names, outside: Names = ()) -> _StagedPart:
        """Distribute elements, and the indices after the element, to work-items.

        If the element is the last index, the indices before it are distributed instead.
        """
        spans = [self.schedule.spans[name] for name in operands]
        # the order of the largest operand: its reads should be contiguous
        largest = max(spans, key=self.volume)
        indices = tuple(i for i in largest if i not in outside)
        other_indices = dict.fromkeys(
            i for span in spans for i in span if i not in indices
        )
        axis = indices.index(self.element)
        outer, slow, fast = (
            indices[:axis],
            indices[axis : axis + 1],
            indices[axis + 1 :],
        )
        if not fast:
            outer, slow, fast = (), outer, slow
        outer = (*other_indices, *outer)
        steps = (share.n for share in self._partition(slow, fast)[0])
        array = self.array("ahead", (*map(self.length, outer), *steps), DOUBLE)
        return _StagedPart(operands, outer, slow, fast, array)

    def _assign_start(
        self, value: Expression, loops: Names, after: Names = ()
    ) -> _TileStart:
        """Assign the first element of a tile to a scalar."""
        return _TileStart(loops, *self.scalar("start", value, loops, after))

    def _loop_over_entries(self, part: _StagedPart, start: _TileStart) -> _Entries:
        """Loop over a work-item's entries of a tile."""
        axes, after = self._partition(part.slow, part.fast)
        loops: list[str] = []
        inside: list[Expression] = []
        points: dict[str, Expression] = {}
        exists: Expression = 1
        for indices, share in zip((part.slow, part.fast), axes, strict=True):
            step = self.unroll(share.n)
            loops.append(step)
            value, size = share.at(var(step)), self.volume(indices)
            if share.limit > size:
                inside.append(p.Comparison(value, "<", size))
            points |= self.flat(indices).unravel(value)
            if self.element in indices:
                n_left, counted = self._count_elements_left(share, start, after)
                exists = p.Comparison(share.stride * var(step), "<", var(n_left))
        if axes[0].is_idle:
            # these items would load and store rows that other items have
            inside.append(p.Comparison(axes[0].first, "<", axes[0].stride))
        element = p.Sum((var(start.name), points[self.element]))
        return _Entries(
            (*loops,), points, {**points, self.element: element}, (*inside,),
            (*inside, exists), (*after, start.insn_id, counted),
        )  # fmt: skip

    def _count_elements_left(
        self, share: Share, start: _TileStart, after: Names
    ) -> tuple[str, str]:
        """Count the elements from a work-item's first one on, at most a tile.

        This number takes one register and one comparison. A comparison of the element
        itself, of 64 bits, would take an addition and two of each.
        """
        key = share.first, start.name
        if key not in self._left:
            first = p.Sum((var(start.name), share.first))
            n_left = p.Sum((express_extent(self.extent), -1 * first))
            n = self.tiles.elements
            n_left = p.If(p.Comparison(n_left, "<", n), n_left, n)
            array = self.array("left", (), np.dtype(np.int32))
            before = (*after, start.insn_id)
            counted = self.assign("left", var(array), n_left, start.loops, before)
            self._left[key] = array, counted
        return self._left[key]

    def _partition(self, slow: Names, fast: Names) -> tuple[list[Share], Names]:
        """Distribute indices to work-items; return their shares and statement ids."""
        key = self.volume(slow), self.volume(fast)
        # parts of one shape share the scalars of their starts
        if key not in self._partitions:
            axes = partition_raggedly(*key, self.n_items, var(self.item))
            self._partitions[key] = self.hold_starts(
                axes, self.around, (self.numbered,)
            )
        return self._partitions[key]

    # loads of the matrix, the tiles and the factors

    def _load_matrix(self, name: str) -> tuple[str, str]:
        """Load the right fragments of a matrix to registers; return array and id.

        Their columns are interleaved: of eight rows of the matrix, the two in the sums
        of a lane are four apart, and neighbouring lanes have neighbouring rows; see
        :data:`feinsum.transforms.gpu.fragments.INTERLEAVED`.
        """
        tiles = self.tiles
        loops, points = self.loop_over(self.steps.deferred, "unr")
        shape = (
            tiles.width // COLUMNS, tiles.depth // tiles.terms, tiles.terms // QUAD
        )  # fmt: skip
        inames = [self.unroll(n) for n in shape]
        block, step, quad = map(var, inames)
        term = self.product.term(step, quad)
        row = self._compute_matrix_row(block, INTERLEAVED.at(self.product.g))
        points |= self._unravel_row(row)
        # The last instruction may have terms beyond the matrix. They must not be read,
        # and must be zero: NaN times the zeros of the tile would be NaN.
        is_padded = tiles.depth > tiles.n_terms
        existing = clamp(term, tiles.n_terms) if is_padded else term
        points |= self.terms.unravel(existing)
        value = multiply_rules(self.schedule, (name,), points)
        if is_padded:
            value = p.If(p.Comparison(term, "<", tiles.n_terms), value, ZERO)
        lengths = tuple(map(self.length, self.steps.deferred))
        array = self.array("matrix", (*lengths, *shape), DOUBLE)
        loops = [*loops, *inames]
        entry = var(array)[tuple(map(var, loops))]
        return array, self.assign("load", entry, value, [*self.around, *loops])

    def _zero_padding(self) -> str:
        """Zero the padding terms of a tile, which fill the last instruction.

        Once before the first turn is enough: tiles are not written there.
        """
        tiles = self.tiles
        n = tiles.depth - tiles.n_terms
        n_entries = n * tiles.elements
        step = self.unroll(-(-n_entries // self.n_items))
        number = p.Sum((var(self.item), self.n_items * var(step)))
        entry = self.tile[
            p.FloorDiv(number, n), p.Sum((tiles.n_terms, p.Remainder(number, n)))
        ]
        return self._note_shared(
            self.assign(
                "pad", entry, ZERO, [*self.around, step], [self.numbered],
                predicates=[p.Comparison(number, "<", n_entries)],
            )
        )  # fmt: skip

    def _get_next(
        self, parts_of_rows: Sequence[RowParts], k: int
    ) -> tuple[RowParts, _TileStart]:
        """Return the parts of the next row, or of the first row of the next turn."""
        if k + 1 < len(parts_of_rows):
            return parts_of_rows[k + 1], self.now
        first = p.Sum((var(self.now.name), self.tiles.elements))
        start = self._assign_start(first, self.loops, (self.now.insn_id,))
        return parts_of_rows[0], start

    def _load_parts(
        self, row_parts: RowParts, start: _TileStart, before: Collection[str]
    ) -> list[str]:
        """Load all of a work-item's parts to registers; it then waits only once."""
        streamed, factor_parts = row_parts
        return [
            self._load_part(part, start, before)
            for part in (*(part for _, part in factor_parts), streamed)
            if part.copied is None
        ]

    def _load_part(
        self, part: _StagedPart, start: _TileStart, before: Collection[str]
    ) -> str:
        """Load a work-item's entries to registers; zero beyond the last element."""
        entries, loops, points = self._visit(part, start)
        value = multiply_rules(self.schedule, part.operands, points)
        return self.assign(
            "load", var(part.array)[tuple(map(var, loops))],
            # zeros in place of elements that do not exist add nothing to any sum
            p.If(p.LogicalAnd(entries.exists), value, ZERO),
            [*start.loops, *loops], [*entries.after, *before],
        )  # fmt: skip

    def _visit(
        self, part: _StagedPart, start: _TileStart
    ) -> tuple[_Entries, Names, dict[str, Expression]]:
        """Loop over all of a work-item's entries; return the loops and the points."""
        entries = self._loop_over_entries(part, start)
        inames, outer = self.loop_over(part.outer, "unr")
        return (
            entries,
            (*inames, *entries.loops),
            {**entries.points_of_all, **outer},
        )

    def _copy_parts(
        self, row_parts: RowParts, start: _TileStart, before: Collection[str]
    ) -> list[str]:
        """Begin to copy what the function of a row reads, if it is evaluated later."""
        part, _ = row_parts
        if part.copied is None:
            return []
        entries, loops, points = self._visit(part, start)
        inside, reads = (*start.loops, *loops), part.copied.reads
        after = (*entries.after, self.numbered, *before)
        exists = p.If(p.LogicalAnd(entries.exists), 1, 0)
        n_copied, counted = self.scalar("inside", exists, inside, after)
        values = [points[i] for i in self.schedule.spans[part.operands[0]]]
        begun = []
        targets = part.copied.list_entries(tuple(map(var, loops)))
        for source, entry in zip(reads.sources, targets, strict=True):
            target, target_id = self.assign_offset(entry, inside, after)
            origin, origin_id = self.scalar("origin", source.at(values), inside, after)
            copy = AsyncCopy(
                1, (entry.aggregate.name, target), (source.array, origin), n_copied
            )
            build, ids = partial(copy_async, copy), (counted, target_id, origin_id)
            begun.append(self._note_shared(self.add("copy", build, inside, ids)))
        return [*begun, self.add("close", close_group, start.loops, begun)]

    def _settle_parts(self, row_parts: RowParts, before: list[str]) -> list[str]:
        """Move all parts of a row from registers to shared memory."""
        streamed, factor_parts = row_parts
        if streamed.copied is not None:
            wait = partial(await_groups, 0)
            before = [*before, self.add("wait", wait, self.loops, before)]
        for factors, part in factor_parts:
            entries = self._loop_over_entries(part, self.now)
            inames, outer = self.loop_over(part.outer, "unr")
            points, loops = {**outer, **entries.points}, (*inames, *entries.loops)
            settled = self.assign(
                "settle", factors.at(points, points[self.element]),
                part.at(*map(var, loops)), [*self.loops, *loops],
                [*entries.after, *before], predicates=entries.inside,
            )  # fmt: skip
            self.settled_factors.append(self._note_shared(settled))
        before = [*before, *self.settled_factors]
        # another work-item may have loaded the factors of an element
        if self.scales and any(factors is self.scales for factors, _ in factor_parts):
            before.append(self.barrier(self.loops, before))
        return [*before, self._fill(streamed, before)]

    def _fill(self, part: _StagedPart, before: Collection[str]) -> str:
        """Write the scaled streamed operand to the tile."""
        steps, entries = self.steps, self._loop_over_entries(part, self.now)
        dealt_out = {*part.slow, *part.fast}
        outer = [i for i in steps.tile if i not in dealt_out]
        inames, of_outer = self.loop_over(outer, "unr")
        points = {**of_outer, **entries.points}
        element = points[self.element]
        terms: list[Expression] = []
        # the tile lacks gathered indices: they are summed here
        for gathered in self._list_values(steps.gathered):
            term_points = {**points, **gathered}
            value = part.at(
                *(term_points[i] for i in part.outer), *map(var, entries.loops)
            )
            if self.scales:
                value = p.Product((self.scales.at(term_points, element), value))
            terms.append(value)
        return self._note_shared(
            self.assign(
                "fill",
                self.tile[element, self.terms.ravel(points)],
                _make_sum(terms),
                [*self.loops, *inames, *entries.loops],
                [*entries.after, *([self.numbered] if part.copied else []), *before],
                predicates=entries.inside,
            )
        )

    # the product

    def _multiply(
        self, matrix: tuple[str, str], filled: Sequence[str]
    ) -> tuple[str, str]:
        """Add products of fragments to a warp's sums; return their array and the id."""
        tiles, product = self.tiles, self.product
        lengths = tuple(map(self.length, self.steps.deferred))
        acc, zero = product.clear_sums(lengths, self.loops, filled)
        step = self.unroll(tiles.depth // tiles.terms)

        def of_tile(
            block: Expression, quad: Expression, half: Expression
        ) -> Expression:
            return self.tile[
                self._compute_element(block, half), product.term(var(step), quad)
            ]

        shape = (tiles.height // ROWS, tiles.terms // QUAD, HALVES)
        left, loaded = product.load_fragments(
            "elements", shape, of_tile, [*self.loops, step], filled
        )
        self._note_shared(loaded)
        # one left fragment serves all values of the deferred indices, whose loops are
        # therefore innermost
        down, across, *inames = (self.unroll(n) for n in (*product.n_blocks, *lengths))
        outer = tuple(map(var, inames))
        return acc, product.multiply(
            (acc, tuple(inames)), left,
            (matrix[0], lambda block: (*outer, block, var(step), 0)),
            (*self.loops, step, down, across, *inames), (down, across),
            [zero, loaded, matrix[1]],
        )  # fmt: skip

    def _share_result(self, acc: str, summed: str, filled: Sequence[str]) -> str:
        """Write the sums, multiplied by the late factors, to shared memory."""
        tiles, steps = self.tiles, self.steps
        inames, points = self.loop_over(steps.fan, "unr")
        shape = (tiles.height // ROWS, HALVES, tiles.width // COLUMNS, 2)
        block = [self.unroll(n) for n in shape]
        down, half, across, e = map(var, block)
        points[self.element] = self._compute_element(down, half)
        row = self._compute_matrix_row(
            across, INTERLEAVED_SUM_COLUMN(e, self.product.t)
        )
        points |= self._unravel_row(row)
        terms: list[Expression] = []
        for late in self._list_values(steps.deferred):
            # entry [h, e] of the sums of a fragment
            of_fragment = down, across, p.Sum((2 * half, e))
            term = var(acc)[(*(late[i] for i in steps.deferred), *of_fragment)]
            if self.factors:
                factor = self.factors.at({**points, **late}, points[self.element])
                term = p.Product((factor, term))
            terms.append(term)
        loops = [*self.loops, *inames, *block]
        # the result has room for padding rows, so no lane needs a guard
        entry = self._get_result_entry(points, row)
        return self._note_shared(
            self.assign("share", entry, _make_sum(terms), loops, [summed, *filled])
        )

    # small parts

    def _declare_shared(
        self, stem: str, indices: Names, shape: tuple[int, ...]
    ) -> Expression:
        """Declare a shared array with an axis for each index, and axes of ``shape``."""
        shape = (*map(self.length, indices), *shape)
        return var(self.array(stem, shape, DOUBLE, is_shared=True))

    def _note_shared(self, insn_id: str) -> str:
        """Record an access to shared memory, for which this class writes barriers."""
        self.shared_accesses.append(insn_id)
        return insn_id

    def _list_values(self, indices: Sequence[str]) -> Iterator[dict[str, Expression]]:
        """Yield all combinations of values of indices."""
        for values in product(*(range(self.length(i)) for i in indices)):
            yield dict(zip(indices, values, strict=True))

    def _get_result_entry(self, points: Point, row: Expression) -> Expression:
        outer = tuple(points[i] for i in (*self.steps.fan, self.element))
        return self.result[(*outer, row)]

    def _declare_factors(
        self, stem: str, positions: tuple[int, ...]
    ) -> _Factors | None:
        """Declare the shared array for a product of operands, if there are any."""
        if not positions:
            return None
        spans = [self.schedule.spans[self.schedule.rows[0][k]] for k in positions]
        joint = dict.fromkeys(i for span in spans for i in span)
        indices = tuple(i for i in joint if i != self.element)
        # elements last: lanes of neighbouring elements read neighbours
        array = self._declare_shared(stem, indices, (self.tiles.elements,))
        return _Factors(positions, indices, array)

    def _compute_element(self, block: Expression, half: Expression) -> Expression:
        """Return the element of a lane, counted within the tile."""
        first = self.tiles.height * self.down
        return self.product.compute_row_or_column(first, ROWS, block, half)

    def _compute_matrix_row(self, block: Expression, column: Expression) -> Expression:
        return p.Sum((self.tiles.width * self.across, COLUMNS * block, column))

    def _unravel_row(self, row: Expression) -> dict[str, Expression]:
        """Return the point of a row of the matrix; a padding row has the last one."""
        tiles = self.tiles
        is_full = tiles.width * tiles.across == tiles.n_rows
        return self.rows.unravel(row if is_full else clamp(row, tiles.n_rows))


def _make_sum(terms: Sequence[Expression]) -> Expression:
    return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))
