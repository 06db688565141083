"""The planner: for every group which index each axis of a machine cuts.

What moves in a group beyond one copy of its inputs, and in its reduction, follows from
how often each tensor is there. What moves between groups follows from how much of a
result lies where it is needed. Both together are a sum of small tables, of which
:mod:`feinsum.plans.elimination` finds the least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from feinsum.plans.boxes import cut
from feinsum.plans.distribution import Distribution
from feinsum.plans.elimination import Table, least_sum
from feinsum.plans.groups import Access, Group
from feinsum.plans.machine import Machine, factorizations
from feinsum.plans.schedule import GroupSchedule

__all__ = ["Found", "best_schedules", "spread", "start_of"]

BEAM = 24
"""States of a group in the first search, which only bounds the second one."""

MOST_EXCESS = 1.25
"""Work of the process that has the most, over the average, that counts as even."""

MOST_STATES = 1500
"""Of a group in a search; beyond, only the best by themselves are considered."""

MOST_PAIRS = 40_000_000
"""Of distributions and ranks whose overlap is computed at one time."""


@dataclass(frozen=True)
class Found:
    """What the search chose.

    Attributes:
        cost: elements that it counts.
        is_exact: every choice that could have been better was considered.
    """

    cost: float
    schedules: tuple[GroupSchedule, ...]
    is_exact: bool


def best_schedules(
    groups: Sequence[Group],
    extents: Mapping[str, int],
    n_processes: int,
    most_elements: float = inf,
) -> Found | None:
    """The schedules that move the fewest elements, over all machines.

    Args:
        most_elements: that a process may hold in a group, as far as it can be told of
            one group alone.

    Returns:
        None if no group fits that memory.
    """
    for tier in Tier:
        spaces = [
            _Space.of(groups, extents, Machine(sizes), most_elements, tier)
            for sizes in factorizations(n_processes)
        ]
        fitting = [space for space in spaces if space is not None]
        if fitting:
            return _best_of(sorted(fitting, key=lambda space: space.least))
    return None


def _best_of(spaces: Sequence[_Space]) -> Found:
    """A quick search bounds the exact one; machines that are no better are skipped."""
    best, limit, is_exact = None, inf, True
    for space in spaces:
        if space.least >= limit:
            break
        for n_states in (BEAM, MOST_STATES):
            found = space.solve(limit, n_states)
            if found is not None and found.cost < limit:
                best, limit = found, found.cost
        is_exact = is_exact and (found is None or found.is_exact)
    assert best is not None
    return replace(best, is_exact=is_exact)


class Tier(Enum):
    """Which ways to cut a group are considered: the first that there is any of."""

    EVEN = "no process has much more to do than the average"
    FULL = "no index is cut into more blocks than it has values"
    ANY = "the process that has the most to do has the least possible"


@dataclass(frozen=True, eq=False)
class _GroupMaps:
    """All ways to map the axes of a machine to the indices of a group.

    Attributes:
        maps: number of an index for each axis; -1 cuts nothing.
        costs: elements beyond one copy of each tensor.
    """

    group: Group
    maps: NDArray[np.int64]
    costs: NDArray[np.float64]

    def axes(self, row: int) -> tuple[str | None, ...]:
        indices = (*self.group.indices, None)
        return tuple(indices[k] for k in self.maps[row].tolist())


def _group_maps(
    group: Group,
    extents: Mapping[str, int],
    machine: Machine,
    skipped: Sequence[Access],
    most_elements: float,
    tier: Tier,
) -> _GroupMaps | None:
    """Those of a tier; None if there are none."""
    indices = group.indices
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
        is_viable &= excess <= MOST_EXCESS
    elif tier is Tier.ANY:
        is_viable = work == work.min()
    is_viable &= _least_held(group, extents, blocks) <= most_elements
    if not is_viable.any():
        return None
    maps, parts, blocks = maps[is_viable], parts[is_viable], blocks[is_viable]
    costs = np.zeros(len(maps))
    counted = [*group.inputs, group.output]
    for access in skipped:
        counted.remove(access)
    for access in counted:
        used = [indices.index(i) for i in access.indices]
        size = prod(extents[i] for i in access.indices)
        copies = machine.n_processes / parts[:, used].prod(axis=1)
        costs += size * (copies - 1)
    excess = excess[is_viable]
    costs += 0.01 * np.clip(excess - 1, 0, 1)  # between equals, the even one
    return _GroupMaps(group, maps, costs)


def _least_held(
    group: Group, extents: Mapping[str, int], blocks: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Elements of the blocks of a group, with the best loop in time."""
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


class _Space:
    """The choices of all groups on one machine."""

    def __init__(
        self,
        groups: Sequence[Group],
        extents: Mapping[str, int],
        machine: Machine,
        maps: Sequence[_GroupMaps],
    ) -> None:
        self.groups, self.extents, self.machine, self.maps = (
            groups,
            extents,
            machine,
            maps,
        )
        self.uses = _uses(groups)
        self.overlap = _Overlaps(machine)

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        extents: Mapping[str, int],
        machine: Machine,
        most_elements: float,
        tier: Tier,
    ) -> _Space | None:
        """None if a group has nothing of this tier that fits the memory."""
        again = _again(groups)
        maps = [
            _group_maps(group, extents, machine, again[at], most_elements, tier)
            for at, group in enumerate(groups)
        ]
        if any(m is None for m in maps):
            return None
        return cls(groups, extents, machine, [m for m in maps if m is not None])

    @cached_property
    def least(self) -> float:
        """What moves at least, whatever is between groups."""
        return float(sum(m.costs.min() for m in self.maps))

    def solve(self, limit: float, n_states: int) -> Found | None:
        """The best of all that can be below a limit; None if there is none."""
        rows, is_exact = self._survivors(limit, n_states)
        if rows is None:
            return None
        tables = [
            Table((f"m{at}",), self.maps[at].costs[row]) for at, row in enumerate(rows)
        ]
        results: dict[str, list[Distribution]] = {}
        for at, group in enumerate(self.groups[:-1]):
            tensor = group.output.tensor
            made = self._results(at, rows[at])
            results[tensor] = list(dict.fromkeys(d for row in made for d in row))
            tables.append(_makes(at, made, results[tensor]))
            user, access = self.uses[tensor][0]
            needs = self._needs(user, rows[user], access)
            extra = self._extra(access, results[tensor], needs)
            tables.append(Table((f"d{at}", f"m{user}"), extra))
        tables += self._shared(rows)
        cost, choice = least_sum(tables)
        schedules = []
        for at, group in enumerate(self.groups):
            axes = self.maps[at].axes(rows[at][choice[f"m{at}"]])
            if at + 1 == len(self.groups):
                result = spread(group, axes, self.machine, self.extents)
            else:
                result = results[group.output.tensor][choice[f"d{at}"]]
            schedules.append(GroupSchedule(self.machine, axes, result))
        return Found(cost, tuple(schedules), is_exact)

    def _survivors(
        self, limit: float, n_states: int
    ) -> tuple[list[NDArray[np.int64]] | None, bool]:
        """Of every group the maps that can be part of something below the limit."""
        is_exact, rows = True, []
        for maps in self.maps:
            most = limit - self.least + maps.costs.min()
            row = np.argsort(maps.costs, kind="stable")
            row = row[maps.costs[row] < most]
            if not len(row):
                return None, True
            if len(row) > n_states:
                is_exact, row = False, row[:n_states]
            rows.append(row)
        return rows, is_exact

    def _results(self, at: int, rows: NDArray[np.int64]) -> list[list[Distribution]]:
        maps = self.maps[at]
        return [
            list(_distributions(maps.group, maps.axes(row), self.machine))
            for row in rows.tolist()
        ]

    def _needs(
        self, at: int, rows: NDArray[np.int64], access: Access
    ) -> list[Distribution]:
        return [
            _needed(self.maps[at].axes(row), access, self.machine)
            for row in rows.tolist()
        ]

    def _extra(
        self,
        access: Access,
        held: Sequence[Distribution],
        needs: Sequence[Distribution],
    ) -> NDArray[np.float64]:
        """Elements of one copy that do not lie where they are needed."""
        shape = tuple(self.extents[i] for i in access.indices)
        unique = list(dict.fromkeys(needs))
        place = {need: k for k, need in enumerate(unique)}
        found = self.overlap.table(shape, held, unique)
        extra: NDArray[np.float64] = prod(shape) - found[:, [place[n] for n in needs]]
        return extra

    def _shared(self, rows: Sequence[NDArray[np.int64]]) -> Iterator[Table]:
        """What an operand costs at its second and later uses."""
        made = {group.output.tensor for group in self.groups}
        for tensor, uses in self.uses.items():
            if tensor in made or len(uses) < 2:
                continue
            first, access = uses[0]
            needs = self._needs(first, rows[first], access)
            starts = [start_of(need, self._shape(access)) for need in needs]
            for at, again in uses[1:]:
                later = self._needs(at, rows[at], again)
                copies = [_copies(need) for need in later]
                size = prod(self._shape(again))
                costs = self._extra(again, starts, later) + [
                    size * (n - 1) for n in copies
                ]
                for k, need in enumerate(needs):
                    costs[k, [need.cuts == other.cuts for other in later]] = 0
                if at == first:
                    yield Table((f"m{at}",), np.diagonal(costs).copy())
                else:
                    yield Table((f"m{first}", f"m{at}"), costs)

    def _shape(self, access: Access) -> tuple[int, ...]:
        return tuple(self.extents[i] for i in access.indices)


def _uses(groups: Sequence[Group]) -> dict[str, list[tuple[int, Access]]]:
    uses: dict[str, list[tuple[int, Access]]] = {}
    for at, group in enumerate(groups):
        for access in group.inputs:
            uses.setdefault(access.tensor, []).append((at, access))
    return uses


def _again(groups: Sequence[Group]) -> list[list[Access]]:
    """For every group the uses of operands that were used before."""
    again: list[list[Access]] = [[] for _ in groups]
    for uses in _uses(groups).values():
        for at, access in uses[1:]:
            again[at].append(access)
    return again


def _makes(
    at: int, made: Sequence[Sequence[Distribution]], results: Sequence[Distribution]
) -> Table:
    """Which results a map can leave: no cost, or an infinite one."""
    place = {result: k for k, result in enumerate(results)}
    costs = np.full((len(made), len(results)), inf)
    for row, choices in enumerate(made):
        costs[row, [place[choice] for choice in choices]] = 0.0
    return Table((f"m{at}", f"d{at}"), costs)


def _needed(
    axes: Sequence[str | None], access: Access, machine: Machine
) -> Distribution:
    cuts = tuple(
        tuple(k for k, index in enumerate(axes) if index == i) for i in access.indices
    )
    return Distribution(machine, cuts)


def _copies(need: Distribution) -> int:
    return prod(need.machine.sizes[k] for k in need.copied_axes)


def _distributions(
    group: Group, axes: Sequence[str | None], machine: Machine
) -> Iterator[Distribution]:
    """Where a result can be: each axis of partial sums cuts it further, or is left."""
    base = _needed(axes, group.output, machine).cuts
    summed = [k for k, i in enumerate(axes) if i in group.summed]
    for places in product((*range(len(base)), None), repeat=len(summed)):
        cuts = list(base)
        for k, place in zip(summed, places, strict=True):
            if place is not None:
                cuts[place] = (*cuts[place], k)
        fixed = [(k, 0) for k, p in zip(summed, places, strict=True) if p is None]
        yield Distribution(machine, tuple(cuts), tuple(fixed))


def spread(
    group: Group,
    axes: Sequence[str | None],
    machine: Machine,
    extents: Mapping[str, int],
) -> Distribution:
    """A result as even as can be: partial sums in blocks along the longest axes."""
    base = _needed(axes, group.output, machine)
    summed = tuple(k for k, i in enumerate(axes) if i in group.summed)
    return _evenly(base, summed, tuple(extents[i] for i in group.output.indices))


def start_of(need: Distribution, shape: Sequence[int]) -> Distribution:
    """One copy of what is needed, spread over those that need it."""
    return _evenly(need, need.copied_axes, shape)


def _evenly(
    base: Distribution, axes: Sequence[int], shape: Sequence[int]
) -> Distribution:
    """Axes cut what is longest; one that finds nothing to cut leaves place 0."""
    machine, cuts, fixed = base.machine, list(base.cuts), list(base.fixed)
    lengths = list(shape)
    for place, term in enumerate(cuts):
        for k in term:
            lengths[place] = -(-lengths[place] // machine.sizes[k])
    for k in sorted(axes, key=lambda k: -machine.sizes[k]):
        place = max(range(len(cuts)), key=lambda d: lengths[d], default=-1)
        if place < 0 or lengths[place] < machine.sizes[k]:
            fixed.append((k, 0))
            continue
        cuts[place] = (*cuts[place], k)
        lengths[place] = -(-lengths[place] // machine.sizes[k])
    return Distribution(machine, tuple(cuts), tuple(fixed))


class _Overlaps:
    """Elements that ranks hold and need, for pairs of distributions on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.places = machine.coordinates(machine.n_processes)
        self.known: dict[tuple[int, tuple[int, ...]], NDArray[np.int64]] = {}

    def table(
        self,
        shape: Sequence[int],
        held: Sequence[Distribution],
        needs: Sequence[Distribution],
    ) -> NDArray[np.float64]:
        """Of every pair the sum over ranks of a product over axes."""
        found = np.empty((len(held), len(needs)))
        there = np.array([self._is_there(d) for d in held])
        n_ranks = self.machine.n_processes
        rows = max(1, MOST_PAIRS // max(1, len(needs) * n_ranks))
        tables = [self._axis(n, axis, held, needs) for axis, n in enumerate(shape)]
        for begin in range(0, len(held), rows):
            chunk = slice(begin, begin + rows)
            total = np.repeat(there[chunk, None, :], len(needs), axis=1)
            for pairs, first, second in tables:
                total *= pairs[first[chunk, None], second[None, :]]
            found[chunk] = total.sum(axis=2)
        return found

    def _is_there(self, held: Distribution) -> NDArray[np.float64]:
        here = np.ones(self.machine.n_processes)
        for k, place in held.fixed:
            here *= self.places[:, k] == place
        return here

    def _axis(
        self,
        extent: int,
        axis: int,
        held: Sequence[Distribution],
        needs: Sequence[Distribution],
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Shared lengths of every pair of cuts of one axis, and which pair is whose."""
        first = list(dict.fromkeys(d.cuts[axis] for d in held))
        second = list(dict.fromkeys(d.cuts[axis] for d in needs))
        a = np.array([self._range(extent, cuts) for cuts in first])
        b = np.array([self._range(extent, cuts) for cuts in second])
        low = np.maximum(a[:, None, 0], b[None, :, 0])
        high = np.minimum(a[:, None, 1], b[None, :, 1])
        of = np.array([first.index(d.cuts[axis]) for d in held])
        to = np.array([second.index(d.cuts[axis]) for d in needs])
        return np.maximum(high - low, 0).astype(float), of, to

    def _range(self, extent: int, cuts: tuple[int, ...]) -> NDArray[np.int64]:
        if (extent, cuts) not in self.known:
            n_ranks = self.machine.n_processes
            low, high = np.zeros(n_ranks, np.int64), np.full(n_ranks, extent, np.int64)
            for k in cuts:
                low, high = cut(low, high, self.places[:, k], self.machine.sizes[k])
            self.known[extent, cuts] = np.stack([low, high])
        return self.known[extent, cuts]
