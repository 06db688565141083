"""Tiles that move the least, attaining a lower bound.

Source: :mod:`feinsum.bounds`, which proves that no tiles move fewer bytes.
"""

from __future__ import annotations

from math import log, prod

from feinsum.bounds import MemoryLevel, bound_at
from feinsum.errors import BoundError
from feinsum.ir import SizeParam, Workload
from feinsum.transforms.library.packed.plan import find_roles
from feinsum.transforms.library.packed.space import constraint, space, wide_tiles
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters, points
from feinsum.transforms.roles import text

__all__ = ["least_tile", "starts"]

CACHE_BYTES = 1 << 20
"""Of the second level, which is that of one core, and holds what is packed on the left;
half as much or twice as much changes the sides of a tile by less than a half.
"""
MOST_OPERANDS = 4
"""Of more, the search of a bound takes longer than a trial is worth."""


def starts(workload: Workload) -> tuple[Parameters, ...]:
    """Starting points: those for the longest vectors, and one that moves the least."""
    wide = wide_tiles(workload)
    offered = space(workload)
    first = offered and next(points(offered, workload, constraint), None)
    if not offered or not first:
        return wide
    base = wide[0] if wide else first
    tile = _areas(workload, text(base, "vector"), text(base, "register"))
    sides = {
        name: _nearest([n for n in offered[name] if isinstance(n, int)], size)
        for name, size in tile.items()
    }
    one = {**base, **sides}
    is_new = one not in (*wide, first) and constraint(workload, one) is None
    return (*wide, one) if sides and is_new else wide


def least_tile(workload: Workload) -> dict[str, int]:
    """The tile, by index, that moves the least into a core's cache.

    None if every array moves once whatever the tiles, or if a size is unknown.

    >>> from feinsum.ir import array, einsum
    >>> A, B = array("A", (3000, 3000)), array("B", (3000, 3000))
    >>> tile = least_tile(Workload(einsum("ij,jk->ik", A, B)))
    >>> sorted(tile), len({*tile.values()})
    (['i', 'j', 'k'], 1)
    """
    einsum = workload.known
    is_known = not any(isinstance(x, SizeParam) for x in einsum.extents.values())
    if not is_known or einsum.n_operands > MOST_OPERANDS:
        return {}
    levels = [MemoryLevel("cache", CACHE_BYTES), MemoryLevel("memory", None)]
    try:
        return dict(bound_at(einsum, {}, levels).level("memory").tile)
    except BoundError:
        return {}


def _areas(workload: Workload, vector: str, register_index: str) -> dict[str, int]:
    """Width, height and depth of that tile, of the roles of a pair of indices."""
    tile = least_tile(workload)
    roles = find_roles(workload.einsum, vector, register_index)
    if not tile or roles is None:
        return {}
    sides: dict[str, Names] = {
        "width": roles.columns,
        "height": roles.rows,
        "depth": roles.summed,
    }
    if not all(index in tile for indices in sides.values() for index in indices):
        return {}
    return {name: prod(tile[i] for i in indices) for name, indices in sides.items()}


def _nearest(offered: list[int], size: int) -> int:
    """By the ratio.

    >>> _nearest([96, 192, 384], 150)
    192
    """
    return min(offered, key=lambda n: abs(log(n / max(size, 1))))
