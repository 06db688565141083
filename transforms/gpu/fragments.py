"""Tensor cores: the matrix entries of each lane of a warp, and the product of a warp.

One instruction ``mma.m16n8k{4,8,16}`` of double precision adds a product of fragments,
``sums[16,8] += left[16,k] @ right[k,8]``. Before sm_90, two instructions ``m8n8k4``,
each for eight of the rows, replace it for every four terms. The 32 lanes are numbered
``4*g + t`` with ``g < 8, t < 4``, and each holds, in registers,

===========  =====================  ================================  ================
fragment     entry of a lane        its coordinates                   layout
===========  =====================  ================================  ================
left         ``[q, h]``             row ``8*h + g``, term ``4*q + t``  ROW, TERM
right        ``[q, 0]``             term ``4*q + t``, column ``g``     TERM
sums         ``[h, e]``             row ``8*h + g``, column ``e+2*t``  ROW, SUM_COLUMN
===========  =====================  ================================  ================

Drawn for k = 4, with ``g.t`` for the lane; m8n8k4 is the upper half (h = 0)::

    left   t: 0   1   2   3       right  column: 0   1   2  ...  7
    row 0   0.0 0.1 0.2 0.3       term 0       0.0 1.0 2.0 ... 7.0
    row 1   1.0 1.1 1.2 1.3       term 1       0.1 1.1 2.1 ... 7.1
    ...                           term 2       0.2 1.2 2.2 ... 7.2
    row 7   7.0 7.1 7.2 7.3       term 3       0.3 1.3 2.3 ... 7.3
    row 8   0.0 0.1 0.2 0.3   h = 1
    ...                           sums column: 0   1   2   3   4   5   6   7
    row 15  7.0 7.1 7.2 7.3       row 0       0.0 0.0 0.1 0.1 0.2 0.2 0.3 0.3
                                  row 1       1.0 1.0 1.1 1.1 1.2 1.2 1.3 1.3
                                         e =   0   1   0   1   0   1   0   1

For k = 8 and 16, there are two and four such blocks of terms, numbered by q. A warp
multiplies a tile of several fragments, numbered by *blocks* down and across::

               block 0   block 1          columns of the tile, 8 of each block
    block 0   [ 16x8 ]  [ 16x8 ]
    block 1   [ 16x8 ]  [ 16x8 ]          rows of the tile, 16 of each block

Halves are multiplied 16 terms at a time, ``sums[16,8] += left[16,16] @ right[16,8]``,
with sums in single precision. A lane holds two neighbouring terms in a register:

===========  =====================  =======================================
fragment     entry of a lane        its coordinates
===========  =====================  =======================================
left         ``[2*q + h, e]``       row ``8*h + g``, term ``8*q + 2*t + e``
right        ``[q, e]``             term ``8*q + 2*t + e``, column ``g``
sums         ``[2*h + e]``          row ``8*h + g``, column ``2*t + e``
===========  =====================  =======================================

A load moves four blocks of 8 by 8 from shared memory, numbered by the lanes that give
the addresses of their rows: a left fragment, or the right fragments of 16 columns::

    left           term 0..7   8..15      right         column 0..7   8..15
    row 0..7       0           2          term 0..7     0             2
    row 8..15      1           3          term 8..15    1             3

If the terms are the last axis of a tile, rows of blocks are rows or columns of the
matrix; otherwise, they are terms, and blocks are transposed by the load. Rows of a tile
are an odd multiple of 16 bytes apart, so that eight of them are in different banks.

Source: NVIDIA, PTX ISA, "Matrix Fragments for mma.m8n8k4 / m16n8k4 / m16n8k8 /
m16n8k16 with .f64 floating point type", "Matrix Fragments for mma.m16n8k16 with
floating point type", "ldmatrix".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.dtypes import get_sum_dtype
from feinsum.transforms.gpu.layouts import TileLayout
from feinsum.transforms.gpu.tiles import GroupWriter, SharedTile, Tiled
from feinsum.transforms.primitives.load_blocks import (
    N_BLOCKS,
    SIDE,
    BlockLoad,
)
from feinsum.transforms.primitives.multiply_fragments import (
    COLUMNS,
    ROWS,
    WARP,
    FragmentProduct,
)
from feinsum.transforms.primitives.schedule import Expression, Names

DOUBLE = np.dtype(np.float64)
ZERO = np.float64(0)

HALVES, QUAD = 2, 4
"""The halves into which the rows of a fragment are split, and the lanes of a row."""

PER_LANE = ROWS * COLUMNS // WARP
"""Sums of a fragment that a lane holds: two rows of two columns."""

LANES = TileLayout((QUAD, 8), (1, QUAD))
"""From (t, g) to the number of a lane."""
TERM = TileLayout((4, QUAD), (QUAD, 1))
"""From (q, t) to the term of an entry; the first extent is that of k = 16."""
ROW = TileLayout((HALVES, 8), (8, 1))
"""From (h, g) to the row of an entry of the left fragment or of the sums."""
SUM_COLUMN = TileLayout((2, QUAD), (1, 2))
"""From (e, t) to the column of a sum: a lane has two neighbours, for one store."""

INTERLEAVED = TileLayout((2, QUAD), (QUAD, 1))
"""From g to the column of the matrix that a lane loads as column g of the right
fragment. With this order, neighbouring columns of the sums are in the lanes of a quad,
and not in the registers of one lane::

    g                      0 1 2 3 4 5 6 7
    column of the matrix   0 4 1 5 2 6 3 7
"""
INTERLEAVED_SUM_COLUMN = TileLayout((2, QUAD), (QUAD, 1))
"""From (e, t) to the column of the matrix of a sum then, ``INTERLEAVED`` after
``SUM_COLUMN``: neighbouring lanes write neighbours."""

NEIGHBOURS = 2
"""Neighbouring terms in a register."""

LOADED = 2 * SIDE
"""Rows or columns, and terms, of the four blocks of a load."""

ADDRESSES = TileLayout((SIDE, 2, 2), (1, SIDE, 2 * SIDE))
"""From the row of a block and the block's two coordinates to the lane with its address.
"""


@dataclass(frozen=True)
class WarpProduct:
    """A warp's tile of ``height`` by ``width`` sums, ``terms`` at a time.

    Attributes:
        lane: the iname of its lanes.
        dtype: dtype of the matrices.
    """

    writer: GroupWriter
    lane: str
    height: int
    width: int
    terms: int
    dtype: np.dtype[Any] = DOUBLE

    @property
    def t(self) -> Expression:
        """The number of the lane among the four that share a row."""
        return LANES.coordinates(var(self.lane))[0]

    @property
    def g(self) -> Expression:
        """The row of the lane in the left fragment, and its column in the right one."""
        return LANES.coordinates(var(self.lane))[1]

    @property
    def n_blocks(self) -> tuple[int, int]:
        """Fragments down and across."""
        return self.height // ROWS, self.width // COLUMNS

    def term(self, step: Expression, quad: Expression) -> Expression:
        """Return the term of the lane's entry q (``quad``) in one step of a sum."""
        return p.Sum((self.terms * step, *TERM(quad, self.t).children))

    def compute_row_or_column(
        self, first: Expression, length: int, block: Expression, half: Expression
    ) -> Expression:
        """Return the lane's row in a left fragment or sum, or column in a right one.

        Args:
            first: first row or column of the warp's tile.
            length: length of a block: ``ROWS`` of two halves, or ``COLUMNS`` of one.
            block: number of the block in the tile.
            half: number of the half in the block.
        """
        return p.Sum((first, length * block, *ROW(half, self.g).children))

    def clear_sums(
        self, outer: Sequence[int], around: Sequence[str], after: Collection[str] = ()
    ) -> tuple[str, str]:
        """Zero the lane's sums; return their array and the statement's id.

        Args:
            outer: lengths of axes before those of the tile.
            around: inames of the loops around the statement.
            after: ids of the statements before it.
        """
        shape, dtype = (*outer, *self.n_blocks, PER_LANE), get_sum_dtype(self.dtype)
        acc = self.writer.array("acc", shape, dtype)
        inames = [self.writer.unroll(n) for n in shape]
        entry = var(acc)[tuple(map(var, inames))]
        return acc, self.writer.assign(
            "zero", entry, dtype.type(0), [*around, *inames], after
        )

    def load_fragments(
        self,
        stem: str,
        shape: tuple[int, int, int],
        entry_at: Callable[[Expression, Expression, Expression], Expression],
        loops: Sequence[str],
        after: Collection[str],
    ) -> tuple[str, str]:
        """Load the lane's entries for one instruction of each block.

        Args:
            stem: beginning of the array's name.
            shape: numbers of blocks, of quads of terms, and of halves: the axes of the
                array.
            entry_at: returns the entry to load for these three coordinates.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
        """
        array = self.writer.array(stem, shape, self.dtype)
        # registers cannot be indexed at run time: all these loops are unrolled
        inames = [self.writer.unroll(n) for n in shape]
        block, quad, half = map(var, inames)
        return array, self.writer.assign(
            "fragment", var(array)[block, quad, half], entry_at(block, quad, half),
            [*loops, *inames], after,
        )  # fmt: skip

    def load_tile(
        self,
        tile: Tiled,
        first: Expression,
        step: Expression,
        loops: Names,
        after: Names,
        *,
        is_left: bool,
    ) -> tuple[str, str]:
        """Load the lane's entries of a tile for one instruction of each block.

        Args:
            tile: the operand.
            first: first row or column of the warp.
            step: number of the instruction along the sum.
            loops: inames of the loops around the statements.
            after: ids of the statements before them.
            is_left: whether the operand is the left factor.

        Returns:
            The array, and the id of the last statement.
        """
        stem, length, n_halves, n_blocks = (
            ("left", ROWS, HALVES, self.n_blocks[0])
            if is_left
            else ("right", COLUMNS, 1, self.n_blocks[1])
        )

        def entry(block: Expression, quad: Expression, half: Expression) -> Expression:
            wide = self.compute_row_or_column(first, length, block, half)
            return tile.at(self.term(step, quad), wide)

        shape = (n_blocks, self.terms // QUAD, n_halves)
        return self.load_fragments(stem, shape, entry, loops, after)

    def multiply(
        self,
        entries: Sequence[p.Subscript],
        loops: Sequence[str],
        after: Collection[str],
    ) -> str:
        """Write one instruction; return the id of the statement.

        Args:
            entries: the first entries of the sums, of the left factor and of the right
                one, which are arrays of :meth:`clear_sums` and :meth:`load_fragments`.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
        """
        # C takes pointers to the first entries, so offsets go through scalars
        writer = self.writer
        pointers, ids = zip(*(writer.point_to(x, loops) for x in entries), strict=True)
        product = FragmentProduct(self.terms, *pointers)
        return writer.state("multiply", product, loops, [*after, *ids])


@dataclass(frozen=True)
class HalfWarpProduct(WarpProduct):
    """A warp's tile of sums of products of halves."""

    def load_tile(
        self,
        tile: Tiled,
        first: Expression,
        step: Expression,
        loops: Names,
        after: Names,
        *,
        is_left: bool,
    ) -> tuple[str, str]:
        n_loads = (self.height if is_left else self.width) // LOADED
        n_registers = N_BLOCKS if is_left else N_BLOCKS // 2
        shape = (n_loads * N_BLOCKS // n_registers, n_registers, NEIGHBOURS)
        load = partial(self._load, shape, first, step, is_left, loops, after)
        loaded = [load(shared, tile) for shared in tile.tiles]
        arrays, ids = zip(*loaded, strict=True)
        # barriers order them, which Loopy cannot see
        self.writer.note_ordered(*ids)
        if not tile.is_function:
            return arrays[0], ids[0]
        inames = [self.writer.unroll(n) for n in shape]
        block, register, e = map(var, inames)
        quad = p.FloorDiv(register, HALVES) if is_left else register
        term = p.Sum((self.terms * step, SIDE * quad, NEIGHBOURS * self.t, e))
        entries = [var(array)[block, register, e] for array in arrays]
        result = self.writer.array("factor", shape, self.dtype)
        return result, self.writer.assign(
            "factor", var(result)[block, register, e], tile.value(entries, term),
            [*loops, *inames], ids,
        )  # fmt: skip

    def _load(
        self,
        shape: tuple[int, int, int],
        first: Expression,
        step: Expression,
        is_left: bool,
        loops: Names,
        after: Names,
        shared: SharedTile,
        tile: Tiled,
    ) -> tuple[str, str]:
        """Load the fragments of one array; return their array and the id."""
        writer = self.writer
        array = writer.array("left" if is_left else "right", shape, self.dtype)
        per_load = N_BLOCKS // shape[1]
        number = writer.unroll(shape[0] // per_load)
        row, *halves = ADDRESSES.coordinates(var(self.lane))
        of_side, of_terms = halves if is_left else halves[::-1]
        wide = p.Sum((first, LOADED * var(number), SIDE * of_side))
        deep = p.Sum((self.terms * step, SIDE * of_terms))
        wide, deep = (
            (p.Sum((wide, row)), deep) if shared.is_deep else (wide, p.Sum((deep, row)))
        )
        inside = (*loops, number)
        entries = (
            var(array)[per_load * var(number), 0, 0],
            shared.at(var(tile.slot), deep, wide),
        )
        pointers, ids = zip(
            *(writer.point_to(x, inside, after) for x in entries), strict=True
        )
        load = BlockLoad(not shared.is_deep, *pointers)
        return array, writer.state("fragment", load, inside, (*after, *ids))
