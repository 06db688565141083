"""Contractions of two operands, tiled as a matrix product is tiled.

Source: paper, section 8.2 (tensor contractions); Springer and Bientinesi 2018
for the idea that tiles of the operands are packed, and never whole operands.
"""

from __future__ import annotations

from dataclasses import dataclass

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent
from feinsum.raising import LoopNest
from feinsum.transforms.library.roles import (
    carriers,
    fitting_lanes,
    free_indices,
    has_real_dtype,
    is_plain,
    number,
    text,
    typical,
)
from feinsum.transforms.primitives import (
    Block,
    Schedule,
    begin,
    even_block,
    factor_domains,
    index_by_inames,
    join_domains,
    peel_remainder,
    split,
    stage_accumulator,
    stage_operand,
)
from feinsum.transforms.registry import Parameters, Space, Transform, register

__all__ = ["TILED_CONTRACTION"]


def tiled_contraction(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Tile over a vector index, a register index and the longest summed index.

    Rewrite, for ``ac,cb->ab`` with the vector index b and the register index a::

        for a, b:  out[a,b] = sum(c, A[a,c]*B[c,b])

        for b_group, a_group in parallel:
            acc[...] = 0
            for c_outer:
                B_tile[c_inner,v,:], A_tile[c_inner,a_block,a_row] = ...
                for a_block < blocks:
                    for c_inner:
                        for a_row < rows, v < vectors:        # unrolled
                            acc[a_block,a_row,v,:] +=
                                A_tile[c_inner,a_block,a_row]*B_tile[c_inner,v,:]
            out[...] = acc[...]

    Another output index joins the grid; those left are sequential loops.

    Parameters:
        vector: index in the output and in one operand; its entries are lanes.
        register: index in the output and in the other operand.
        lanes: entries of a vector.
        vectors: vectors of a tile.
        rows: register rows of a tile.
        blocks: tiles in the direction of the register index per work-group.
        depth: length of a block of the summed index.
    """
    extent = nest.extent(text(parameters, "vector"))
    lanes = fitting_lanes(extent, number(parameters, "lanes"))
    if lanes == 1:
        raise TransformError(f"{extent} entries are too few for vectors")
    schedule, tile = _tiled(join_domains(begin(t_unit, nest)), parameters, lanes)
    return _accumulate(_stage(schedule, tile), tile).t_unit


@dataclass(frozen=True)
class _Tile:
    """The loops of a tile, and those around it; ``blocks`` is empty for one."""

    columns: Block
    vector: Block
    blocks: tuple[str, ...]
    row: str
    depth: Block
    grid: tuple[str, ...]
    between: tuple[str, ...]


def _tiled(
    schedule: Schedule, parameters: Parameters, lanes: int
) -> tuple[Schedule, _Tile]:
    """Split the loops; what the vectors do not divide is peeled off."""
    inames = schedule.inames
    vector_index = text(parameters, "vector")
    register_index = text(parameters, "register")
    rows, blocks = _register_tile(schedule.extents[register_index], parameters)
    width = lanes * number(parameters, "vectors")
    schedule, columns = split(schedule, inames[vector_index], width, outer_tag="g.0")
    schedule, strip = split(
        schedule, inames[register_index], rows * blocks, outer_tag="g.1"
    )
    used = (vector_index, register_index)
    others = [inames[index] for index in schedule.output if index not in used]
    grid = (columns.outer, strip.outer, *others[:1])
    schedule = schedule.with_unit(
        lp.tag_inames(schedule.t_unit, dict.fromkeys(others[:1], "g.2"))
    )
    schedule = peel_remainder(schedule, vector_index, columns, lanes, grid)
    schedule, vector = split(schedule, columns.inner, lanes, inner_tag="vec")
    schedule, row = _split_rows(schedule, strip, rows)
    *shorter, longest = sorted(
        schedule.summed, key=lambda index: typical(schedule.extents[index])
    )
    schedule, depth = split(schedule, inames[longest], number(parameters, "depth"))
    between = (*others[1:], *(inames[index] for index in shorter), depth.outer)
    return schedule, _Tile(columns, vector, *row, depth, grid, between)


def _register_tile(extent: Extent, parameters: Parameters) -> tuple[int, int]:
    """Rows and blocks, so that they divide a known extent where that is possible."""
    rows, blocks = number(parameters, "rows"), number(parameters, "blocks")
    if isinstance(extent, int):
        rows = even_block(extent, rows)
        blocks = min(blocks, -(-extent // rows))
    return rows, blocks


def _split_rows(
    schedule: Schedule, strip: Block, rows: int
) -> tuple[Schedule, tuple[tuple[str, ...], str]]:
    """The loops over blocks of rows, if there are several, and over rows."""
    if strip.size == rows:
        return schedule, ((), strip.inner)
    schedule, row = split(schedule, strip.inner, rows)
    return schedule, ((row.outer,), row.inner)


def _stage(schedule: Schedule, tile: _Tile) -> Schedule:
    """Pack the tiles of both operands."""
    sweep = (
        *tile.blocks,
        tile.depth.inner,
        tile.row,
        tile.vector.outer,
        tile.vector.inner,
    )
    guards = [tile.vector.outer]
    for name in schedule.operands:
        schedule = index_by_inames(schedule, name, sweep)
        has_lanes = tile.vector.inner in schedule.spans[name]
        schedule, packed = stage_operand(
            schedule,
            name,
            (*tile.grid, *tile.between),
            lane=tile.vector.inner if has_lanes else None,
        )
        if tile.vector.outer in packed.inames:
            guards.append(packed.inames[tile.vector.outer])
    return factor_domains(schedule, tile.columns.outer, guards)


def _accumulate(schedule: Schedule, tile: _Tile) -> Schedule:
    """Unroll the register tile and sum in it."""
    unrolled = {tile.row: "unr", tile.vector.outer: "unr"}
    schedule = schedule.with_unit(lp.tag_inames(schedule.t_unit, unrolled))
    order = (
        *tile.between,
        *tile.blocks,
        tile.depth.inner,
        tile.row,
        tile.vector.outer,
    )
    for k, insn_id in enumerate(schedule.instructions):
        schedule = stage_accumulator(
            schedule,
            insn_id,
            (*tile.blocks, tile.row, tile.vector.outer),
            schedule.dtype_of_row(k),
            lane=tile.vector.inner,
            order=order,
        )
    return schedule


def _space(einsum: BatchedEinsum) -> Space | None:
    """Two operands, a summed index in both, and free indices that split them."""
    if einsum.n_operands != 2 or not has_real_dtype(einsum):
        return None
    if not einsum.summation_indices or not is_plain(einsum):
        return None
    vectors = tuple(i for i in free_indices(einsum) if typical(einsum.extents[i]) >= 8)
    pairs = _pairs(einsum, vectors)
    if not pairs:
        return None
    return {
        "vector": tuple(dict.fromkeys(v for v, _ in pairs)),
        "register": tuple(dict.fromkeys(r for _, r in pairs)),
        "lanes": (8, 4),
        "vectors": (3, 2, 4),
        "rows": (8, 6, 4),
        "blocks": (4, 2, 12),
        "depth": (64, 128, 32),
    }


def _pairs(einsum: BatchedEinsum, vectors: tuple[str, ...]) -> list[tuple[str, str]]:
    """Vector and register indices that stand in different operands."""
    registers = sorted(free_indices(einsum), key=lambda i: _register_cost(einsum, i))
    return [
        (v, r)
        for v in vectors
        for r in registers
        if carriers(einsum, v) != carriers(einsum, r)
    ]


def _register_cost(einsum: BatchedEinsum, index: str) -> tuple[bool, int]:
    """Rows are packed best along the last axis of their operand, and many of them."""
    (position,) = carriers(einsum, index)
    return einsum.inputs[position][-1] != index, -typical(einsum.extents[index])


def _constraint(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    vector, register_index = text(parameters, "vector"), text(parameters, "register")
    if carriers(einsum, vector) == carriers(einsum, register_index):
        return f"the indices {vector!r} and {register_index!r} are of one operand"
    n_registers = number(parameters, "rows") * number(parameters, "vectors")
    if n_registers * einsum.batch_size > 32:
        return f"{n_registers} accumulators for each of {einsum.batch_size} rows"
    return None


TILED_CONTRACTION = register(
    Transform(
        "tiled_contraction",
        1,
        "two operands, tiled and packed like a matrix product",
        _space,
        tiled_contraction,
        _constraint,
    )
)
