"""The planner: which index each machine axis partitions, for every group.

Traffic within a group, beyond one copy of its inputs and in its reduction, follows from
the replication of each tensor. Traffic between groups follows from how much of a result
is already where it is needed. Both together are a sum of small tables, which
:mod:`feinsum.distributed.elimination` minimizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import inf, prod
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.distribution import Distribution
from feinsum.distributed.elimination import Table, least_sum
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.levels import CopyCosts, Levels, copy_costs
from feinsum.distributed.machine import Machine, factorizations
from feinsum.distributed.maps import MOST_EXCESS, GroupMaps, Tier, group_maps
from feinsum.distributed.matching import Overlaps
from feinsum.distributed.placing import needed_by, result_choices, spread
from feinsum.distributed.schedule import GroupSchedule

BEAMS = (24, 150)
"""States of a group in the first searches, which only bound the last one."""

MOST_STATES = 1500
"""States of a group in a search; of more, only the cheapest by themselves are kept."""

MOST_TOGETHER = 3
"""Earlier uses of a tensor that are taken into account together."""

LEAST_PRICE = 1e-9
"""Of an element from another rank, relative to one on the slowest link."""

MOST_ENTRIES = 2**21
"""Ranks times combinations of uses whose shared elements are counted together."""


@dataclass(frozen=True)
class Found:
    """The result of the search.

    Attributes:
        cost: number of elements that it counts.
        is_exact: whether every choice that could have been better was considered.
    """

    cost: float
    schedules: tuple[GroupSchedule, ...]
    is_exact: bool


def best_schedules(
    groups: Sequence[Group],
    extents: Mapping[str, int],
    n_processes: int,
    most_elements: float = inf,
    most_excess: float = MOST_EXCESS,
    limit: float = inf,
) -> Found | None:
    """The schedules that move the fewest elements, over all machines.

    Args:
        most_elements: limit on the elements that a process holds in a group, as far as
            this follows from one group alone.
        most_excess: work of a process in a group over the average that still counts as
            even.
        limit: only costs below this are of interest.

    Returns:
        None if no group fits into that memory, or nothing is below the limit.
    """
    for tier in Tier:
        spaces = [
            _Space.of(
                groups,
                extents,
                machine,
                most_elements,
                tier,
                most_excess,
                copy_costs(machine),
            )
            for machine in map(Machine, factorizations(n_processes))
        ]
        fitting = [space for space in spaces if space is not None]
        if fitting:
            return _best_of(sorted(fitting, key=lambda space: space.least), limit)
    return None


def best_of_machines(
    groups: Sequence[Group],
    extents: Mapping[str, int],
    n_processes: int,
    levels: Levels | None = None,
) -> list[Found]:
    """The result of a quick search for every machine, best first.

    Args:
        levels: if given, axes are also in all other orders, and elements have the costs
            of their links: exactly within groups, and between groups once those of an
            average and once those of the cheapest link.
    """
    priced = [
        one for sizes in factorizations(n_processes) for one in _priced(sizes, levels)
    ]
    for tier in Tier:
        spaces = [
            _Space.of(groups, extents, machine, inf, tier, MOST_EXCESS, costs)
            for machine, costs in priced
        ]
        solved = [space.solve(inf, BEAMS[0]) for space in spaces if space is not None]
        if solved:
            there = [one.found for one in solved if one.found is not None]
            return sorted(there, key=lambda one: one.cost)
    return []


def _priced(
    sizes: Sequence[int], levels: Levels | None
) -> Iterator[tuple[Machine, CopyCosts]]:
    """Machines with these axes, and costs to search them with."""
    for order in sorted({*permutations(sizes)}) if levels else [tuple(sizes)]:
        machine = Machine(order)
        costs = copy_costs(machine, levels)
        yield machine, costs
        if levels:
            yield machine, costs._replace(of_another=costs.cheapest)


def _best_of(spaces: Sequence[_Space], limit: float) -> Found | None:
    """Quick searches of all machines bound the last one, which skips most choices."""
    best, is_exact, left = None, True, list(spaces)
    for n_states in (*BEAMS, MOST_STATES):
        again: list[tuple[float, _Space]] = []
        for space in left:
            if space.least >= limit:
                continue
            one = space.solve(limit, n_states)
            if one.found is not None and one.found.cost < limit:
                best, limit = one.found, one.found.cost
            if one.n_left_out and n_states < MOST_STATES:
                again.append((inf if one.found is None else one.found.cost, space))
            else:
                is_exact = is_exact and one.is_exact
        left = [space for _, space in sorted(again, key=itemgetter(0))]
    return None if best is None else replace(best, is_exact=is_exact)


class _Solved(NamedTuple):
    """The result of the search of one machine.

    Attributes:
        found: None if nothing is below the limit.
        n_left_out: states that were not considered, though they could be better.
    """

    found: Found | None
    n_left_out: int
    is_exact: bool


class _Space:
    """The choices of all groups on one machine."""

    def __init__(
        self,
        groups: Sequence[Group],
        extents: Mapping[str, int],
        machine: Machine,
        maps: Sequence[GroupMaps],
        of_another: float,
    ) -> None:
        self.groups, self.extents, self.machine = groups, extents, machine
        self.of_another = of_another
        self.maps, self.uses = maps, uses_of(groups)
        self.overlap = Overlaps(machine)
        self.placed: dict[tuple[int, int], list[Distribution]] = {}
        self.needs: dict[tuple[object, Access], Distribution] = {}

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        extents: Mapping[str, int],
        machine: Machine,
        most_elements: float,
        tier: Tier,
        most_excess: float,
        costs: CopyCosts,
    ) -> _Space | None:
        """None if a group has nothing of this tier that fits the memory."""
        limits = most_elements, tier, most_excess, costs.of_axes
        again = _again(groups)
        maps = [
            group_maps(group, extents, machine, again[at], *limits)
            for at, group in enumerate(groups)
        ]
        if any(m is None for m in maps):
            return None
        found = [m for m in maps if m is not None]
        return cls(groups, extents, machine, found, costs.of_another)

    @cached_property
    def least(self) -> float:
        """Lower bound of the traffic, without that between groups."""
        return float(sum(m.costs.min() for m in self.maps))

    def solve(self, limit: float, n_states: int) -> _Solved:
        """The best of all that can be below a limit."""
        tables = _Tables(self, limit, n_states)
        if not all(map(tables.add_group, range(len(self.groups)))):
            return _Solved(None, tables.n_left_out, tables.is_exact)
        cost, choice = least_sum(tables.tables)
        if cost == inf:
            return _Solved(None, tables.n_left_out, tables.is_exact)
        schedules = []
        for at, group in enumerate(self.groups):
            axes = self.maps[at].axes(tables.rows[at][choice[f"m{at}"]])
            tensor = group.output.tensor
            if tensor in tables.results:
                result = tables.results[tensor][choice[f"d{at}"]]
            else:
                result = spread(group, axes, self.machine, self.extents)
            schedules.append(GroupSchedule(self.machine, axes, result))
        found = Found(cost, tuple(schedules), tables.is_exact)
        return _Solved(found, tables.n_left_out, tables.is_exact)

    def results_of(self, at: int, row: int) -> list[Distribution]:
        """Where the result of a map can be; wider searches ask again."""
        if (at, row) not in self.placed:
            maps = self.maps[at]
            found = result_choices(maps.group, maps.axes(row), self.machine)
            self.placed[at, row] = list(found)
        return self.placed[at, row]

    def needed(self, at: int, row: int, access: Access) -> Distribution:
        """Where a map needs a tensor; wider searches, and other uses, ask again."""
        axes = self.maps[at].axes(row)
        if (axes, access) not in self.needs:
            self.needs[axes, access] = needed_by(axes, access, self.machine)
        return self.needs[axes, access]

    def shape(self, access: Access) -> tuple[int, ...]:
        return tuple(self.extents[i] for i in access.indices)


@dataclass(frozen=True, eq=False)
class _Needs:
    """Where a use needs its tensor: the different places, and which map has which."""

    choices: list[Distribution]
    of_map: NDArray[np.int64]

    def kept(self, is_kept: NDArray[np.bool_]) -> _Needs:
        return _Needs(self.choices, self.of_map[is_kept])

    def link(self, at: int, name: str) -> Table:
        """A map decides what is needed."""
        costs = np.full((len(self.of_map), len(self.choices)), inf)
        costs[np.arange(len(self.of_map)), self.of_map] = 0.0
        return Table((f"m{at}", name), costs)


class _Tables:
    """The sum of tables whose least value is sought, one group after the other.

    What a group and all that it is made of cost at least is known when it is added;
    maps with which that, and the rest at least, reach the limit are left out.
    """

    def __init__(self, space: _Space, limit: float, n_states: int) -> None:
        self.space, self.limit, self.n_states = space, limit, n_states
        self.is_exact, self.n_left_out = True, 0
        self.tables: list[Table] = []
        self.rows: list[NDArray[np.int64]] = []
        self.results: dict[str, list[Distribution]] = {}
        self.needs: dict[tuple[str, int], _Needs] = {}
        self.below: dict[str, tuple[NDArray[np.float64], float]] = {}
        self.maker = {g.output.tensor: at for at, g in enumerate(space.groups)}

    def add_group(self, at: int) -> bool:
        """False if nothing with it is below the limit."""
        maps = self.space.maps[at]
        made = [a for a in self._first_uses(at) if a.tensor in self.below]
        under = maps.costs.min() + sum(self.below[a.tensor][1] for a in made)
        most = self.limit - (self.space.least - under)
        begun = sum(self.below[a.tensor][0].min() for a in made)
        row = np.argsort(maps.costs, kind="stable")
        row = row[maps.costs[row] + begun < most]
        if len(row) > self.n_states:
            self.n_left_out += len(row) - self.n_states
            self.is_exact, row = False, row[: self.n_states]
        if not len(row):
            return False
        least, edges = maps.costs[row] + begun, []
        needs = [self._needs(at, row, a) for a in made]
        for access, need in zip(made, needs, strict=True):
            before = self.below[access.tensor][0]
            extra = self._extra(access, need, before - before.min(), most - least)
            edges.append(extra)
            least = (
                least
                + (extra + (before - before.min())[:, None]).min(axis=0)[need.of_map]
            )
        is_kept = least < most
        if not is_kept.any():
            return False
        row, least = row[is_kept], least[is_kept]
        self.rows.append(row)
        self.tables.append(Table((f"m{at}",), maps.costs[row]))
        for access, need, extra in zip(made, needs, edges, strict=True):
            maker, kept = self.maker[access.tensor], need.kept(is_kept)
            costs = extra[:, kept.of_map]
            self.tables.append(Table((f"d{maker}", f"m{at}"), costs))
        self._add_uses(at, row)
        self._add_results(at, row, least, under)
        return True

    def _first_uses(self, at: int) -> list[Access]:
        uses = self.space.uses.values()
        return [access for (first, access), *_ in uses if first == at]

    def _needs(self, at: int, rows: NDArray[np.int64], access: Access) -> _Needs:
        found = [self.space.needed(at, row, access) for row in rows.tolist()]
        place = {need: k for k, need in enumerate(dict.fromkeys(found))}
        return _Needs(list(place), np.array([place[need] for need in found]))

    def _extra(
        self,
        access: Access,
        need: _Needs,
        before: NDArray[np.float64],
        slack: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Elements of one copy that do not lie where they are needed.

        What cannot be below the limit is as good as all of them: it is not computed.
        """
        size = prod(self.space.shape(access))
        most = np.full(len(need.choices), -inf)
        np.maximum.at(most, need.of_map, slack)
        # links may be said to cost nothing, and this divides
        price = max(self.space.of_another, LEAST_PRICE)
        least = np.maximum(0.0, size - (most[None, :] - before[:, None]) / price)
        held = self.results[access.tensor]
        shape = self.space.shape(access)
        overlap = self.space.overlap.table(shape, held, need.choices, least)
        return self.space.of_another * (size - overlap)

    def _add_results(
        self, at: int, rows: NDArray[np.int64], least: NDArray[np.float64], under: float
    ) -> None:
        """Where the result can be, if another group reads it."""
        tensor = self.space.groups[at].output.tensor
        if tensor not in self.space.uses:
            return
        choices = [self.space.results_of(at, row) for row in rows.tolist()]
        unique = dict.fromkeys(d for of_row in choices for d in of_row)
        place = {d: k for k, d in enumerate(unique)}
        costs = np.full((len(rows), len(place)), inf)
        for row, of_row in enumerate(choices):
            costs[row, [place[d] for d in of_row]] = 0.0
        self.results[tensor] = list(place)
        self.below[tensor] = ((costs + least[:, None]).min(axis=0), under)
        self.tables.append(Table((f"m{at}", f"d{at}"), costs))

    def _add_uses(self, at: int, rows: NDArray[np.int64]) -> None:
        """Cost of tensors at their second and later uses: elements not there yet."""
        for tensor, uses in self.space.uses.items():
            if len(uses) < 2:
                continue
            for k, (group, access) in enumerate(uses):
                if group != at:
                    continue
                need = self._needs(at, rows, access)
                self.needs[tensor, k] = need
                self.tables.append(need.link(at, f"{tensor}:{k}"))
                if k:
                    self.tables.append(self._later(tensor, k, access))

    def _later(self, tensor: str, k: int, access: Access) -> Table:
        """Cost of a later use; of many earlier ones, only some are considered."""
        shape, need = self.space.shape(access), self.needs[tensor, k]
        known = {f"{tensor}:{j}": self.needs[tensor, j].choices for j in range(k)}
        if tensor in self.results:
            known = {f"d{self.maker[tensor]}": self.results[tensor]} | known
        n_entries = len(need.choices) * self.space.machine.n_processes
        while len(known) > MOST_TOGETHER or (
            len(known) > 1 and prod(map(len, known.values())) * n_entries > MOST_ENTRIES
        ):
            self.is_exact = False
            known.popitem()
        costs = self.space.overlap.missing(shape, list(known.values()), need.choices)
        return Table((*known, f"{tensor}:{k}"), self.space.of_another * costs)


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
