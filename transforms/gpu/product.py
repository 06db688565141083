"""Products with much reuse: tiles in shared memory, blocks of sums in registers.

A work-item has a block of sums, whose rows and columns are not all adjacent. With 8
work-items along a side of 32, and vectors of 2, item 0 has the columns::

    0 1 . . . . . . . . . . . . . . 16 17 . . . . . . . . . . . . . .

So it reads two columns at a time, and the items of a warp together read neighbours.
Indices of one role are flattened to one index. Entries beyond the extents are zero.

Source: Nath, Tomov and Dongarra, An Improved MAGMA GEMM for Fermi GPUs (2010).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.dtypes import get_sum_dtype
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Gpu
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import get_itemsize
from feinsum.transforms.gpu.families import has_plain_dtype, register_family
from feinsum.transforms.gpu.pipeline import COPY_WAYS
from feinsum.transforms.gpu.sides import Side, find_sides
from feinsum.transforms.gpu.tiled_product import (
    TiledProduct,
    explain_tiles,
    list_suited_starts,
    predict_tiled_s,
)
from feinsum.transforms.gpu.tiles import Items, Points, Tiled
from feinsum.transforms.primitives.copy_async import VECTOR_BYTES
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import (
    Parameters,
    Space,
    list_choices,
    with_starts,
)
from feinsum.transforms.roles import compute_reuse


def apply_gpu_product(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply tiles of both operands by blocks of sums in registers.

    Rewrite, for ``ik,kj->ij`` with j across and i along::

        for i, j:  out[i,j] = sum(k, A[i,k]*B[k,j])

        for group_j, group_i, y, x in parallel:
            acc[:,:] = 0
            (the first tiles are loaded)
            for tile:
                (barrier; a later tile replaces the one that was multiplied last)
                for k:
                    left[:], right[:] = A_tile[k, (of y)], B_tile[k, (of x)]
                    for r, c:  acc[r,c] += left[r]*right[c]
            for r, c:  out[...] = acc[r,c]

    Parameters:
        across: length of a tile over the output indices of the operand with the last
            output index.
        along: length over the output indices of the other operand.
        depth: length over the summed indices.
        columns: columns of the block of sums of a work-item, across.
        rows: rows of that block, along.
        stages: tiles per operand in shared memory at once.
        copies: how arrays reach shared memory, one of ``COPY_WAYS``.
    """
    return _Product(t_unit, nest, parameters).written().t_unit


class _Block(NamedTuple):
    """The ``n`` values of one side that a work-item holds.

    Attributes:
        side: the side.
        item: the iname of the work-items along it.
        n_items: their number.
        n: number of values of each work-item.
        lanes: length of the runs of contiguous values.
    """

    side: Side
    item: str
    n_items: int
    n: int
    lanes: int = 1

    def at(self, step: Expression) -> Expression:
        """Return the position of a value in its tile: vectors alternate among items."""
        vectors = p.Sum((var(self.item), self.n_items * p.FloorDiv(step, self.lanes)))
        return p.Sum((self.lanes * vectors, p.Remainder(step, self.lanes)))


class _Product(TiledProduct):
    """Writes the loops; see :func:`apply_gpu_product`."""

    keeps_order = False

    def make_items(self, parameters: Parameters) -> Items:
        sides = (self.across, "columns"), (self.along, "rows")
        blocks = []
        for axis, (side, name) in enumerate(sides):
            n = parameters[name]
            n_items = side.tile // n
            item = self.loop("item", size=n_items, tag=f"l.{axis}")
            blocks.append(_Block(side, item, n_items, n))
        self.x, self.y = blocks
        return Items(tuple(b.item for b in blocks), tuple(b.n_items for b in blocks))

    def write_sum(
        self, row: int, along: Tiled, across: Tiled, loops: Names, after: Names
    ) -> tuple[Names, str]:
        dtype = self.schedule.get_sum_dtype(row)
        # runs as long as the reads of one instruction
        lanes = max(VECTOR_BYTES // dtype.itemsize, 1)
        x, y = (b._replace(lanes=min(b.n, lanes)) for b in (self.x, self.y))
        acc = var(self.array("acc", (y.n, x.n), dtype))
        r, c = self.unroll(y.n), self.unroll(x.n)
        zero = self.assign(
            "zero", acc[var(r), var(c)], dtype.type(0), [*self.around, r, c]
        )
        # no unrolling tag: the trip count is constant, and the compiler decides
        k = self.loop("k", size=self.depth)
        inside = (*loops, k)
        left, left_id = self._load_block(along, y, k, inside, after)
        right, right_id = self._load_block(across, x, k, inside, after)
        r, c = self.unroll(y.n), self.unroll(x.n)
        factors = var(left)[var(r)], var(right)[var(c)]
        # in the order of the operands
        value = p.Product(factors if self.sides.first else factors[::-1])
        step = self.assign(
            "add", acc[var(r), var(c)], p.Sum((acc[var(r), var(c)], value)),
            [*inside, r, c], [zero, left_id, right_id],
        )  # fmt: skip
        rows, columns = (self._compute_points(block, step) for block in (y, x))
        r, c = self.unroll(y.n), self.unroll(x.n)
        sums = acc[var(r), var(c)]
        self.store_sum(row, sums, (rows, var(r)), (columns, var(c)), (r, c))
        return (left_id, right_id), step

    def _load_block(
        self, tile: Tiled, block: _Block, k: str, loops: Names, after: Names
    ) -> tuple[str, str]:
        """Load a work-item's entries of a tile to registers."""
        array = self.array("held", (block.n,), get_sum_dtype(tile.dtype))
        step = self.unroll(block.n)
        entry = tile.at(var(k), block.at(var(step)))
        target = var(array)[var(step)]
        return array, self.assign("hold", target, entry, [*loops, step], after)

    def _compute_points(self, block: _Block, after: str) -> Points:
        side = block.side
        return self.compute_points(
            side.flat, block.n, lambda step: p.Sum((side.start, block.at(step))),
            self.around, (after,), tile=side.tile,
        )  # fmt: skip


def _make_space(workload: Workload) -> Space | None:
    """Fit products of two operands that use each entry several times."""
    einsum = workload.einsum
    is_product = find_sides(einsum, einsum.extents) is not None
    if (
        not is_product
        or not has_plain_dtype(einsum)
        or compute_reuse(einsum) < h.MIN_REUSE
    ):
        return None
    blocks = (4, 2, 8, 1)
    table = {
        "across": (64, 32, 128, 16),
        "along": (64, 32, 128, 16),
        "depth": (16, 8, 32),
        "columns": blocks,
        "rows": blocks,
        "stages": (2, 3, 4),
        "copies": COPY_WAYS,
    }

    def others() -> Iterable[Parameters]:
        # of millions of configurations, these represent all that differ much in cost
        fewer = {**table, "depth": (16, 8), "stages": (3,), "copies": COPY_WAYS[:1]}
        return list_choices(fewer)

    points = Space(table, partial(_find_problem, einsum))
    starts = partial(list_suited_starts, workload, [*table], h.PRODUCT_STARTS)
    return with_starts(points, starts, others)


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    """Require groups of at least a warp, and tiles that fit every GPU since Volta."""
    return explain_tiles(
        einsum,
        parameters,
        n_items=_count_items(parameters),
        least_items=h.WARP,
        most_bytes=h.SHARED_BYTES_SM70,
        keeps_order=_Product.keeps_order,
    )


def _count_items(parameters: Parameters) -> int:
    n_across: int = parameters["across"] // parameters["columns"]
    n_along: int = parameters["along"] // parameters["rows"]
    return n_across * n_along


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; each step reads columns and rows from shared memory."""
    across, columns, rows = (parameters[name] for name in ("across", "columns", "rows"))
    itemsize, n_rows = get_itemsize(einsum), einsum.batch_size
    lanes = max(VECTOR_BYTES // itemsize, 1)
    # a warp reads one value of each row, and neighbouring values of the columns
    n_x = min(h.WARP, across // columns)
    x_cycles = max(1.0, n_x * min(columns, lanes) * itemsize / h.LINE_BYTES)
    of_k = -(-columns // lanes) * x_cycles + -(-rows // lanes) + h.OVERHEAD_CYCLES / 4
    words = max(itemsize // 4, 1)  # registers of a number
    return predict_tiled_s(
        einsum,
        parameters,
        gpu,
        n_items=_count_items(parameters),
        cycles=n_rows * of_k,
        keeps_order=_Product.keeps_order,
        registers=40 + words * (n_rows * rows * columns + rows + columns),
        chains=rows * columns,
    )


GPU_PRODUCT = register_family(
    "gpu_product",
    1,
    "products of two operands, tiled in shared memory and in registers",
    _make_space,
    apply_gpu_product,
    _predict_s,
)
