"""Products in double precision on tensor cores.

Tiles at four levels, each with its parameters::

    output     batch x along x across          all groups
    group      along x across                  a tile in shared memory, ``depth`` deep
    warp       rows x columns                  sums in registers
    fragment   16 x 8, ``terms`` deep          one instruction

See :mod:`feinsum.transforms.gpu.fragments` for what each lane of a warp holds.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA": tiles of groups, of warps, and of
instructions.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from feinsum.transforms.gpu.fragments import HALVES, QUAD, Lane, WarpProduct
from feinsum.transforms.gpu.grid import GPUS, MAX_ITEMS, Items, Points, points_of
from feinsum.transforms.gpu.layouts import (
    UNSWIZZLED,
    Swizzle,
    n_tile_entries,
    uneven_tile,
)
from feinsum.transforms.gpu.sides import (
    MIN_REUSE,
    pieces_of,
    sides_of,
    staged,
    suited,
)
from feinsum.transforms.gpu.tiled_product import (
    ARGUMENTS,
    COPY_WAYS,
    TiledProduct,
    TileSizes,
    tiled_s,
)
from feinsum.transforms.gpu.tiles import Tiled
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    PRODUCTS,
    ROWS,
    WARP,
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
"""Shared memory of a work-group on sm_80; some newer GPUs have less, and refuse it."""

GROUPS = 1024
"""Groups up to which sums are shared: about two rounds of four groups on each of the
132 multiprocessors of an H100."""

MAX_SHARES = 64
"""Parts of a sum; the second launch reads as many entries for each result."""

MIN_TILES = 8
"""Fewest tiles along the summed indices in each of several shares."""

MAX_SUMS = 64
"""Most sums of a lane, of which each takes two of 255 registers."""


def space_1(workload: Workload) -> Table | None:
    """Products with a reuse; all values of a parameter, the recommended one first."""
    einsum = workload.einsum
    is_product = sides_of(einsum, einsum.extents) is not None
    if not is_product or not is_double(einsum) or reuse(einsum) < MIN_REUSE:
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
    """That of version 1, with tiles of 80, pieces, and shares of sums."""
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
    # warps have whole blocks, and tiles whole instructions
    if across % columns or along % rows or depth % terms:
        return "blocks of a warp and terms of an instruction do not divide the tiles"
    n_items = WARP * (across // columns) * (along // rows)
    if n_items > MAX_ITEMS:
        return f"{n_items} work-items in a group, expected at most {MAX_ITEMS}"
    n_sums = len(workload.einsum.rows) * rows * columns // WARP
    if n_sums > MAX_SUMS:
        return f"{n_sums} sums of a lane, expected at most {MAX_SUMS}"
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
    einsum = workload.sized
    # short shares would spend their time on filling the pipeline
    n_tiles = volume(einsum, tuple(einsum.summation_indices)) // depth
    if shares > 1 and n_tiles < MIN_TILES * shares:
        return f"{n_tiles} tiles of a sum, expected {MIN_TILES} for each share"
    return constraint_1(workload, parameters)


NAMES = (
    "across", "along", "depth", "columns", "rows", "terms", "stages", "copies", "cut",
    "shares",
)  # fmt: skip


def shared_bytes_of(einsum: BatchedEinsum, parameters: Parameters) -> int:
    """The shared memory of a work-group, in bytes."""
    across, along, depth, stages = (
        number(parameters, name) for name in ("across", "along", "depth", "stages")
    )
    cut = number(parameters, "cut") if "cut" in parameters else 1
    of_across = n_tile_entries(across, depth, Swizzle(cut, across // cut))
    of_along = n_tile_entries(along, depth, UNSWIZZLED)
    return stages * sum(
        8 * (of_across if is_across else of_along) for _, is_across in staged(einsum)
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
    """Begin with the longest pieces, and shares that make two rounds of groups."""
    einsum = workload.sized
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
    # double the shares while the GPU has room for more groups
    shares = 1
    while (
        not sides.batch.indices
        and shares < MAX_SHARES
        and 2 * shares * n_groups <= GROUPS
        and 2 * shares * MIN_TILES <= n_tiles
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
    """Predict the seconds; a warp reads the sides of its block from shared memory."""
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
        TileSizes(across, along, depth, stages, cut, shares),
        n_items=WARP * (across // columns) * (along // rows),
        # 8 bytes of each row and column; the loop around an instruction takes a cycle
        cycles=n_rows * ((rows + columns) * 8 / LINE_BYTES + 1 / terms),
        shared_bytes=shared_bytes_of(einsum, parameters),
        # a number of double precision takes two; 40 are for addresses and counters
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
    """Writes the loops; see :func:`gpu_mma`.

    The operand along the rows is the left factor: rows of a tile go down, in blocks of
    16, and columns go across, in blocks of 8. Warps divide the tile of a group among
    themselves, those along ``l.1`` its columns, those along ``l.2`` its rows.
    """

    keeps_order = True

    def items(self, parameters: Parameters) -> Items:
        # version 1 stores all sums one by one; its facts refer to that code
        self.has_pairs = "shares" in parameters
        terms, self.rows, self.columns = (
            number(parameters, name) for name in ("terms", "rows", "columns")
        )
        n_across = self.across.tile // self.columns
        n_along = self.along.tile // self.rows
        self.lane = self.writer.loop("lane", size=WARP, tag="l.0")
        self.warp_across = self.writer.loop("warp", size=n_across, tag="l.1")
        self.warp_along = self.writer.loop("warp", size=n_along, tag="l.2")
        self.warp_product = WarpProduct(
            self.writer, Lane.of(self.lane), self.rows, self.columns, terms
        )
        inames = (self.lane, self.warp_across, self.warp_along)
        return Items(inames, (WARP, n_across, n_along))

    def sum(
        self, row: int, along: Tiled, across: Tiled, loops: Names, after: Names
    ) -> tuple[Names, str]:
        product, dtype = self.warp_product, self.schedule.dtype_of_row(row)
        acc, zero = product.zeroed((), dtype, self.around)
        k = self.unrolled(self.depth // product.terms)
        inside = (*loops, k)
        left, left_id = self._load_fragments(along, k, inside, after, is_left=True)
        right, right_id = self._load_fragments(across, k, inside, after, is_left=False)
        down, right_block = (self.unrolled(n) for n in product.n_blocks)
        step = product.multiply(
            (acc, ()), left, (right, lambda block: (block, 0, 0)),
            (*inside, down, right_block), (down, right_block),
            [zero, left_id, right_id],
        )  # fmt: skip
        self._store(row, acc, (step,))
        return (left_id, right_id), step

    def _load_fragments(
        self, tile: Tiled, k: str, loops: Names, after: Names, *, is_left: bool
    ) -> tuple[str, str]:
        """The entries of a tile that a lane holds for one instruction of each block."""
        product = self.warp_product
        stem, length, n_halves, warp, size = (
            ("left", ROWS, HALVES, self.warp_along, self.rows)
            if is_left
            else ("right", COLUMNS, 1, self.warp_across, self.columns)
        )

        def entry(block: Expression, quad: Expression, half: Expression) -> Expression:
            wide = product.row_or_column(size * var(warp), length, block, half)
            return tile.at(product.term(var(k), quad), wide)

        shape = (size // length, product.terms // QUAD, n_halves)
        return product.load_fragments(stem, shape, entry, loops, after)

    def _store(self, row: int, acc: str, after: Names) -> None:
        """Store sums: of 16 rows and 8 columns a lane has two of each."""
        writer, lane = self.writer, self.warp_product.lane
        x, y = self.across, self.along
        n_down, n_across = self.warp_product.n_blocks
        down = p.Sum((y.start, self.rows * var(self.warp_along), lane.g))
        right = p.Sum((self.columns * var(self.warp_across), 2 * lane.t))
        # halves of 8 rows follow each other, also from one block to the next
        rows = points_of(
            writer, y.flat, HALVES * n_down, lambda step: p.Sum((down, 8 * step)),
            self.around, after, tile=y.tile,
        )  # fmt: skip
        # two neighbouring columns of each block of 8
        columns = points_of(
            writer, x.flat, 2 * n_across,
            lambda step: x.start + x.swizzle.to_load_order(
                p.Sum((right, COLUMNS * p.FloorDiv(step, 2), p.Remainder(step, 2)))
            ),
            self.around, after, tile=x.tile,
        )  # fmt: skip
        self._store_sums(row, acc, rows, columns)

    def _store_sums(self, row: int, acc: str, rows: Points, columns: Points) -> None:
        """Store sums, of which two lie side by side, in pairs where that is known."""
        writer, is_paired = self.writer, self._is_paired(row)
        n_down, n_across = self.warp_product.n_blocks
        steps = (n_down, HALVES, n_across, 1 if is_paired else 2)
        loops = *self.around, *(inames := [self.unrolled(n) for n in steps])
        down, half, across, e = map(var, inames)
        at_row, at_column = HALVES * down + half, 2 * across + e
        value = var(acc)[down, across, 2 * half + e]
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
        """Whether the two columns of a lane are neighbours in the output."""
        schedule, flat, swizzle = self.schedule, self.across.flat, self.across.swizzle
        is_swizzled = swizzle.piece > 1
        if not self.has_pairs or self.parts.n > 1 or bool(flat.cut) != is_swizzled:
            return False
        # behind the last index of the output there may be the piece of a cut one
        index, factor, extent = flat.parts[-1 - bool(flat.cut)]
        run = swizzle.run if is_swizzled else self.across.tile
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
