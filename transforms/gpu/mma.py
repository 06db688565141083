"""Products in double and half precision on tensor cores.

Tiles at four levels, each with its parameters::

    output     batch x along x across          all groups
    group      along x across                  a tile in shared memory, ``depth`` deep
    warp       rows x columns                  sums in registers
    fragment   16 x 8, ``terms`` deep          one instruction

See :mod:`feinsum.transforms.gpu.fragments` for what each lane of a warp holds.
Indices of one role are flattened to one index. Entries beyond the extents are zero.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA": tiles of groups, of warps, and of
instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import inf

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.dtypes import is_half
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Gpu
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import get_itemsize, has_tensor_cores
from feinsum.transforms.gpu.families import (
    has_half_dtype,
    is_double,
    register_family,
)
from feinsum.transforms.gpu.fragments import HALVES, HalfWarpProduct, WarpProduct
from feinsum.transforms.gpu.pipeline import ARGUMENTS, COPY_WAYS
from feinsum.transforms.gpu.sides import find_sides, list_pieces
from feinsum.transforms.gpu.sources import find_array
from feinsum.transforms.gpu.tiled_product import (
    TiledProduct,
    explain_tiles,
    list_suited_starts,
    predict_tiled_s,
)
from feinsum.transforms.gpu.tiles import Items, Tiled
from feinsum.transforms.primitives.load_blocks import LOADS
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    HALF_PRODUCTS,
    PRODUCTS,
)
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.primitives.store_pair import HALF_STORES, STORES
from feinsum.transforms.registry import (
    Parameters,
    Space,
    Table,
    list_choices,
    with_starts,
)
from feinsum.transforms.roles import compute_reuse, count_points

SIZES = ("across", "along", "depth", "columns", "rows", "terms")
"""The parameters that are sizes of tiles, blocks and instructions."""


def apply_gpu_mma(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply tiles in shared memory on tensor cores, each warp a block of sums.

    Rewrite, for ``ik,kj->ij`` with j across and i along::

        for i, j:  out[i,j] = sum(k, A[i,k]*B[k,j])

        for group_j, group_i, warp_i, warp_j, lane in parallel:
            acc[:,:] = 0
            (the first tiles are loaded)
            for tile:
                (barrier; a later tile replaces the one that was multiplied last)
                for k:
                    left[:], right[:] = A_tile[...], B_tile[...]
                    for r, c:  acc[r,c] += left[r] @ right[c]    # a warp
            for r, c:  out[...] = acc[r,c]

    Parameters:
        across: length of a tile over the output indices of the operand with the last
            output index.
        along: length over the output indices of the other operand.
        depth: length over the summed indices.
        columns: columns of the block of sums of a warp, across.
        rows: rows of that block, along.
        terms: terms that one instruction adds to each sum; 16 in half precision.
        stages: tiles per operand in shared memory at once.
        copies: how arrays reach shared memory, one of ``COPY_WAYS``; or ``arguments``,
            which also copies the arrays that functions read.
        cut: length of the pieces of the last index of the operand across, if the output
            ends in another index.
        shares: number of groups that share the tiles along the summed indices; a second
            launch adds their sums. It is 1 if there are batch indices.
    """
    schedule = _Product(t_unit, nest, parameters).written()
    is_halved = has_half_dtype(nest.einsum)
    for preamble in _HALF_PREAMBLES if is_halved else (PRODUCTS, STORES):
        schedule = schedule.with_preamble(preamble)
    return schedule.t_unit


_HALF_PREAMBLES = (HALF_PRODUCTS, HALF_STORES, LOADS)


class _Product(TiledProduct):
    """Writes the loops; see :func:`apply_gpu_mma`.

    The operand along is the left factor, with blocks of 16 rows; the one across is the
    right factor, with blocks of 8 columns. The warps along ``l.1`` share the columns of
    a group's tile, those along ``l.2`` its rows.
    """

    keeps_order = True

    def make_items(self, parameters: Parameters) -> Items:
        terms, self.rows, self.columns = (
            parameters[name] for name in ("terms", "rows", "columns")
        )
        n_across = self.across.tile // self.columns
        n_along = self.along.tile // self.rows
        lane = self.loop("lane", size=h.WARP, tag="l.0")
        self.warp_across = self.loop("warp", size=n_across, tag="l.1")
        self.warp_along = self.loop("warp", size=n_along, tag="l.2")
        dtype = self.schedule.get_row_dtype(0)
        kind = HalfWarpProduct if is_half(dtype) else WarpProduct
        self.product = kind(self, lane, self.rows, self.columns, terms, dtype)
        inames = (lane, self.warp_across, self.warp_along)
        return Items(inames, (h.WARP, n_across, n_along))

    def write_sum(
        self, row: int, along: Tiled, across: Tiled, loops: Names, after: Names
    ) -> tuple[Names, str]:
        product = self.product
        acc, zero = product.clear_sums((), self.around)
        k = self.unroll(self.depth // product.terms)
        inside = (*loops, k)
        left, left_id = product.load_tile(
            along, self.rows * var(self.warp_along), var(k), inside, after, is_left=True
        )
        right, right_id = product.load_tile(
            across, self.columns * var(self.warp_across), var(k), inside, after,
            is_left=False,
        )  # fmt: skip
        down, across_block = (self.unroll(n) for n in product.n_blocks)
        entries = (
            var(acc)[var(down), var(across_block), 0],
            var(left)[var(down), 0, 0],
            var(right)[var(across_block), 0, 0],
        )
        step = product.multiply(
            entries, (*inside, down, across_block), [zero, left_id, right_id]
        )
        self._store(row, acc, (step,))
        return (left_id, right_id), step

    def _store(self, row: int, acc: str, after: Names) -> None:
        """Store sums: of each block, a lane has two rows of two columns.

        Two neighbouring columns are stored together if they are known to be contiguous.
        """
        product = self.product
        x, y = self.across, self.along
        n_down, n_across = product.n_blocks
        down = p.Sum((y.start, self.rows * var(self.warp_along), product.g))
        right = p.Sum((self.columns * var(self.warp_across), 2 * product.t))
        # halves of 8 rows are numbered through all blocks
        rows = self.compute_points(
            y.flat, HALVES * n_down, lambda step: p.Sum((down, 8 * step)),
            self.around, after, tile=y.tile,
        )  # fmt: skip
        # two neighbouring columns of each block of 8
        columns = self.compute_points(
            x.flat,
            2 * n_across,
            lambda step: (
                x.start
                + x.swizzle.to_load_order(
                    p.Sum((right, COLUMNS * p.FloorDiv(step, 2), p.Remainder(step, 2)))
                )
            ),
            self.around,
            after,
            tile=x.tile,
        )
        is_pair = self._is_paired(row)
        inames = tuple(
            self.unroll(n) for n in (n_down, HALVES, n_across, 1 if is_pair else 2)
        )
        block_down, half, block_across, e = map(var, inames)
        at_row, at_column = HALVES * block_down + half, 2 * block_across + e
        value = var(acc)[block_down, block_across, 2 * half + e]
        pair = (rows, at_row), (columns, at_column)
        self.store_sum(row, value, *pair, inames, is_pair=is_pair)

    def _is_paired(self, row: int) -> bool:
        """Return whether the two columns of a lane are neighbours in the output."""
        schedule, flat, swizzle = self.schedule, self.across.flat, self.across.swizzle
        is_swizzled = swizzle.piece > 1
        if self.share or bool(flat.cut) != is_swizzled:
            return False
        # the last part of the side may be the piece of a cut index, after the last
        # index of the output
        index, factor, extent = flat.parts[-1 - bool(flat.cut)]
        run = swizzle.run if is_swizzled else self.across.tile
        # pairs begin at even positions, and none may cross the end of a row
        is_even = isinstance(extent, int) and extent % 2 == 0 and run % 2 == 0
        is_last = factor == 1 and index == schedule.output[-1]
        if not (is_even and is_last and schedule.is_sum(row)):
            return False
        entry = schedule.kernel.id_to_insn[schedule.instructions[row]].assignee
        dtype = schedule.get_row_dtype(row)
        array = find_array(schedule.kernel, entry, (), dtype)
        return array is not None and array.neighbour == schedule.inames[index]


def _make_space(workload: Workload) -> Space | None:
    """Fit products in double or half precision that use each entry several times."""
    einsum = workload.einsum
    sides, is_halved = find_sides(einsum, einsum.extents), has_half_dtype(einsum)
    if (
        sides is None
        or not (is_halved or is_double(einsum))
        or compute_reuse(einsum) < h.MIN_REUSE
    ):
        return None
    # halves are loaded to registers in blocks of neighbours
    cuts = (1,) if is_halved else list_pieces(einsum)
    table: Table = {
        **(_HALF_TABLE if is_halved else _DOUBLE_TABLE),
        "copies": (*COPY_WAYS, ARGUMENTS),
        "cut": cuts,
        "shares": (1,) if sides.batch.indices else (1, 32, 8, 16, 64, 4, 2),
    }

    def starts() -> Iterator[Parameters]:
        # with the longest pieces, and with shares for two rounds of groups
        tried = (
            (*values, cuts[0], _choose_shares(workload.sized, *values[:3]))
            for values in (h.HALF_STARTS if is_halved else h.MMA_STARTS)
        )
        return list_suited_starts(workload, [*table], tried)

    def others() -> Iterable[Parameters]:
        return list_choices(
            {
                **table,
                "depth": table["depth"][:1],
                "terms": (16,) if is_halved else (8,),
                "stages": (3,),
                "copies": (ARGUMENTS,),
                "cut": cuts[:1],
                "shares": (1,),
            }
        )

    points = Space(table, partial(_find_problem, workload))
    return with_starts(points, starts, others)


_DOUBLE_TABLE: Table = {
    "across": (64, 128, 32, 80),
    "along": (64, 128, 32, 80),
    "depth": (16, 8, 32),
    "columns": (32, 16, 64, 8, 40, 80),
    "rows": (32, 64, 16, 80),
    "terms": (8, 16, 4),
    "stages": (2, 3, 4),
}
_HALF_TABLE: Table = {
    "across": (128, 64, 256, 32),
    "along": (128, 64, 256, 32),
    "depth": (32, 64, 16),
    "columns": (64, 32, 16),
    "rows": (64, 32, 16),
    "terms": (16,),
    "stages": (4, 3, 2),
}


def _find_problem(workload: Workload, parameters: Parameters) -> str | None:
    """Require tiles that fit every GPU with such tensor cores, and long shares."""
    across, along, depth, columns, rows, terms = (parameters[name] for name in SIZES)
    # short shares would mostly wait for the pipeline to fill
    einsum, shares = workload.sized, parameters["shares"]
    n_tiles = count_points(einsum, tuple(einsum.summation_indices)) // depth
    if shares > 1 and n_tiles < h.MIN_TILES * shares:
        return f"{n_tiles} tiles of a sum, expected {h.MIN_TILES} for each share"
    # a tile has to consist of whole blocks and whole instructions
    if across % columns or along % rows or depth % terms:
        return "blocks of a warp and terms of an instruction do not divide the tiles"
    n_sums = len(workload.einsum.rows) * rows * columns // h.WARP
    max_sums = h.MAX_SUMS * (2 if has_half_dtype(workload.einsum) else 1)
    if n_sums > max_sums:
        return f"{n_sums} sums of a lane, expected at most {max_sums}"
    return explain_tiles(
        workload.einsum,
        parameters,
        n_items=h.WARP * (across // columns) * (along // rows),
        most_bytes=h.SHARED_BYTES_SM80,
        keeps_order=_Product.keeps_order,
    )


def _choose_shares(einsum: BatchedEinsum, across: int, along: int, depth: int) -> int:
    """Return the largest power of two of shares that keeps them long and few."""
    sides = find_sides(einsum, einsum.extents)
    assert sides is not None
    n_groups = -(-count_points(einsum, sides.across.indices) // across)
    n_groups *= -(-count_points(einsum, sides.along.indices) // along)
    n_tiles = count_points(einsum, sides.summed.indices) // depth
    shares = 1
    while (
        not sides.batch.indices
        and shares < h.MAX_SHARES
        and 2 * shares * n_groups <= h.MAX_GROUPS
        and 2 * shares * h.MIN_TILES <= n_tiles
    ):
        shares *= 2
    return shares


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; a warp reads both sides of its block from shared memory."""
    across, along, _, columns, rows, terms = (parameters[name] for name in SIZES)
    # the family gains nothing where tensor cores are not faster than other units
    itemsize = get_itemsize(einsum)
    if not has_tensor_cores(gpu, itemsize):
        return inf
    n_sums, n_rows = rows * columns // h.WARP, einsum.batch_size
    fragments = -(-(rows + columns) * terms // h.WARP)
    return predict_tiled_s(
        einsum,
        parameters,
        gpu,
        n_items=h.WARP * (across // columns) * (along // rows),
        # an entry of each row and column; the loop of an instruction takes a cycle
        cycles=n_rows * ((rows + columns) * itemsize / h.LINE_BYTES + 1 / terms),
        keeps_order=_Product.keeps_order,
        # a double takes two registers; 40 are for addresses and counters
        registers=40
        + n_rows * n_sums * max(itemsize // 4, 1)
        + fragments * itemsize // 4,
        chains=n_sums,
        is_on_tensor_cores=True,
    )


GPU_MMA = register_family(
    "gpu_mma",
    2,
    "products of two operands on tensor cores of double or half precision",
    _make_space,
    apply_gpu_mma,
    _predict_s,
)
