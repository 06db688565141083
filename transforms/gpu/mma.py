"""Products in double precision on tensor cores.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA": tiles of groups, of warps, and of
instructions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf, prod

import loopy as lp
import numpy as np
from loopy.symbolic import get_dependencies
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine
from feinsum.transforms.gpu.cost import LINE_BYTES
from feinsum.transforms.gpu.grid import GPUS, MOST_ITEMS
from feinsum.transforms.gpu.shares import (
    Items,
    Points,
    Tiled,
    Turn,
    points_of,
    tile_entries,
    uneven_tile,
)
from feinsum.transforms.gpu.sides import (
    LEAST_REUSE,
    pieces_of,
    sides_of,
    staged,
    suited,
)
from feinsum.transforms.gpu.tiled_product import (
    ARGUMENTS,
    COPY_WAYS,
    TiledProduct,
    Tiles,
    tiled_s,
)
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    PRODUCTS,
    ROWS,
    WARP,
    FragmentProduct,
    multiply_fragments,
)
from feinsum.transforms.primitives.schedule import Expression, Names, Schedule
from feinsum.transforms.primitives.store_pair import STORES
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    choices,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import number, reuse, volume

SHARED_BYTES = 163 << 10
"""Of a work-group, on a GPU of sm_80; some newer ones have less, and refuse it."""

GROUPS = 1024
"""Groups up to which sums are shared."""

MOST_SHARES = 64

LEAST_TILES = 8
"""Along the summed indices, in each of several shares."""

MOST_SUMS = 64
"""Of a lane, each of two registers of 255."""


def space_1(workload: Workload) -> Table | None:
    einsum = workload.einsum
    is_product = sides_of(einsum, einsum.extents) is not None
    if not is_product or not is_double(einsum) or reuse(einsum) < LEAST_REUSE:
        return None
    return {
        "across": (64, 128, 32),
        "along": (64, 128, 32),
        "depth": (16, 8, 32),
        "columns": (32, 16, 64, 8),
        "rows": (32, 64, 16),
        "terms": (8, 16, 4),
        "stages": (2, 3, 4),
        "copies": COPY_WAYS,
    }


def space(workload: Workload) -> Table | None:
    former, einsum = space_1(workload), workload.einsum
    sides = sides_of(einsum, einsum.extents)
    if former is None or sides is None:
        return None
    return {
        **former,
        "across": (*former["across"], 80),
        "along": (*former["along"], 80),
        "columns": (*former["columns"], 40, 80),
        "rows": (*former["rows"], 80),
        "copies": (*COPY_WAYS, ARGUMENTS),
        "cut": pieces_of(einsum),
        "shares": (1,) if sides.batch.indices else (1, 32, 8, 16, 64, 4, 2),
    }


def is_double(einsum: BatchedEinsum) -> bool:
    """Whether all operands are of double precision."""
    return {operand.dtype for operand in einsum.operands} == {np.dtype(np.float64)}


def constraint_1(workload: Workload, parameters: Parameters) -> str | None:
    """Tiles that every such GPU has room for, dealt out evenly."""
    across, along, depth, columns, rows, terms = (
        number(parameters, name) for name in NAMES[:6]
    )
    if across % columns or along % rows or depth % terms:
        return "blocks of a warp and terms of an instruction do not divide the tiles"
    n_items = WARP * (across // columns) * (along // rows)
    if n_items > MOST_ITEMS:
        return f"{n_items} work-items in a group, expected at most {MOST_ITEMS}"
    n_sums = len(workload.einsum.rows) * rows * columns // WARP
    if n_sums > MOST_SUMS:
        return f"{n_sums} sums of a lane, expected at most {MOST_SUMS}"
    uneven = uneven_tile((across, along), depth, n_items)
    if uneven is not None:
        return uneven
    n_bytes = shared_bytes_of(workload.einsum, parameters)
    if n_bytes > SHARED_BYTES:
        return f"{n_bytes} bytes of shared memory, of {SHARED_BYTES}"
    return None


def constraint(workload: Workload, parameters: Parameters) -> str | None:
    """Sums that are long enough to share, and all of the former."""
    shares, depth = number(parameters, "shares"), number(parameters, "depth")
    einsum = workload.known
    n_tiles = volume(einsum, tuple(einsum.summation_indices)) // depth
    if shares > 1 and n_tiles < LEAST_TILES * shares:
        return f"{n_tiles} tiles of a sum, expected {LEAST_TILES} for each share"
    return constraint_1(workload, parameters)


NAMES = (
    "across", "along", "depth", "columns", "rows", "terms", "stages", "copies", "cut",
    "shares",
)  # fmt: skip


def shared_bytes_of(einsum: BatchedEinsum, parameters: Parameters) -> int:
    """Of a work-group."""
    across, along, depth, stages = (
        number(parameters, name) for name in ("across", "along", "depth", "stages")
    )
    cut = number(parameters, "cut") if "cut" in parameters else 1
    turn = Turn(cut, across // cut)
    return stages * sum(
        8
        * tile_entries(
            *((across, depth, turn) if is_across else (along, depth, Turn()))
        )
        for _, is_across in staged(einsum)
    )


TRIED = (
    (64, 64, 8, 32, 32, 8, 4, ARGUMENTS),
    (64, 80, 8, 16, 80, 8, 4, ARGUMENTS),
    (64, 32, 8, 16, 16, 8, 4, ARGUMENTS),
    (128, 64, 8, 32, 32, 8, 4, ARGUMENTS),
    (64, 64, 16, 32, 32, 8, 3, ARGUMENTS),
    (64, 64, 32, 32, 32, 8, 2, ARGUMENTS),
    (64, 80, 16, 16, 80, 8, 3, ARGUMENTS),
    (64, 32, 16, 16, 16, 8, 2, COPY_WAYS[1]),
    (80, 80, 16, 40, 16, 8, 3, ARGUMENTS),
    (128, 32, 16, 16, 32, 8, 3, ARGUMENTS),
    (64, 128, 8, 32, 32, 8, 4, ARGUMENTS),
    (128, 128, 16, 64, 32, 8, 3, ARGUMENTS),
    (32, 32, 16, 16, 16, 4, 4, ARGUMENTS),
)
"""Values of the first of ``NAMES`` with which searches begin: first the fastest ones
for functional contractions of TCCG on an H100.
"""


def starts(workload: Workload) -> tuple[Parameters, ...]:
    """With the longest pieces, and shares that make two rounds of groups on a GPU."""
    einsum = workload.known
    cut = pieces_of(workload.einsum)[0]
    tried = [(*values, cut, _shares(einsum, *values[:3])) for values in TRIED]
    return suited(workload, NAMES, tried, constraint)


def _shares(einsum: BatchedEinsum, across: int, along: int, depth: int) -> int:
    sides = sides_of(einsum, einsum.extents)
    assert sides is not None
    n_groups = prod(
        -(-volume(einsum, flat.indices) // tile)
        for flat, tile in ((sides.across, across), (sides.along, along))
    )
    n_tiles = volume(einsum, sides.summed.indices) // depth
    shares = 1
    while (
        not sides.batch.indices
        and shares < MOST_SHARES
        and 2 * shares * n_groups <= GROUPS
        and 2 * shares * LEAST_TILES <= n_tiles
    ):
        shares *= 2
    return shares


def proposals(workload: Workload) -> Iterable[Parameters]:
    """Every tile, for the cost to choose from, and where searches begin."""
    whole = space(workload)
    if whole is None:
        return
    yield from starts(workload)
    yield from choices(
        {
            **whole,
            "depth": (16,),
            "terms": (8,),
            "stages": (3,),
            "copies": (ARGUMENTS,),
            "cut": whole["cut"][:1],
            "shares": (1,),
        }
    )


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """In a step of a sum, a warp reads the sides of its block from shared memory."""
    across, along, depth, columns, rows, terms, stages = (
        number(parameters, name) for name in NAMES[:7]
    )
    cut, shares = (number(parameters, name) for name in NAMES[8:])
    gpu = machine.gpu
    assert gpu is not None
    # tensor cores that are not faster than the other units gain nothing
    if gpu.matrix_multiply_adds[8] <= gpu.multiply_adds[8]:
        return inf
    n_sums, n_rows = rows * columns // WARP, einsum.batch_size
    fragments = -(-(rows + columns) * terms // WARP)
    return tiled_s(
        einsum,
        machine,
        Tiles(across, along, depth, stages, cut, shares),
        n_items=WARP * (across // columns) * (along // rows),
        cycles=n_rows * ((rows + columns) * 8 / LINE_BYTES + 1 / terms),
        shared_bytes=shared_bytes_of(einsum, parameters),
        registers=40 + 2 * (n_rows * n_sums + fragments),
        chains=n_sums,
        is_on_tensor_cores=True,
    )


def gpu_mma(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Tiles of both operands in shared memory, which warps multiply on tensor cores.

    Rewrite, for ``ik,kj->ij`` with j across and i along::

        for i, j:  out[i,j] = sum(k, A[i,k]*B[k,j])

        for group_j, group_i, warp_i, warp_j, lane in parallel:
            acc[:,:] = 0
            (the first tiles are loaded)
            for tile:
                (barrier; a later tile is loaded into the place of the last one)
                for k:
                    left[:], right[:] = A_tile[...], B_tile[...]
                    for r, c:  acc[r,c] += left[r] @ right[c]    # a warp
            for r, c:  out[...] = acc[r,c]

    Several indices of one kind are collapsed into one. Entries beyond the extents are
    zero.

    Parameters:
        across: length of a tile over the output indices of the first operand.
        along: over those of the second one.
        depth: over the summed indices.
        columns: of the block of sums of a warp, from the first operand.
        rows: from the second one.
        terms: that one instruction adds to each sum.
        stages: tiles per operand in shared memory at once.
        copies: how arrays reach shared memory, one of ``COPY_WAYS``; or
            ``arguments``, which copies those that functions read as well.
        cut: values of the first operand's last index that stay together in a tile,
            where that is not the output's last index.
        shares: of the tiles along the summed indices, each of which a group has; a
            second launch adds what they sum. More than one only without batch indices.
    """
    schedule = _Product(t_unit, nest, parameters).written()
    return schedule.with_preamble(PRODUCTS).with_preamble(STORES).t_unit


class _Product(TiledProduct):
    """Writes the loops; see :func:`gpu_mma`."""

    keeps_order = True

    def items(self, parameters: Parameters) -> Items:
        self.has_pairs = "shares" in parameters
        self.terms, self.rows, self.columns = (
            number(parameters, name) for name in ("terms", "rows", "columns")
        )
        n_across = self.across.tile // self.columns
        n_along = self.along.tile // self.rows
        self.lane = self.writer.loop("lane", size=WARP, tag="l.0")
        self.warp_across = self.writer.loop("warp", size=n_across, tag="l.1")
        self.warp_along = self.writer.loop("warp", size=n_along, tag="l.2")
        inames = (self.lane, self.warp_across, self.warp_along)
        return Items(inames, (WARP, n_across, n_along))

    @property
    def _place(self) -> tuple[Expression, Expression]:
        """A lane's row and column in a fragment: ``g`` and ``t`` of the primitive."""
        return p.FloorDiv(var(self.lane), 4), p.Remainder(var(self.lane), 4)

    def sum(
        self, row: int, along: Tiled, across: Tiled, loops: Names, after: Names
    ) -> tuple[Names, str]:
        writer = self.writer
        n_rows, n_columns = self.rows // ROWS, self.columns // COLUMNS
        acc = writer.array(
            "acc", (n_rows, n_columns, 4), self.schedule.dtype_of_row(row)
        )
        every = [self.unrolled(n) for n in (n_rows, n_columns, 4)]
        zero = writer.assign(
            "zero", var(acc)[tuple(map(var, every))], np.float64(0),
            [*self.around, *every],
        )  # fmt: skip
        k = self.unrolled(self.depth // self.terms)
        inside = (*loops, k)
        lefts, one = self._fragments(along, k, inside, after, is_left=True)
        rights, two = self._fragments(across, k, inside, after, is_left=False)
        r, c = self.unrolled(n_rows), self.unrolled(n_columns)
        block = (*inside, r, c)
        (sums, *steps), (held, *more), (given, *others) = (
            writer.offset_scalar(entry, block)
            for entry in (
                var(acc)[var(r), var(c), 0],
                var(lefts)[var(r), 0, 0],
                var(rights)[var(c), 0, 0],
            )
        )
        product = FragmentProduct(
            self.terms, (acc, sums), (lefts, held), (rights, given)
        )
        step = writer.add(
            "multiply", partial(multiply_fragments, product), block,
            [zero, one, two, *steps, *more, *others],
        )  # fmt: skip
        self._store(row, acc, (step,))
        return (one, two), step

    def _fragments(
        self, tile: Tiled, k: str, loops: Names, after: Names, *, is_left: bool
    ) -> tuple[str, str]:
        """The entries of a tile that a lane holds for one instruction of each block."""
        writer, (g, t) = self.writer, self._place
        name, length, n_halves, warp, block = (
            ("left", ROWS, 2, self.warp_along, self.rows)
            if is_left
            else ("right", COLUMNS, 1, self.warp_across, self.columns)
        )
        shape = (block // length, self.terms // 4, n_halves)
        array = writer.array(name, shape, np.dtype(np.float64))
        inames = [self.unrolled(n) for n in shape]
        b, q, h = map(var, inames)
        deep = p.Sum((self.terms * var(k), 4 * q, t))
        wide = p.Sum((block * var(warp), length * b, 8 * h, g))
        inside = [*loops, *inames]
        entry = var(array)[b, q, h]
        return array, writer.assign(
            "fragment", entry, tile.at(deep, wide), inside, after
        )

    def _store(self, row: int, acc: str, after: Names) -> None:
        """Of 16 rows and 8 columns a lane has two of each."""
        writer, (g, t) = self.writer, self._place
        x, y = self.across, self.along
        n_rows, n_columns = self.rows // ROWS, self.columns // COLUMNS
        down = p.Sum((y.start, self.rows * var(self.warp_along), g))
        right = p.Sum((self.columns * var(self.warp_across), 2 * t))
        rows = points_of(
            writer, y.flat, 2 * n_rows, lambda step: p.Sum((down, 8 * step)),
            self.around, after, tile=y.tile,
        )  # fmt: skip
        columns = points_of(
            writer, x.flat, 2 * n_columns,
            lambda step: x.start + x.turn.load_of(
                p.Sum((right, 8 * p.FloorDiv(step, 2), p.Remainder(step, 2)))
            ),
            self.around, after, tile=x.tile,
        )  # fmt: skip
        self._write(row, acc, (n_rows, n_columns), rows, columns)

    def _write(
        self,
        row: int,
        acc: str,
        shape: tuple[int, int],
        rows: Points,
        columns: Points,
    ) -> None:
        """Store sums, of which two lie side by side, in pairs where that is known."""
        writer, is_paired = self.writer, self._is_paired(row)
        steps = (shape[0], 2, shape[1], 1 if is_paired else 2)
        loops = *self.around, *(inames := [self.unrolled(n) for n in steps])
        r, h, c, e = map(var, inames)
        at_row, at_column = 2 * r + h, 2 * c + e
        value = var(acc)[r, c, 2 * h + e]
        before = (*rows.statements, *columns.statements)
        inside = (*rows.inside(at_row), *columns.inside(at_column))
        points = {**self.batch, **rows.at(at_row), **columns.at(at_column)}
        if self.parts.n > 1:
            self.parts.store(
                row, value, (rows, at_row), (columns, at_column), loops, before
            )
        elif is_paired:
            writer.store_pair(row, value, points, loops, before, predicates=inside)
        else:
            writer.store(row, value, points, loops, before, predicates=inside)
        writer.note_apart(self.schedule.instructions[row])

    def _is_paired(self, row: int) -> bool:
        """Whether the columns of a lane are neighbours in the output."""
        schedule, flat = self.schedule, self.across.flat
        place = -1 - bool(flat.cut)
        is_turned = self.across.turn.piece > 1
        if not self.has_pairs or self.parts.n > 1 or bool(flat.cut) != is_turned:
            return False
        index, factor, extent = flat.parts[place]
        run = self.across.turn.run if is_turned else self.across.tile
        # pairs begin at even places, and none goes over the end of a row
        is_even = isinstance(extent, int) and extent % 2 == 0 and run % 2 == 0
        return (
            is_even
            and factor == 1
            and index == schedule.output[-1]
            and schedule.is_sum(row)
            and has_neighbours(schedule, row, index)
        )


def has_neighbours(schedule: Schedule, row: int, index: str) -> bool:
    """Whether entries of a row's result lie side by side along an index."""
    kernel = schedule.kernel
    entry = kernel.id_to_insn[schedule.instructions[row]].assignee
    if not isinstance(entry, p.Subscript):
        return False
    array, iname = kernel.arg_dict[entry.aggregate.name], schedule.inames[index]
    *others, last = entry.index_tuple
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    # an offset could put pairs off their alignment
    is_alone = last == var(iname) and iname not in get_dependencies(tuple(others))
    return is_alone and strides[-1] == 1 and not array.offset


register(
    Transform(
        "gpu_mma",
        1,
        "products on tensor cores, as before sums were shared",
        space_of_parts(space_1, constraint_1),
        gpu_mma,
        devices=GPUS,
    )
)

GPU_MMA = register(
    Transform(
        "gpu_mma",
        2,
        "products of two operands on tensor cores of double precision",
        space_of_parts(space, constraint, starts=starts, proposals=proposals),
        gpu_mma,
        cost,
        devices=GPUS,
    )
)
