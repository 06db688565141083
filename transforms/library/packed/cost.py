"""The cost of packed tiles: multiply-adds of register tiles, packing, stores."""

from __future__ import annotations

from math import ceil, prod

from feinsum.ir import BatchedEinsum
from feinsum.transforms.cost import Machine, distinct_bytes, padding, points, region_s
from feinsum.transforms.library.packed.plan import Roles, find_roles
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, text

__all__ = ["packed_cost"]

PACK_CYCLES = 1.0
"""Of an entry whose neighbours in the pack are neighbours in memory, over a vector."""
TURN_CYCLES = 2.0
"""Of an entry that is brought to its place by squares, or alone."""
TILE_CYCLES = 20.0
"""To begin a register tile, beside loads and stores of its sums."""
SCATTERED_CYCLES = 3.0
"""To store an entry of a vector whose entries lie apart."""
LATENCY_CYCLES = 5.0
"""Of a multiply-add, which the next one to the same sum waits for, and of a step of the
loop. With vectors of four doubles, eight sums would be just enough for four cycles; of
the 201 packaged facts with such vectors 27 have eight sums, and 140 have twelve.
"""
MANY_VECTORS, MANY_VECTORS_FACTOR = 4, 1.25
"""Tiles of five vectors were a quarter slower than their multiply-adds with gcc 12."""
CALL_CYCLES = 300.0
"""To begin a tile in the caches."""


def packed_cost(
    einsum: BatchedEinsum, parameters: Parameters, machine: Machine
) -> float:
    """Seconds of :func:`packed_contraction`, each tile padded to its size."""
    pair = text(parameters, "vector"), text(parameters, "register")
    roles = find_roles(einsum, *pair)
    assert roles is not None
    dtype = einsum.operands[0].dtype
    asked = number(parameters, "lanes")
    lanes = min(asked, machine.lanes(dtype))
    n_vectors = number(parameters, "vectors") * asked // lanes
    n_rows = number(parameters, "rows")
    columns, rows, summed = (
        points(einsum, part) for part in (roles.columns, roles.rows, roles.summed)
    )
    postponed = points(einsum, roles.postponed)
    batch = points(einsum, (*roles.batch, *roles.outer))
    width_unit = n_vectors * lanes
    wide = columns * padding(points(einsum, pair[:1]), width_unit)
    high = rows * padding(points(einsum, pair[1:]), n_rows)
    n_tiles = wide * high / (width_unit * n_rows)
    depth = min(summed, number(parameters, "depth"))
    step = max(
        n_rows * n_vectors * machine.fma_cycles(lanes * dtype.itemsize),
        n_vectors * machine.fma_cycles(lanes * dtype.itemsize) + n_rows / 2,
        LATENCY_CYCLES,
    )
    spilled = max(0, n_rows * n_vectors + n_vectors + 1 - _registers(machine))
    n_depths = ceil(summed / depth)
    if n_vectors > MANY_VECTORS:
        step *= MANY_VECTORS_FACTOR
    per_tile = summed * (step + 2 * spilled)
    per_tile += n_depths * (TILE_CYCLES + 3 * n_rows * n_vectors)
    multiply = batch * postponed * n_tiles * per_tile
    side = [
        min(n, number(parameters, k)) for n, k in ((columns, "width"), (rows, "height"))
    ]
    n_areas = prod(ceil(n / s) for n, s in zip((columns, rows), side, strict=True))
    n_groups = prod(n / s for n, s in zip((columns, rows), side, strict=True))
    pack = batch * _pack_cycles(einsum, roles, parameters, lanes, side)
    cycles = (
        einsum.batch_size * (multiply + pack) + CALL_CYCLES * n_areas * batch * n_depths
    )
    is_along = pair[0] == einsum.output[-1]
    each = 2.0 / lanes if is_along else SCATTERED_CYCLES
    cycles += einsum.batch_size * points(einsum, einsum.output) * each
    read, written = distinct_bytes(einsum)
    stored = 1.0 if parameters.get("stores") == "streamed" else 1.7
    return region_s(
        machine,
        cycles,
        read + stored * written,
        n_groups=max(1.0, n_groups * batch),
        footprint=read + written,
    )


def _registers(machine: Machine) -> int:
    return 32 if machine.vector_bytes >= 64 else 16


def _pack_cycles(
    einsum: BatchedEinsum,
    roles: Roles,
    parameters: Parameters,
    lanes: int,
    side: list[int],
) -> float:
    """For one value of the batch: each side is packed once for a tile of the other."""
    columns, rows, summed = (
        points(einsum, part) for part in (roles.columns, roles.rows, roles.summed)
    )
    width, height = side
    right = columns * summed * points(einsum, roles.postponed)
    left = rows * summed * points(einsum, roles.folded)
    n_left = ceil(columns / width) if parameters["inside"] == "rows" else 1
    n_right = ceil(rows / height)
    terms = einsum.inputs
    is_along = terms[roles.right][-1] == parameters["vector"]
    right_cycles = PACK_CYCLES * 2 / lanes if is_along else TURN_CYCLES
    return right * right_cycles * n_right + left * TURN_CYCLES * n_left * len(
        roles.left
    )
