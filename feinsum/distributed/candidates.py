"""Plans in which every group has a grid of its own, for the planner to compare.

Such grids can move less than any map of one machine to all groups, because their blocks
may be uneven, and processes that are idle fetch nothing.

Source: Deinsum, section IV (tiles of its bound, smallest blocks); EinDecomp (Bourgeois
et al.); Ballard et al. 2018 (MTTKRP with a stationary tensor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.grid_costs import eindecomp_grids
from feinsum.distributed.grids import (
    by_first_use,
    deinsum_grid,
    footprint_grid,
    grids_within,
)
from feinsum.distributed.groups import Group
from feinsum.distributed.machine import Machine
from feinsum.distributed.placing import needed_by, without_copies
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import GroupSchedule

Grid: TypeAlias = tuple[int, ...]
"""The number of parts of each index of a group, in order of first use."""
Choose: TypeAlias = Callable[
    [Sequence[Group], Mapping[str, int], int], list[Grid] | None
]
"""The grids for groups, extents and processes; None if it does not fit them."""


def grid_plans(plan: Plan) -> dict[str, Plan]:
    """Plans of the same einsums by the names in :data:`GRIDS`, as far as they fit."""
    found = {}
    for name, choose in GRIDS.items():
        grids = choose(plan.groups, plan.extents, plan.processes)
        if grids is not None:
            pairs = zip(plan.groups, grids, strict=True)
            schedules = [on_grid(group, grid) for group, grid in pairs]
            found[name] = with_schedules(plan, schedules, name=name)
    return found


def on_grid(group: Group, grid: Sequence[int]) -> GroupSchedule:
    """A group on its own grid, ranks in row-major order; sums go to one rank.

    Args:
        grid: the number of parts of each index, in order of first use.
    """
    used = [(i, p) for i, p in zip(by_first_use(group), grid, strict=True) if p > 1]
    axes, machine = tuple(i for i, _ in used), Machine(tuple(p for _, p in used))
    result = without_copies(needed_by(axes, group.output, machine))
    return GroupSchedule(machine, axes, result)


def _stationary(
    groups: Sequence[Group], extents: Mapping[str, int], n: int
) -> list[Grid] | None:
    """The largest tensor stays, all else is copied or reduced: MTTKRP, TTM and TTV.

    Of all grids over the axes of the tensor the one that moves the least. Only blocks
    that are not empty count: 9 values in 8 parts are in 5 blocks.
    """
    tensor = max(
        (access for group in groups for access in group.inputs),
        key=lambda access: prod(extents[i] for i in access.indices),
    )
    if len(groups) != 1 or len(tensor.indices) < 3:
        return None
    (group,) = groups
    grids = grids_within(n, tensor.indices, extents)
    if not len(grids):
        return None
    lengths = np.array([max(1, extents[i]) for i in tensor.indices], np.int64)
    blocks = -(-lengths // -(-lengths // grids))
    moved = np.zeros(len(grids))
    for access in (*group.inputs, group.output):
        others = [k for k, i in enumerate(tensor.indices) if i not in access.indices]
        size = prod(extents[i] for i in access.indices)
        moved += size * (blocks[:, others].prod(axis=1) - 1.0)
    chosen = grids[int(moved.argmin())].tolist()
    parts = dict(zip(tensor.indices, chosen, strict=True))
    return [tuple(parts.get(i, 1) for i in by_first_use(group))]


def _each(choose: Callable[[Group, Mapping[str, int], int], Grid]) -> Choose:
    """A grid for every group, whatever the others have."""

    def grids(
        groups: Sequence[Group], extents: Mapping[str, int], n: int
    ) -> list[Grid]:
        return [choose(group, extents, n) for group in groups]

    return grids


GRIDS: Mapping[str, Choose] = {
    "stationary": _stationary,
    "deinsum": _each(deinsum_grid),
    "footprint": _each(footprint_grid),
    "eindecomp": eindecomp_grids,
}
"""The ways to choose a grid for every group."""
