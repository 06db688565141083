"""The parameters of products on tensor cores: which, where to begin, what they cost."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod

import numpy as np

from feinsum.ir import BatchedEinsum, Workload
from feinsum.transforms.cost import Machine
from feinsum.transforms.gpu.cost import LINE_BYTES
from feinsum.transforms.gpu.grid import MOST_ITEMS
from feinsum.transforms.gpu.sides import (
    LEAST_REUSE,
    pieces_of,
    sides_of,
    staged,
    suited,
)
from feinsum.transforms.gpu.tile_shapes import Turn, tile_entries, uneven_tile
from feinsum.transforms.gpu.tiled_cost import Tiles, tiled_s
from feinsum.transforms.gpu.tiled_product import ARGUMENTS, COPY_WAYS
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.registry import Parameters, Space, choices
from feinsum.transforms.roles import number, reuse, volume

__all__ = [
    "constraint",
    "constraint_1",
    "cost",
    "proposals",
    "space",
    "space_1",
    "starts",
]

SHARED_BYTES = 163 << 10
"""Of a work-group, on a GPU of sm_80; some newer ones have less, and refuse it."""

GROUPS = 1024
"""Groups up to which sums are shared."""

MOST_SHARES = 64

LEAST_TILES = 8
"""Along the summed indices, in each of several shares."""

MOST_SUMS = 64
"""Of a lane, each of two registers of 255."""


def space_1(workload: Workload) -> Space | None:
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


def space(workload: Workload) -> Space | None:
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
