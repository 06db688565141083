"""Fragments of halves: 16 terms in each instruction, sums in single precision.

One instruction ``mma.m16n8k16`` adds ``sums[16,8] += left[16,16] @ right[16,8]``. Lane
``4*g + t`` holds two neighbouring terms in a register:

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

Source: NVIDIA, PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"
and "ldmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu.fragments import HALVES, WarpProduct
from feinsum.transforms.gpu.layouts import TileLayout
from feinsum.transforms.gpu.pipeline import SharedTile, Tiled
from feinsum.transforms.primitives.load_blocks import (
    N_BLOCKS,
    SIDE,
    BlockLoad,
    load_blocks,
)
from feinsum.transforms.primitives.schedule import Expression, Names

NEIGHBOURS = 2
"""Neighbouring terms in a register."""

LOADED = 2 * SIDE
"""Rows or columns, and terms, of the four blocks of a load."""

ADDRESSES = TileLayout((SIDE, 2, 2), (1, SIDE, 2 * SIDE))
"""From the row of a block and the block's two coordinates to the lane with its address.
"""


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
        """Load the fragments of all blocks of the warp for one instruction of each.

        Args:
            tile: the operand.
            first: first row or column of the warp.
            step: number of the instruction along the sum.
            loops: inames of the loops around the statements.
            after: ids of the statements before them.
            is_left: whether the operand is the left factor.
        """
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
        target, target_id = writer.assign_offset(
            var(array)[per_load * var(number), 0, 0], inside, after
        )
        source, source_id = writer.assign_offset(
            shared.at(var(tile.slot), deep, wide), inside, after
        )
        load = BlockLoad(not shared.is_deep, (array, target), (shared.array, source))
        build = partial(load_blocks, load)
        return array, writer.add(
            "fragment", build, inside, (*after, target_id, source_id)
        )
