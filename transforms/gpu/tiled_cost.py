"""What tiled products cost, whatever multiplies the tiles."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from feinsum.ir import BatchedEinsum
from feinsum.targets.cuda.figures import MOST_REGISTERS
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    LATENCY_S,
    LINE_BYTES,
    UNROLLED,
    WARP,
    Launch,
    itemsize_of,
    launch_s,
    loads,
    read_bytes,
)
from feinsum.transforms.gpu.sides import sides_of

__all__ = ["Tiles", "tiled_s"]

STEPS_OF_TILE = 4
"""Latency of a tile until it is in shared memory, in loads of a sum."""


class Tiles(NamedTuple):
    """Lengths of the tiles; ``stages`` of them are in shared memory at once.

    Attributes:
        piece: see :func:`feinsum.transforms.gpu.sides.sides_of`.
        shares: of the tiles along the summed indices.
    """

    across: int
    along: int
    depth: int
    stages: int
    piece: int | None = None
    shares: int = 1


def tiled_s(
    einsum: BatchedEinsum,
    machine: Machine,
    tiles: Tiles,
    *,
    n_items: int,
    cycles: float,
    shared_bytes: int,
    registers: int,
    chains: int,
    is_on_tensor_cores: bool = False,
) -> float:
    """Seconds of a product; tiles come from the caches once for each group.

    Args:
        n_items: of a work-group.
        cycles: in which a warp begins to read what it needs for a step of the sum.
        registers, chains: see :class:`feinsum.transforms.gpu.cost.Launch`.
    """
    gpu, sides = machine.gpu, sides_of(einsum, einsum.extents, tiles.piece)
    assert gpu is not None
    assert sides is not None
    if registers > MOST_REGISTERS:
        return inf
    n_tiles = -(-sides.summed.number() // (tiles.depth * tiles.shares))
    n_groups = (
        sides.batch.number()
        * tiles.shares
        * (
            -(-sides.across.number() // tiles.across)
            * -(-sides.along.number() // tiles.along)
        )
    )
    itemsize, n_rows = itemsize_of(einsum), einsum.batch_size
    held = {
        **sides.across.held(tiles.across),
        **sides.along.held(tiles.along),
        **sides.summed.held(tiles.depth),
    }
    tile_bytes = sum(read_bytes(einsum, *load, held) for load in loads(einsum))
    out = read_bytes(einsum, einsum.output, itemsize, held) * n_rows
    # tiles are read from the caches and written to shared memory
    requests = 2 * tile_bytes / LINE_BYTES + n_items / WARP * tiles.depth * cycles
    entries = tiles.depth * tiles.across * tiles.along
    product_s = launch_s(
        gpu,
        Launch(
            n_groups=n_groups,
            n_items=n_items,
            itemsize=itemsize,
            multiply_adds=n_groups * n_tiles * entries * n_rows,
            requests=n_groups * (n_tiles * requests + out / LINE_BYTES),
            cached_bytes=n_groups * (n_tiles * tile_bytes + out),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=STEPS_OF_TILE * n_tiles / max(tiles.stages - 1, 1),
            shared_bytes=shared_bytes,
            registers=registers,
            chains=chains,
            is_on_tensor_cores=is_on_tensor_cores,
        ),
    )
    return product_s + _parts_s(einsum, machine, tiles.shares)


def _parts_s(einsum: BatchedEinsum, machine: Machine, shares: int) -> float:
    """To write parts of sums, and to add them in a second launch."""
    gpu = machine.gpu
    assert gpu is not None
    if shares == 1:
        return 0.0
    n_bytes = points(einsum, einsum.output) * itemsize_of(einsum) * einsum.batch_size
    rate = gpu.bandwidth_bytes_per_s
    return gpu.launch_s + LATENCY_S * shares / UNROLLED + 2 * shares * n_bytes / rate
