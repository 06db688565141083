"""Contractions by packed tiles, as libraries compute matrix products.

Source: Goto and van de Geijn 2008, van Zee and van de Geijn 2015 for the loops around
a register tile; Springer and Bientinesi 2018 (GETT) for tiles that span several
indices; paper, section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapreplace
from itertools import product
from math import prod

import loopy as lp

from feinsum.ir import BatchedEinsum, Extent, IndexList, SizeParam
from feinsum.raising import LoopNest
from feinsum.transforms.cost import (
    Machine,
    SizedEinsum,
    distinct_bytes,
    padding,
    points,
    region_s,
)
from feinsum.transforms.library.packed.nest import PackedNest
from feinsum.transforms.library.packed.plan import (
    Cut,
    Plan,
    Tiles,
    make_plan,
)
from feinsum.transforms.library.packed.space import space
from feinsum.transforms.matrix_roles import find_packed_roles
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters, Transform, register
from feinsum.transforms.roles import reuse

PACK_CYCLES = 1.0
"""Of an entry whose neighbours in the pack are neighbours in memory, over a vector."""

TURN_CYCLES = 0.75
"""Of an entry that is brought to its place by squares, or alone."""

MANY_PANELS, LINE_CYCLES, SPLIT_LINE_CYCLES = 32, 0.5, 2.0
"""Of an entry that is packed into one of many panels in turns; more where a line of a
cache holds entries of two turns, since it leaves the first level between them.
"""

TILE_CYCLES = 20.0
"""To begin a register tile, beside loads and stores of its sums."""

SCATTERED_CYCLES = 3.0
"""To store an entry of a vector whose entries lie apart."""

RUN_BYTES = 1024
"""A shorter run of neighbouring entries does not reach the full bandwidth."""

READ_RUN_CYCLES, STORE_RUN_CYCLES, FAR_RUN_CYCLES = 30.0, 30.0, 90.0
"""Of such a run in a large array: to read it, to store it, and to store it if the next
row of a register tile is on another page. Chosen by trials of 49 workloads on a Zen 5.
"""

PAGE_BYTES, LINE_BYTES = 4096, 64

STREAMED_SHARE = 0.5
"""Of the last-level cache: smaller results are better off in it than stored past it."""

CACHED_STORE, STREAMED_STORE, NEEDLESS_STREAM = 1.7, 1.0, 3.0
"""Bytes moved for a byte of the result: a store to the caches also reads the line."""

LATENCY_CYCLES = 5.0
"""Of a multiply-add, which the next one to the same sum waits for, and of a step of the
loop. With vectors of four doubles, eight sums would be just enough for four cycles; of
the 201 packaged facts with such vectors 27 have eight sums, and 140 have twelve.
"""

MANY_VECTORS, MANY_VECTORS_FACTOR = 4, 1.25
"""Tiles of five vectors were a quarter slower than their multiply-adds with gcc 12."""

ROW_BYTES = 96.0
"""Of the rows of a tile that are read in a cycle for which multiply-adds wait."""

L2_SHARE, OVERFLOW_FACTOR = 0.7, 1.04
"""Of steps whose packs take more than that share of the second-level cache. These, the
panels and the rows were chosen by 30 recipes each of 14 workloads on a Zen 5.
"""

CALL_CYCLES = 300.0
"""To begin a tile in the caches."""

MANY_AREAS = 16
"""Areas for each core; with more, it matters little that they are not equal."""


def packed_cost(
    einsum: BatchedEinsum, parameters: Parameters, machine: Machine
) -> float:
    """Seconds of :func:`packed_contraction`, each tile padded to its size."""
    work = _Work.of(einsum, parameters, machine)
    n_rows = einsum.batch_size
    n_areas = work.n_wide * work.n_high * work.batch
    cycles = n_rows * (work.multiply_cycles + work.pack_cycles + work.store_cycles)
    read, written = distinct_bytes(einsum)
    is_streamed = parameters.get("stores") == "streamed"
    moved = _moved(is_streamed, written, machine)
    return region_s(
        machine,
        cycles + CALL_CYCLES * n_areas * work.n_deep,
        read + n_rows * work.again_bytes + moved * written,
        n_groups=n_areas,
        idle=work.idle,
        footprint=read + written,
    )


def _moved(is_streamed: bool, written: int, machine: Machine) -> float:
    """Bytes moved for a byte of the result."""
    if not is_streamed:
        return CACHED_STORE
    is_large = written > STREAMED_SHARE * machine.cache_bytes["L3"]
    return STREAMED_STORE if is_large else NEEDLESS_STREAM


@dataclass(frozen=True)
class _Work:
    """What one row of an einsum takes in packed tiles.

    Attributes:
        columns, rows, summed: entries of each kind of index; ``batch`` those around.
    """

    einsum: BatchedEinsum
    plan: Plan
    tiles: Tiles
    is_row_inside: bool
    machine: Machine
    columns: int
    rows: int
    summed: int
    batch: int

    @classmethod
    def of(
        cls, einsum: BatchedEinsum, parameters: Parameters, machine: Machine
    ) -> _Work:
        """With as many lanes as the machine has, and more vectors instead."""
        wanted = Tiles.of(parameters)
        lanes = min(wanted.lanes, machine.lanes(einsum.operands[0].dtype))
        tiles = replace(
            wanted, lanes=lanes, vectors=wanted.vectors * wanted.lanes // lanes
        )
        roles = find_packed_roles(einsum, tiles.vector, tiles.register)
        assert roles is not None
        batch = (*roles.batch, *roles.outer)
        return cls(
            einsum,
            make_plan(einsum, _at_build_time(einsum), roles, tiles),
            tiles,
            parameters["inside"] == "rows",
            machine,
            columns=points(einsum, roles.columns),
            rows=points(einsum, roles.rows),
            summed=points(einsum, roles.summed),
            batch=points(einsum, batch),
        )

    @property
    def itemsize(self) -> int:
        return self.einsum.operands[0].dtype.itemsize

    @cached_property
    def n_wide(self) -> int:
        """Tiles over the columns, which are about equally wide."""
        return self._n_tiles(self.plan.columns)

    @cached_property
    def n_high(self) -> int:
        """Tiles over the rows."""
        return self._n_tiles(self.plan.rows)

    @cached_property
    def n_deep(self) -> int:
        """Tiles over the sum."""
        return self._n_tiles(self.plan.summed)

    def _n_tiles(self, cuts: Iterable[Cut]) -> int:
        return prod(-(-self._points((cut.index,)) // cut.size) for cut in cuts)

    @property
    def idle(self) -> float:
        """The work of the busiest core over that of all on average.

        Cores take areas, some of which are at the end of an index and smaller, one
        after the other.
        """
        n_cores = self.machine.n_cores
        sides = (*self.plan.columns, *self.plan.rows)
        n_areas = self.batch * self._n_tiles(sides)
        if n_areas > MANY_AREAS * n_cores:
            return 1 + n_cores / n_areas / 2
        lengths = [_lengths(self._points((cut.index,)), cut.size) for cut in sides]
        busy = [0.0] * n_cores
        for area in [*map(prod, product(*lengths))] * self.batch:
            heapreplace(busy, busy[0] + area)
        return max(busy) * n_cores / sum(busy)

    @property
    def multiply_cycles(self) -> float:
        """Multiply-adds in registers, with the loads and stores of their sums."""
        tiles = self.tiles
        n_vectors, n_rows, unit = tiles.vectors, tiles.rows, tiles.vectors * tiles.lanes
        wide = self.columns * padding(self._points((tiles.vector,)), unit)
        high = self.rows * padding(self._points((tiles.register,)), n_rows)
        each = self.machine.fma_cycles(tiles.lanes * self.itemsize)
        # Whatever is slowest: the multiply-adds, the loads of a column and of the rows
        # (two a cycle), or each sum waiting for its previous addition.
        step = max(
            n_rows * n_vectors * each, n_vectors * each + n_rows / 2, LATENCY_CYCLES
        )
        if n_vectors > MANY_VECTORS:
            step *= MANY_VECTORS_FACTOR
        # A register for each sum, one for each vector of the column, one for a row's
        # entry; each of the rest is stored and loaded in every step.
        n_registers = 32 if self.machine.vector_bytes >= 64 else 16
        spilled = max(0, n_rows * n_vectors + n_vectors + 1 - n_registers)
        # Rows come from the second level, which multiply-adds hide only in part.
        step += n_rows * self.itemsize / ROW_BYTES
        if self._packed_bytes > self.machine.cache_bytes["L2"] * L2_SHARE:
            step *= OVERFLOW_FACTOR
        per_tile = self.summed * (step + 2 * spilled)
        per_tile += self.n_deep * (TILE_CYCLES + 3 * n_rows * n_vectors)
        postponed = self._points(self.plan.roles.postponed)
        return self.batch * postponed * per_tile * wide * high / (unit * n_rows)

    @property
    def _packed_bytes(self) -> int:
        """Of both packs of an area."""
        plan = self.plan
        width, height, depth = (
            prod(min(cut.size, self._points((cut.index,))) for cut in cuts)
            for cuts in (plan.columns, plan.rows, plan.summed)
        )
        return self.itemsize * depth * (width + height)

    @property
    def pack_cycles(self) -> float:
        """Each side is packed once for each tile of the other."""
        roles, tiles = self.plan.roles, self.tiles
        right = self._pack_cycles(roles.right, tiles.vector)
        left = sum(self._pack_cycles(k, tiles.register) for k in roles.left)
        entries = right * self._right * self.n_high + left * self._left * self._n_left
        return self.batch * entries

    @property
    def again_bytes(self) -> float:
        """That are read after the first time."""
        again = self._right * (self.n_high - 1) + self._left * (self._n_left - 1)
        return self.batch * again * self.itemsize

    @property
    def _n_left(self) -> int:
        """How often the left side is packed."""
        return self.n_wide if self.is_row_inside else 1

    @property
    def _right(self) -> int:
        """Entries of the right side, for one value of the batch."""
        return self.columns * self.summed * self._points(self.plan.roles.postponed)

    @property
    def _left(self) -> int:
        return self.rows * self.summed * self._points(self.plan.roles.folded)

    def _points(self, indices: Names) -> int:
        return points(self.einsum, indices)

    def _pack_cycles(self, position: int, index: str) -> float:
        """Of an entry of an operand that is packed along ``index``."""
        term = self.einsum.inputs[position]
        is_along = term[-1:] == (index,)  # a scalar has no last index
        tiles = self.tiles
        width = tiles.lanes if index == tiles.vector else min(tiles.rows, tiles.lanes)
        cycles = PACK_CYCLES * 2 / width if is_along else TURN_CYCLES
        if is_along and index == tiles.register:
            height = min(self.plan.cuts[index].size, self._points((index,)))
            n_panels = height / tiles.rows
            is_split = tiles.rows * self.itemsize % LINE_BYTES > 0
            if n_panels > MANY_PANELS:
                cycles += SPLIT_LINE_CYCLES if is_split else LINE_CYCLES
        return cycles + READ_RUN_CYCLES * self._runs(term)

    @property
    def store_cycles(self) -> float:
        """Results, in vectors if these lie along their last axis."""
        output, tiles = self.einsum.output, self.tiles
        is_along = tiles.vector == output[-1]
        cycles = 2.0 / tiles.lanes if is_along else SCATTERED_CYCLES
        after = output[output.index(tiles.register) + 1 :]
        is_far = self._points(after) * self.itemsize > PAGE_BYTES
        cycles += (FAR_RUN_CYCLES if is_far else STORE_RUN_CYCLES) * self._runs(output)
        return self._points(output) * cycles

    def _runs(self, term: IndexList) -> float:
        """Short runs per entry of an array that a tile reads in part.

        None for an array that stays in the second-level cache.
        """
        run = 1
        for index in reversed(term):
            extent = self._points((index,))
            cut = self.plan.cuts.get(index)
            size = min(cut.size, extent) if cut and cut.levels else 1
            run *= size
            if size < extent:
                break
        is_near = self._points(term) * self.itemsize <= self.machine.cache_bytes["L2"]
        return 0.0 if is_near or run * self.itemsize >= RUN_BYTES else 1 / run


def _at_build_time(einsum: BatchedEinsum) -> Mapping[str, Extent]:
    """The extents that the kernel is built with."""
    unknown = einsum.at_run_time if isinstance(einsum, SizedEinsum) else frozenset()
    return {
        index: SizeParam(f"n_{index}") if index in unknown else n
        for index, n in einsum.extents.items()
    }


def _lengths(extent: int, size: int) -> list[int]:
    """Of the tiles of an index.

    >>> _lengths(1000, 384)
    [384, 384, 232]
    """
    whole, rest = divmod(extent, size)
    return [size] * whole + [rest] * (rest > 0)


MIN_REUSE = 16
"""Of einsums for which families without packing are not worth a trial."""


def packed_contraction(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Pack tiles of both operands and multiply them by register tiles.

    Rewrite, for ``ac,cb->ab`` with the vector index b and the register index a::

        for a, b:  out[a,b] = sum(c, A[a,c]*B[c,b])

        for b_tile, a_tile in parallel:
            sums[...] = 0
            for c_tile:
                B_pack[panel,c,v,:] = B(...)          # 0 outside of the array
                A_pack[block,c,r] = A(...)
                for panel, block:                     # r < rows, v < vectors unrolled
                    tile[r,v,:] = sums[panel,block,r,v,:]
                    for c:
                        tile[r,v,:] += A_pack[block,c,r]*B_pack[panel,c,v,:]
                    sums[panel,block,r,v,:] = tile[r,v,:]
            out[...] = sums[...]

    Tiles span as many indices as needed to fill them. If one tile holds the whole sum,
    a finished register tile is stored at once.

    With more than two operands, some are multiplied while packing, others into the
    sums, whichever takes the fewest operations; see :class:`PackedNest`.

    Parameters:
        vector: output index of one operand alone, which is packed on the right; its
            entries are lanes.
        register: output index of the operands packed on the left.
        lanes: entries of a vector.
        vectors: vectors of a register tile.
        rows: rows of a register tile.
        inside: the inner loop over register tiles, ``rows`` or ``columns``.
        width: entries of a tile over the output indices of the right side.
        height: entries of a tile over those of the left side.
        depth: entries of a tile over the summed indices.
        stores: ``cached``, or ``streamed`` past the caches.
    """
    return _packed(t_unit, nest, parameters, is_explicit=True)


def _packed(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    parameters: Parameters,
    *,
    is_explicit: bool,
) -> lp.TranslationUnit:
    schedule = begin(t_unit, nest)
    tiles = Tiles.of(parameters)
    roles = find_packed_roles(nest.einsum, tiles.vector, tiles.register)
    assert roles is not None
    plan = make_plan(nest.einsum, schedule.extents, roles, tiles)
    nest_writer = PackedNest(
        schedule,
        plan,
        is_row_inside=parameters["inside"] == "rows",
        is_streamed=parameters["stores"] == "streamed",
        is_explicit=is_explicit,
    )
    return nest_writer.written().t_unit


def packed_contraction_2(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """The same for recipes recorded when compilers chose what to hold in registers."""
    return _packed(t_unit, nest, parameters, is_explicit=False)


register(
    Transform(
        "packed_contraction",
        2,
        "operands packed in tiles, as before vectors were held in registers",
        space,
        packed_contraction_2,
    )
)

PACKED_CONTRACTION = register(
    Transform(
        "packed_contraction",
        3,
        "operands packed in tiles over several indices, multiplied in registers",
        space,
        packed_contraction,
        packed_cost,
    )
)


def suits_packing(einsum: BatchedEinsum) -> bool:
    """Whether only this family is worth a trial."""
    return PACKED_CONTRACTION.fits(einsum) and reuse(einsum) >= MIN_REUSE
