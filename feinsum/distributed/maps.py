"""Maps of one group to a machine, their costs, and overlaps of distributions.

A map says which index each machine axis partitions. For ``ij,jk->ik`` with extents
(600, 600, 600) on a machine ``x=2 y=2``, three of the nine maps::

    x  y    blocks        copies of A, B, C    elements beyond one copy
    i  k    300 600 300   y     x     none     A + B  = 720,000
    i  j    300 300 600   none  x     y        B + C  = 720,000
    i  i    150 600 600   none  x, y  none     3 B    = 1,080,000

A tensor that lacks an index is replicated along the axes that partition this index; for
a result, the copies are partial sums. :class:`GroupMaps` stores all maps of a group in
one array, since there may be thousands. :class:`Overlaps` counts, for all pairs of two
lists of distributions of a tensor, the elements that ranks both hold and need.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import take_block
from feinsum.distributed.distribution import Distribution, Machine
from feinsum.distributed.groups import Access, Group, get_shape
from feinsum.distributed.schedule import derive_distribution

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan

MAX_EXCESS = 1.25
"""Maximum ratio of the work of the busiest process to the average in an even map."""

MAX_AT_ONCE = 2**17
"""Combinations of distributions and ranks counted at a time: they fit into caches."""

MAX_CACHED = 2**16
"""Largest table that is cached for later requests, in entries."""


_Cuts: TypeAlias = tuple[int | tuple[int, int], ...]
"""Machine axes that partition one axis of a tensor; or with a fixed coordinate each."""


class Tier(Enum):
    """Which maps of a group to consider: those of the first nonempty tier."""

    EVEN = "no process has much more to do than the average"
    FULL = "no index is cut into more blocks than it has values"
    ANY = "the process that has the most to do has the least possible"


@dataclass(frozen=True, eq=False)
class GroupMaps:
    """All ways to map the axes of a machine to the indices of a group.

    Attributes:
        maps: number of an index for each axis, shape (n_maps, n_axes); -1 for none.
        costs: elements beyond one copy of each tensor, shape (n_maps,).
        resident: elements that a process holds at least, likewise.
    """

    group: Group
    maps: NDArray[np.int64]
    costs: NDArray[np.float64]
    resident: NDArray[np.float64]

    def axes(self, row: int) -> tuple[str | None, ...]:
        indices = (*self.group.indices, None)
        return tuple(indices[k] for k in self.maps[row].tolist())

    def with_start(
        self,
        bare: Plan,
        access: Access,
        start: Distribution,
        machine: Machine,
        of_element: float,
    ) -> GroupMaps:
        """Add the cost of moving an input from where it starts.

        Args:
            bare: the plan of the group.
            access: the input, which is dense.
            start: its initial distribution, on any machine.
            machine: the machine of the maps.
            of_element: cost of an element.
        """
        shape = get_shape(access, bare.extents)
        rows = range(len(self.maps))
        needs = [derive_distribution(self.axes(k), access, machine) for k in rows]
        costs = {
            need: of_element * count_moved(shape, start, need)
            for need in dict.fromkeys(needs)
        }
        of_map = np.array([costs[need] for need in needs])
        return replace(self, costs=self.costs + of_map)

    def select(self, rows: Sequence[int]) -> GroupMaps:
        """Return some of the maps, in that order."""
        of_rows = [*rows]
        return GroupMaps(
            self.group, self.maps[of_rows], self.costs[of_rows], self.resident[of_rows]
        )


def count_moved(
    shape: Sequence[int], source: Distribution, target: Distribution
) -> float:
    """Count the elements that ranks need in one distribution and lack in another."""
    n_ranks = max(source.machine.n_processes, target.machine.n_processes)
    return target.boxes(shape, n_ranks).count_missing(source.boxes(shape, n_ranks))


class Limits(NamedTuple):
    """The maps that a search considers.

    Attributes:
        max_elements: limit on the elements that a process holds.
        tier: which maps to consider.
        max_excess: limit on the work of a process over the average, for the first tier.
    """

    max_elements: float
    tier: Tier
    max_excess: float


def list_group_maps(
    bare: Plan,
    number: int,
    machine: Machine,
    skipped: Sequence[Access],
    of_axes: NDArray[np.float64],
    limits: Limits,
) -> GroupMaps | None:
    """Return the maps of a group within some limits; None if there are none.

    Args:
        bare: the plan of the group.
        number: the number of the group to map.
        machine: the machine whose axes partition indices.
        skipped: inputs that are not counted, because they were used before.
        of_axes: see :class:`feinsum.distributed.levels.CopyCosts`.
        limits: which maps to consider.
    """
    extents, group = bare.extents, bare.groups[number]
    indices = group.indices
    choices = _list_choices(bare, number, machine)
    if not choices:
        return None
    maps = np.array(choices, np.int64).reshape(len(choices), machine.n_axes)
    # axes without an index (-1) write to the extra, last column
    n_parts = np.ones((len(maps), len(indices) + 1))
    for axis, size in enumerate(machine.sizes):
        n_parts[np.arange(len(maps)), maps[:, axis]] *= size
    n_parts = n_parts[:, : len(indices)]
    lengths = np.array([extents[i] for i in indices], float).reshape(1, -1)
    blocks = np.ceil(lengths / n_parts)
    work = blocks.prod(axis=1)
    # 1 if all processes have the same work; more with ragged blocks
    excess = work * machine.n_processes / max(1.0, lengths.prod())
    is_viable = (n_parts <= np.maximum(lengths, 1)).all(axis=1)
    if limits.tier is Tier.EVEN:
        is_viable &= excess <= limits.max_excess + 1e-9
    elif limits.tier is Tier.ANY:
        is_viable = work == work.min()
    # with a loop this is a lower bound of what the final plan holds
    resident = _compute_min_resident(group, blocks, bare.density)
    is_viable &= resident <= limits.max_elements
    if not is_viable.any():
        return None
    maps, excess = maps[is_viable], excess[is_viable]
    costs = np.zeros(len(maps))
    accesses = list(group.accesses)
    for access in skipped:
        accesses.remove(access)
    for access in accesses:
        used = [indices.index(i) for i in access.indices]
        size = prod(extents[i] for i in access.indices)
        # the axes along which there are copies, as the bits of a number
        is_copied = ~np.isin(maps, used)
        costs += size * of_axes[is_copied @ 2 ** np.arange(machine.n_axes)]
    costs += 0.01 * np.clip(excess - 1, 0, 1)  # ties go to the map with even work
    return GroupMaps(group, maps, costs, resident[is_viable])


def _list_choices(bare: Plan, number: int, machine: Machine) -> list[tuple[int, ...]]:
    """Return the number of an index for each axis, for all maps of a group.

    Entries of a sparse tensor never move, and are never copied.
    """
    indices, walked = bare.groups[number].indices, bare.problem.walked[number]
    start = None if walked is None else bare.sparse_starts.get(walked.tensor)
    if walked is None or start is None:
        terms = indices if walked is None else walked.indices
        # -1 is None in GroupMaps.axes: a scalar has nothing to partition
        numbers = [k for k, i in enumerate(indices) if i in terms] or [-1]
        return [*product(numbers, repeat=machine.n_axes)]
    pairs = zip(walked.indices, start.cuts, strict=True)
    partitioned = {k: indices.index(i) for i, cuts in pairs for k in cuts}
    is_possible = start.machine == machine and len(partitioned) == machine.n_axes
    return [tuple(partitioned[k] for k in sorted(partitioned))] if is_possible else []


def tie_maps(
    bare: Plan, machine: Machine, maps: Sequence[GroupMaps]
) -> list[GroupMaps] | None:
    """Restrict groups that walk the same entries to the maps that all of them have.

    Entries never move, and machine axes partition their indices only, so these groups
    have one map. Row k of each is the same one, with an equal share of the costs of all
    and the largest memory of any, so that a search ranks the rows of all groups alike.

    Returns:
        None if there is no such map.
    """
    tied, walked = list(maps), bare.problem.walked
    for operand in bare.problem.nonzeros:
        accesses = {k: a for k, a in enumerate(walked) if a and a.tensor == operand}
        if len(accesses) < 2:
            continue
        rows_of = {
            k: {
                derive_distribution(tied[k].axes(row), access, machine): row
                for row in range(len(tied[k].maps))
            }
            for k, access in accesses.items()
        }
        needs = [
            need
            for need in rows_of[min(accesses)]
            if all(need in rows for rows in rows_of.values())
        ]
        if not needs:
            return None
        chosen = {
            k: tied[k].select([rows[need] for need in needs])
            for k, rows in rows_of.items()
        }
        costs = np.mean([of.costs for of in chosen.values()], axis=0)
        resident = np.maximum.reduce([of.resident for of in chosen.values()])
        for k, of_group in chosen.items():
            tied[k] = replace(of_group, costs=costs, resident=resident)
    return tied


def _compute_min_resident(
    group: Group, blocks: NDArray[np.float64], density: Mapping[str, Fraction]
) -> NDArray[np.float64]:
    """Return the elements of a group's blocks with the best sequential loop.

    A loop over single values of an index reduces its blocks to one value.

    Args:
        group: the group.
        blocks: length of the block of each index, shape (n_maps, n_indices).
        density: the share of entries that sparse tensors store.
    """
    indices = group.indices

    def count_resident(looped: str | None) -> NDArray[np.float64]:
        total = np.zeros(len(blocks))
        for access in group.accesses:
            used = [indices.index(index) for index in access.indices if index != looped]
            share = float(density.get(access.tensor, 1))
            total += share * blocks[:, used].prod(axis=1)
        return total

    totals = [count_resident(index) for index in (None, *group.summed)]
    smallest: NDArray[np.float64] = np.minimum.reduce(totals)
    return smallest


class Overlaps:
    """Elements that ranks both hold and need, for pairs of distributions.

    Boxes are products of ranges, so a count is a sum over ranks of a product over axes
    of the length that two ranges share. One axis has far fewer partitions than a tensor
    has distributions, so tables of single axes are computed once and combined.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._shared: dict[Hashable, NDArray[np.float64]] = {}
        self._lengths: dict[Hashable, NDArray[np.float64]] = {}

    def shared(
        self,
        shape: Sequence[int],
        sources: Sequence[Distribution],
        needs: Sequence[Distribution],
    ) -> NDArray[np.float64]:
        """Count the shared elements for every pair, shape (n_sources, n_needs)."""
        return self._count_shared_by(shape, [sources, needs], (0, 1))

    def missing(
        self,
        shape: Sequence[int],
        present: Sequence[Sequence[Distribution]],
        needs: Sequence[Distribution],
    ) -> NDArray[np.float64]:
        """Count elements that ranks need but do not have, for all combinations.

        Args:
            shape: shape of the tensor.
            present: the choices for each of several distributions of one tensor; a rank
                has the elements of all of them.
            needs: the choices for the distribution that is needed.

        Returns:
            An axis for each of ``present``, and one for ``needs``.
        """
        sides = [*present, needs]
        total = np.zeros([len(side) for side in sides])
        for size in range(len(present) + 1):
            for chosen in combinations(range(len(present)), size):
                shared = self._count_shared_by(shape, sides, (*chosen, len(present)))
                # inclusion-exclusion: elements that two uses brought count once
                total += (-1) ** size * shared
        return total

    def _count_shared_by(
        self,
        shape: Sequence[int],
        sides: Sequence[Sequence[Distribution]],
        chosen: Sequence[int],
    ) -> NDArray[np.float64]:
        """Count elements that some sides share, with an axis for each side.

        Counts are cached, because several uses of a tensor need the same ones.
        """
        key = tuple(shape), *(tuple(sides[k]) for k in chosen)
        counts = self._shared.get(key)
        # large tables are used once: caching them would only take memory
        if counts is None:
            counts = self._count_shared(shape, [sides[k] for k in chosen])
            if counts.size <= MAX_CACHED:
                self._shared[key] = counts
        lengths = [len(side) if k in chosen else 1 for k, side in enumerate(sides)]
        return counts.reshape(lengths)

    def _count_shared(
        self, shape: Sequence[int], sides: Sequence[Sequence[Distribution]]
    ) -> NDArray[np.float64]:
        """Count elements that are in a box of each side, summed over ranks."""
        n_entries = prod(map(len, sides)) * self.machine.n_processes
        if n_entries > MAX_AT_ONCE and (half := len(sides[0]) // 2):
            first_side, *other_sides = sides
            halves = (first_side[:half], first_side[half:])
            return np.concatenate(
                [
                    self._count_shared(shape, [half_side, *other_sides])
                    for half_side in halves
                ]
            )
        # processes at other than the fixed coordinates have an empty range
        total = self._expand_lengths(1, [[d.fixed for d in side] for side in sides])
        last = np.ones(self.machine.n_processes)
        for axis, extent in enumerate(shape):
            cuts = [[d.cuts[axis] for d in side] for side in sides]
            total, last = total * last, self._expand_lengths(extent, cuts)
        # the last product is not stored
        counts = np.einsum("...r,...r->...", total, last)
        return np.broadcast_to(counts, [len(side) for side in sides])

    def _expand_lengths(
        self, extent: int, choices: Sequence[Sequence[_Cuts]]
    ) -> NDArray[np.float64]:
        """Return the length that ranks share along an axis, for all combinations.

        There is an axis for each side, and the ranks last.
        """
        # distributions differ in few of these choices
        unique = [tuple(dict.fromkeys(side)) for side in choices]
        lengths = self._compute_shared_lengths(extent, unique)
        if lengths.size == lengths.shape[-1]:
            return lengths  # every side has a single choice, which broadcasts
        numbers = [{choice: k for k, choice in enumerate(side)} for side in unique]
        rows = [
            [number[choice] for choice in side]
            for side, number in zip(choices, numbers, strict=True)
        ]
        return lengths[np.ix_(*rows)]

    def _compute_shared_lengths(
        self, extent: int, choices: Sequence[tuple[_Cuts, ...]]
    ) -> NDArray[np.float64]:
        key = extent, *choices
        if key in self._lengths:
            return self._lengths[key]
        lows, highs = [], []
        for k, side in enumerate(choices):
            ranges = np.array([_compute_range(self.machine, extent, c) for c in side])
            shape = [1] * len(choices) + [ranges.shape[-1]]
            shape[k] = len(side)
            lows.append(ranges[:, 0].reshape(shape))
            highs.append(ranges[:, 1].reshape(shape))
        # in place: these arrays, with an entry for each rank, are most of a search
        lengths: NDArray[np.float64] = reduce(np.minimum, highs)
        lengths = np.subtract(lengths, reduce(np.maximum, lows))
        np.maximum(lengths, 0, out=lengths)
        if lengths.size <= MAX_CACHED:
            self._lengths[key] = lengths
        return lengths


@lru_cache(4096)
def _compute_range(machine: Machine, extent: int, cuts: _Cuts) -> NDArray[np.float64]:
    """Return start and end of the block of each rank, shape (2, n_ranks)."""
    n_ranks = machine.n_processes
    coordinates = machine.coordinates(n_ranks)
    low, high = np.zeros(n_ranks, np.int64), np.full(n_ranks, extent, np.int64)
    for k in cuts:
        if isinstance(k, tuple):
            axis, coordinate = k
            high = high * (coordinates[:, axis] == coordinate)
        else:
            low, high = take_block(low, high, coordinates[:, k], machine.sizes[k])
    return np.stack([low, high]).astype(float)
