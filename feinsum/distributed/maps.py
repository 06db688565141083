"""Maps: which index each machine axis partitions, for one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.groups import Access, Group
from feinsum.distributed.machine import Machine

MOST_EXCESS = 1.25
"""Work of the process that has the most, over the average, that counts as even."""


class Tier(Enum):
    """Which maps of a group to consider: those of the first nonempty tier."""

    EVEN = "no process has much more to do than the average"
    FULL = "no index is cut into more blocks than it has values"
    ANY = "the process that has the most to do has the least possible"


@dataclass(frozen=True, eq=False)
class GroupMaps:
    """All ways to map the axes of a machine to the indices of a group.

    Attributes:
        maps: number of an index for each axis; -1 for none.
        costs: elements beyond one copy of each tensor.
    """

    group: Group
    maps: NDArray[np.int64]
    costs: NDArray[np.float64]

    def axes(self, row: int) -> tuple[str | None, ...]:
        indices = (*self.group.indices, None)
        return tuple(indices[k] for k in self.maps[row].tolist())


def group_maps(
    group: Group,
    extents: Mapping[str, int],
    machine: Machine,
    skipped: Sequence[Access],
    most_elements: float,
    tier: Tier,
    most_excess: float,
    of_axes: NDArray[np.float64],
) -> GroupMaps | None:
    """The maps of a tier; None if there are none.

    Args:
        of_axes: see :class:`feinsum.distributed.levels.CopyCosts`.
    """
    indices = group.indices
    # -1 is None in GroupMaps.axes: a scalar has nothing to partition
    numbers = range(len(indices)) if indices else [-1]
    maps = np.array(list(product(numbers, repeat=machine.n_axes)), np.int64)
    maps = maps.reshape(len(maps), machine.n_axes)
    parts = np.ones((len(maps), len(indices) + 1))
    for axis, size in enumerate(machine.sizes):
        parts[np.arange(len(maps)), maps[:, axis]] *= size
    parts = parts[:, : len(indices)]
    lengths = np.array([extents[i] for i in indices], float).reshape(1, -1)
    blocks = np.ceil(lengths / parts)
    work = blocks.prod(axis=1)
    excess = work * machine.n_processes / max(1.0, lengths.prod())
    is_viable = (parts <= np.maximum(lengths, 1)).all(axis=1)
    if tier is Tier.EVEN:
        is_viable &= excess <= most_excess + 1e-9
    elif tier is Tier.ANY:
        is_viable = work == work.min()
    is_viable &= _least_held(group, extents, blocks) <= most_elements
    if not is_viable.any():
        return None
    maps = maps[is_viable]
    costs = np.zeros(len(maps))
    counted = [*group.inputs, group.output]
    for access in skipped:
        counted.remove(access)
    for access in counted:
        used = [indices.index(i) for i in access.indices]
        size = prod(extents[i] for i in access.indices)
        is_copied = ~np.isin(maps, used)
        costs += size * of_axes[is_copied @ 2 ** np.arange(machine.n_axes)]
    excess = excess[is_viable]
    costs += 0.01 * np.clip(excess - 1, 0, 1)  # between equals, the even one
    return GroupMaps(group, maps, costs)


def _least_held(
    group: Group, extents: Mapping[str, int], blocks: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Elements of the blocks of a group, with the best sequential loop."""
    indices = group.indices

    def held(looped: str | None) -> NDArray[np.float64]:
        total = np.zeros(len(blocks))
        for access in (*group.inputs, group.output):
            used = [indices.index(i) for i in access.indices if i != looped]
            total += blocks[:, used].prod(axis=1)
        return total

    least = held(None)
    for index in group.summed:
        least = np.minimum(least, held(index))
    return least
