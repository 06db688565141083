"""Grids for one group at a time.

Source: Deinsum, section IV (grids from the tiles of its bound).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, exp, log, prod

import numpy as np
from numpy.typing import NDArray

from feinsum.bounds import intensity_of, statement
from feinsum.distributed.groups import Group


def by_first_use(group: Group) -> tuple[str, ...]:
    """The indices of a group, in order of first use in its terms."""
    used = [i for access in (*group.inputs, group.output) for i in access.indices]
    return tuple(dict.fromkeys(used))


def deinsum_grid(group: Group, extents: Mapping[str, int], n: int) -> tuple[int, ...]:
    """The grid of Deinsum's heuristic, with indices in order of first use.

    Tiles with the shape preferred by the bound cover the work of one process, clipped
    to the extents. The grid has one part per tile of each index; its largest numbers
    are lowered until it fits the number of processes. Some processes may be idle.

    >>> from feinsum.distributed.groups import Access
    >>> mttkrp = Group((Access("X", "ijk"), Access("B", "ja"), Access("C", "ka")),
    ...                Access("M", "ia"))
    >>> deinsum_grid(mttkrp, {"i": 512, "j": 512, "k": 512, "a": 24}, 8)
    (2, 2, 2, 1)
    """
    indices = by_first_use(group)
    if min((extents[i] for i in indices), default=0) < 1:
        return (1,) * len(indices)
    tile = _tile(group, indices, extents, n)
    # tiles come from logarithms, so that 8 may be a little more than 8
    grid = [
        ceil(extents[i] / ceil(t - 1e-9)) for i, t in zip(indices, tile, strict=True)
    ]
    while prod(grid) > n:
        grid[grid.index(max(grid))] -= 1
    return tuple(grid)


def _tile(
    group: Group, indices: Sequence[str], extents: Mapping[str, int], n: int
) -> list[float]:
    """The tile of one process: as the bound has it, no longer than extents."""
    letters = {i: chr(ord("a") + k) for k, i in enumerate(indices)}
    terms = [
        "".join(letters[i] for i in a.indices) for a in (*group.inputs, group.output)
    ]
    text = f"{','.join(terms[:-1])}->{terms[-1]}"
    found = statement(text, {letters[i]: max(2, extents[i]) for i in indices})
    intensity = intensity_of(found)
    shared = zip(map(float, intensity.exponents), intensity.cover.terms, strict=True)
    active = [(s, a) for s, a in shared if s]
    total = sum(s for s, _ in active)
    matrix = np.array([[float(letters[i] in a) for i in indices] for _, a in active])
    shares = np.log([s / total for s, _ in active])
    most = np.log([extents[i] for i in indices])
    wanted = most.sum() - log(n)
    clamped: dict[int, float] = {}
    while True:
        logs = _solved(matrix, shares, wanted, clamped)
        too_long = [k for k in range(len(indices)) if logs[k] > most[k] + 1e-12]
        too_long = [k for k in too_long if k not in clamped]
        if not too_long:
            return [max(1.0, exp(x)) for x in logs]
        clamped.update((k, most[k]) for k in too_long)


def _solved(
    matrix: NDArray[np.float64],
    shares: NDArray[np.float64],
    wanted: float,
    clamped: Mapping[int, float],
) -> list[float]:
    """Logarithms of the tile of a volume whose accesses have given shares.

    Of all such tiles the one closest to a cube.
    """
    n = matrix.shape[1]
    logs = np.array([clamped.get(k, 0.0) for k in range(n)])
    free = [k for k in range(n) if k not in clamped]
    if free:
        right = np.stack([shares - matrix @ logs, np.ones(len(shares))], axis=1)
        (begin, growth) = np.linalg.lstsq(matrix[:, free], right, rcond=None)[0].T
        total = growth.sum()
        size = (wanted - logs.sum() - begin.sum()) / total if total > 1e-9 else 0.0
        logs[free] = begin + size * growth
    return [float(x) for x in logs]


def footprint_grid(group: Group, extents: Mapping[str, int], n: int) -> tuple[int, ...]:
    """The grid with the fewest elements in the blocks of a process.

    This measures what a process holds, not what it moves. Ties go to the first grid.
    """
    indices = by_first_use(group)
    grids = most_within(n, indices, extents)
    blocks = np.array([extents[i] for i in indices], float) / grids
    held = np.zeros(len(grids))
    for access in (*group.inputs, group.output):
        held += blocks[:, [indices.index(i) for i in access.indices]].prod(axis=1)
    # equal but for rounding, whatever the order of the products
    is_least = held <= held.min() * (1 + 1e-12)
    return tuple(grids[int(is_least.argmax())].tolist())


def grids_within(
    n: int, indices: Sequence[str], extents: Mapping[str, int]
) -> NDArray[np.int64]:
    """All grids of n processes with no more parts of an index than it has values."""
    grids = _grids(n, len(indices))
    most = np.array([max(1, extents[i]) for i in indices], np.int64)
    return grids[(grids <= most).all(axis=1)]


def most_within(
    n: int, indices: Sequence[str], extents: Mapping[str, int]
) -> NDArray[np.int64]:
    """The grids of n processes; if there are none, of the most that have one."""
    for processes in range(n, 0, -1):
        grids = grids_within(processes, indices, extents)
        if len(grids):
            return grids
    raise AssertionError("one process always fits")


@lru_cache(64)
def _grids(n: int, n_axes: int) -> NDArray[np.int64]:
    """Factorizations of ``n`` into ``n_axes`` ordered factors, in order."""
    if n_axes == 0:
        return np.empty((int(n == 1), 0), np.int64)
    rows = []
    for first in (d for d in range(1, n + 1) if n % d == 0):
        rest = _grids(n // first, n_axes - 1)
        rows.append(np.insert(rest, 0, first, axis=1))
    found: NDArray[np.int64] = np.concatenate(rows)
    return found
