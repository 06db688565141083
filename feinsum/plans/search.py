"""The planner: for every group which index each axis of a machine cuts.

What moves in a group beyond one copy of its inputs, and in its reduction, follows from
how often each tensor is there. What moves between groups follows from how much of a
result lies where it is needed. Both together are a sum of small tables, of which
:mod:`feinsum.plans.elimination` finds the least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from feinsum.plans.distribution import Distribution
from feinsum.plans.elimination import Table, least_sum
from feinsum.plans.groups import Access, Group
from feinsum.plans.machine import Machine, factorizations
from feinsum.plans.maps import GroupMaps, Tier, group_maps
from feinsum.plans.matching import Overlaps
from feinsum.plans.placing import (
    n_copies,
    needed_by,
    result_choices,
    spread,
    start_of,
)
from feinsum.plans.schedule import GroupSchedule

__all__ = ["Found", "best_schedules"]

BEAM = 24
"""States of a group in the first search, which only bounds the second one."""

MOST_STATES = 1500
"""Of a group in a search; beyond, only the best by themselves are considered."""


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


class _Space:
    """The choices of all groups on one machine."""

    def __init__(
        self,
        groups: Sequence[Group],
        extents: Mapping[str, int],
        machine: Machine,
        maps: Sequence[GroupMaps],
    ) -> None:
        self.groups, self.extents, self.machine, self.maps = (
            groups,
            extents,
            machine,
            maps,
        )
        self.uses = uses_of(groups)
        self.overlap = Overlaps(machine)

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
            group_maps(group, extents, machine, again[at], most_elements, tier)
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
            list(result_choices(maps.group, maps.axes(row), self.machine))
            for row in rows.tolist()
        ]

    def _needs(
        self, at: int, rows: NDArray[np.int64], access: Access
    ) -> list[Distribution]:
        return [
            needed_by(self.maps[at].axes(row), access, self.machine)
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
                copies = [n_copies(need) for need in later]
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


def uses_of(groups: Sequence[Group]) -> dict[str, list[tuple[int, Access]]]:
    uses: dict[str, list[tuple[int, Access]]] = {}
    for at, group in enumerate(groups):
        for access in group.inputs:
            uses.setdefault(access.tensor, []).append((at, access))
    return uses


def _again(groups: Sequence[Group]) -> list[list[Access]]:
    """For every group the uses of operands that were used before."""
    again: list[list[Access]] = [[] for _ in groups]
    for uses in uses_of(groups).values():
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
