"""The search for the index that each machine axis partitions, for all groups together.

The cost of a choice is a sum of small tables, which
:mod:`feinsum.distributed.elimination` minimizes. For two groups, of which the second
reads the result ``T`` of the first::

    m0   map of group 0                cost within the group: elements beyond one copy
    |      d0 must fit m0 (0 or inf)
    d0   distribution of T
    |      elements of T that are not where m1 needs them
    m1   map of group 1                cost within the group

Traffic within a group, beyond one copy of its inputs and in its reduction, follows from
the replication of each tensor (:mod:`feinsum.distributed.maps`). Traffic between groups
follows from the share of a result that is already where it is needed. An operand with
several uses has a variable ``A:k`` for each use k, the distribution that the use needs;
later uses cost only the elements that earlier uses did not fetch. Groups that walk the
entries of one sparse operand have the same map (:func:`tie_maps`), by a table of 0 and
infinity.

There are thousands of maps of a group on a machine of four axes. Searches with only the
cheapest maps (:data:`BEAMS`) come first. Their results bound later searches, which
leave out every map that cannot be below the bound. In programs, uses of tensors form
cycles, and tables grow with every use. So work is bounded by numbers of table entries,
which do not depend on the computer: a wider search that would exceed :data:`MAX_WORK`
is left out, and :func:`feinsum.distributed.elimination.find_low_sum` makes no
tables above :data:`MAX_JOINED`. Then the result has a gap to a lower bound of all that
was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import permutations
from math import inf, prod
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.distribution import Distribution, Machine, factorizations
from feinsum.distributed.elimination import Table, find_low_sum
from feinsum.distributed.groups import Access, get_shape
from feinsum.distributed.levels import CopyCosts, Levels, compute_copy_costs
from feinsum.distributed.maps import (
    MAX_EXCESS,
    GroupMaps,
    Limits,
    Overlaps,
    Tier,
    count_moved,
    list_group_maps,
    tie_maps,
)
from feinsum.distributed.schedule import (
    GroupSchedule,
    derive_distribution,
    list_result_choices,
    spread_result,
)

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan

BEAMS = (24, 150, 1500)
"""Numbers of maps of a group, the cheapest ones, in successive searches.

The result of each search bounds the next one.
"""

MAX_WORK = 2**27
"""Limit on table entries times ranks, except in the narrowest search: 1 to 2 s."""

MAX_JOINED = 2**21
"""Maximum number of entries of a table that elimination makes."""

MAX_TOGETHER = 3
"""Earlier uses of a tensor that are taken into account together."""

MAX_ENTRIES = 2**21
"""Ranks times combinations of uses whose shared elements are counted together."""


@dataclass(frozen=True)
class SearchResult:
    """The schedules of all groups with the least cost.

    Attributes:
        cost: number of elements that move, as the search counts them.
        schedules: the schedule of each group.
        bound: lower bound of the cost of all schedules in the search space.
    """

    cost: float
    schedules: tuple[GroupSchedule, ...]
    bound: float

    @property
    def is_exact(self) -> bool:
        """Whether every choice that could have been better was considered."""
        return self.bound >= self.cost


def find_best_schedules(
    bare: Plan,
    n_processes: int | None = None,
    *,
    max_elements: float = inf,
    max_excess: float = MAX_EXCESS,
    limit: float = inf,
) -> SearchResult | None:
    """Return the schedules that move the fewest elements, over all machines.

    In groups that use a sparse tensor, machine axes partition only its indices.

    Args:
        bare: a plan; its schedules are not used.
        n_processes: number of processes that take part; all by default.
        max_elements: limit on the elements that a process holds in a group, as far as
            this follows from one group alone.
        max_excess: maximum ratio of the work of a process in a group to the average in
            maps with even work.
        limit: the cost must be below this.

    Returns:
        None if no maps fit the memory limit, or no cost is below ``limit``.
    """
    machines = _list_machines(bare, n_processes)
    spaces = _list_spaces(bare, machines, max_elements, max_excess)
    # a good first solution bounds the searches of the other machines
    return _search_spaces(sorted(spaces, key=lambda s: s.lower_bound), limit)


def find_least_resident(bare: Plan) -> float:
    """Return the least memory limit, in elements, that every group fits into.

    Loops run over single values of an index, and tensors of other groups do not count.
    """
    free = replace(bare, placed=tuple(bare.sparse_starts), ends={})
    tiers = (Tier.FULL, Tier.ANY)
    spaces = _list_spaces(free, _list_machines(bare), tiers=tiers)
    return min(
        (float(max(maps.resident.min() for maps in space.maps)) for space in spaces),
        default=inf,
    )


def least_moved(bare: Plan) -> float:
    """Return a lower bound of the elements that schedules of the search space move.

    The bound of a machine is the sum over groups of the least elements that a map moves
    within the group; the result is the least bound of all machines.
    """
    spaces = _list_spaces(bare, _list_machines(bare))
    return min((space.lower_bound for space in spaces), default=0.0)


def find_best_of_machines(
    bare: Plan, levels: Levels | None = None
) -> list[SearchResult]:
    """Return the result of a quick search for every machine, best first.

    Args:
        bare: a plan; its schedules are not used.
        levels: if given, axes are tried in all orders, and elements have the costs of
            their links. Costs are exact within groups; between groups, one search uses
            the average link and another one the cheapest link.
    """
    spaces = _list_spaces(bare, _list_machines(bare, levels=levels))
    results = [space.solve(inf, BEAMS[0]).result for space in spaces]
    return sorted((r for r in results if r is not None), key=attrgetter("cost"))


def _list_machines(
    bare: Plan, n_processes: int | None = None, levels: Levels | None = None
) -> list[tuple[Machine, CopyCosts]]:
    """Return all machines of some processes, each with the costs for its search."""
    # entries that are there already are on one machine, maybe of fewer processes
    if fixed := {start.machine for start in bare.sparse_starts.values()}:
        return [
            (machine, compute_copy_costs(machine, levels))
            for machine in fixed
            if n_processes in (None, machine.n_processes)
        ]
    machines = []
    for sizes in factorizations(n_processes or bare.processes):
        # without levels all orders cost the same
        for order in sorted({*permutations(sizes)}) if levels else [sizes]:
            machine = Machine(order)
            costs = compute_copy_costs(machine, levels)
            machines.append((machine, costs))
            if levels:
                # a lower cost between groups finds plans that move within small units
                machines.append((machine, costs._replace(of_another=costs.cheapest)))
    return machines


def _list_spaces(
    bare: Plan,
    machines: Sequence[tuple[Machine, CopyCosts]],
    max_elements: float = inf,
    max_excess: float = MAX_EXCESS,
    tiers: Sequence[Tier] = tuple(Tier),
) -> list[_Space]:
    """Return the spaces of all machines that have maps of the first nonempty tier."""
    for tier in tiers:
        limits = Limits(max_elements, tier, max_excess)
        spaces = [_Space.of(bare, *machine, limits) for machine in machines]
        # uneven maps are considered only if no machine has maps with even work
        if fitting := [space for space in spaces if space is not None]:
            return fitting
    return []


def _search_spaces(spaces: Sequence[_Space], limit: float) -> SearchResult | None:
    """Search all machines, first narrowly: results bound the wider searches."""
    best, bound, remaining, spent = None, limit, list(spaces), 0.0
    for n_states, wider in zip(BEAMS, (*BEAMS[1:], None), strict=True):
        retried: list[tuple[float, _Space]] = []
        for space in remaining:
            # nothing on this machine can be better
            if space.lower_bound >= limit:
                continue
            # tables have one or two axes of states, so work grows at most quadratically
            growth = (n_states / BEAMS[max(0, BEAMS.index(n_states) - 1)]) ** 2
            if n_states > BEAMS[0] and spent + growth * space.work > MAX_WORK:
                bound = min(bound, space.lower_bound)
                continue
            solution = space.solve(limit, n_states)
            spent += space.work * (n_states > BEAMS[0])
            result = solution.result
            if result is not None and result.cost < limit:
                best, limit = result, result.cost
            if solution.n_left_out and wider:
                retried.append((inf if result is None else result.cost, space))
            elif not solution.is_exact:
                bound = min(bound, space.lower_bound)
        # the best machine first: it lowers the limit for the others
        remaining = [space for _, space in sorted(retried, key=itemgetter(0))]
    return None if best is None else replace(best, bound=min(bound, best.cost))


class _Solution(NamedTuple):
    """The result of the search of one machine.

    Attributes:
        result: None if nothing is below the limit.
        n_left_out: number of states that were not considered, but could be better.
        is_exact: whether no other choice on this machine can be better.
    """

    result: SearchResult | None
    n_left_out: int
    is_exact: bool


class _Space:
    """The choices of all groups on one machine."""

    def __init__(
        self, bare: Plan, machine: Machine, maps: Sequence[GroupMaps], of_another: float
    ) -> None:
        self.groups, self.extents, self.machine = bare.groups, bare.extents, machine
        self.of_another, self.ends = of_another, bare.ends
        self.starts = bare.requested_starts
        self.maps, self.uses = maps, list_uses(bare)
        self.walked = bare.problem.walked
        self.overlap = Overlaps(machine)
        self.work = 0.0
        # maps have few different results and needs
        self.needed = cache(partial(derive_distribution, machine=machine))

        @cache
        def result_choices(number: int, row: int) -> list[Distribution]:
            group, axes = maps[number].group, maps[number].axes(row)
            return [*list_result_choices(group, axes, machine)]

        self.result_choices = result_choices

    @classmethod
    def of(
        cls, bare: Plan, machine: Machine, costs: CopyCosts, limits: Limits
    ) -> _Space | None:
        """Build the space of a machine; None if no map of a group is in the limits."""
        uses, starts = list_uses(bare), bare.requested_starts
        maps = []
        for number in range(len(bare.groups)):
            later = [a for of in uses.values() for n, a in of[1:] if n == number]
            # their moves are those from the requested start
            moved = [a for a in _list_first_uses(uses, number) if a.tensor in starts]
            of_group = list_group_maps(
                bare, number, machine, [*later, *moved], costs.of_axes, limits
            )
            if of_group is None:
                return None
            for access in moved:
                start = starts[access.tensor]
                of_group = of_group.with_start(
                    bare, access, start, machine, costs.of_another
                )
            maps.append(of_group)
        tied = tie_maps(bare, machine, maps)
        return None if tied is None else cls(bare, machine, tied, costs.of_another)

    @cached_property
    def lower_bound(self) -> float:
        """Lower bound of the cost: the traffic within groups."""
        return float(sum(maps.costs.min() for maps in self.maps))

    def solve(self, limit: float, n_states: int) -> _Solution:
        """Return the best choice whose cost is below a limit.

        Sets ``work`` to the entries of all tables times the number of ranks.
        """
        tables = _Tables(self, limit, n_states)
        is_below = all(map(tables.add_group, range(len(self.groups))))
        sizes = [table.costs.size for table in tables.tables]
        self.work = float(sum(sizes)) * self.machine.n_processes
        if not is_below:
            return _Solution(None, tables.n_left_out, tables.is_exact)
        least = find_low_sum(tables.tables, tables.blocks(), MAX_JOINED)
        is_exact = tables.is_exact and least.is_exact
        if least.total == inf:
            return _Solution(None, tables.n_left_out, is_exact)
        schedules = []
        for number, group in enumerate(self.groups):
            axes = self.maps[number].axes(
                tables.rows[number][least.choices[f"m{number}"]]
            )
            tensor = group.output.tensor
            if tensor in tables.results:
                result = tables.results[tensor][least.choices[f"d{number}"]]
            else:  # a final result: no group reads it
                result = spread_result(group, axes, self.machine, self.extents)
            schedules.append(GroupSchedule(self.machine, axes, result))
        bound = least.total if is_exact else self.lower_bound
        best = SearchResult(least.total, tuple(schedules), bound)
        return _Solution(best, tables.n_left_out, is_exact)

    def shape(self, access: Access) -> tuple[int, ...]:
        return get_shape(access, self.extents)


@dataclass(frozen=True, eq=False)
class _Needs:
    """The distinct distributions that a use may need, with the number for each map."""

    choices: list[Distribution]
    of_map: NDArray[np.int64]

    def select(self, is_selected: NDArray[np.bool_]) -> _Needs:
        return _Needs(self.choices, self.of_map[is_selected])

    def link(self, number: int, name: str) -> Table:
        """Return the table that links a map to the distribution that it needs."""
        costs = np.full((len(self.of_map), len(self.choices)), inf)
        costs[np.arange(len(self.of_map)), self.of_map] = 0.0
        return Table((f"m{number}", name), costs)


class _Tables:
    """Collects the tables whose sum is minimized, group by group.

    When a group is added, a lower bound is known for each of its maps together with the
    groups that it is computed from. A map is left out if this bound plus the bounds of
    all other groups reaches the limit.

    Attributes:
        rows: the maps of each group that remain.
        results: by tensor, the distributions that its variable chooses from.
        below: by tensor, for each of its distributions a lower bound of the cost of
            computing it, and the share of that cost in the space's lower bound.
    """

    def __init__(self, space: _Space, limit: float, n_states: int) -> None:
        self.space, self.limit, self.n_states = space, limit, n_states
        self.is_exact, self.n_left_out = True, 0
        self.tables: list[Table] = []
        self.rows: list[NDArray[np.int64]] = []
        self.results: dict[str, list[Distribution]] = {}
        self.needs: dict[tuple[str, int], _Needs] = {}
        self.below: dict[str, tuple[NDArray[np.float64], float]] = {}
        self.producer = {
            group.output.tensor: number for number, group in enumerate(space.groups)
        }

    def blocks(self) -> list[list[str]]:
        """Return the variables of each group: its map, its result and its needs."""
        blocks = [[f"m{number}"] for number in range(len(self.space.groups))]
        for tensor in self.results:
            blocks[self.producer[tensor]].append(f"d{self.producer[tensor]}")
        for tensor, k in self.needs:
            blocks[self.space.uses[tensor][k][0]].append(f"{tensor}:{k}")
        return blocks

    def add_group(self, number: int) -> bool:
        """Add the tables of a group; return False if no map is below the limit."""
        maps = self.space.maps[number]
        first_uses = _list_first_uses(self.space.uses, number)
        inputs = [access for access in first_uses if access.tensor in self.below]
        # the limit, without the bounds of groups that this one is not computed from
        own_bound = maps.costs.min() + sum(self.below[a.tensor][1] for a in inputs)
        max_cost = self.limit - (self.space.lower_bound - own_bound)
        input_bound = sum(self.below[a.tensor][0].min() for a in inputs)
        # stable, so that equal costs give the same plan on every machine
        rows = np.argsort(maps.costs, kind="stable")
        rows = rows[maps.costs[rows] + input_bound < max_cost]
        if len(rows) > self.n_states:
            self.n_left_out += len(rows) - self.n_states
            self.is_exact, rows = False, rows[: self.n_states]
        if not len(rows):
            return False
        bound, edges = maps.costs[rows] + input_bound, []
        needs = [self._needs(number, rows, access) for access in inputs]
        for access, need in zip(inputs, needs, strict=True):
            below_sources = self.below[access.tensor][0]
            below_sources = below_sources - below_sources.min()
            extra = self._cost_moves(access, need)
            edges.append(extra)
            bound = bound + (extra + below_sources[:, None]).min(axis=0)[need.of_map]
        is_below = bound < max_cost
        if not is_below.any():
            return False
        rows, bound = rows[is_below], bound[is_below]
        self.rows.append(rows)
        self.tables.append(Table((f"m{number}",), maps.costs[rows]))
        for access, need, extra in zip(inputs, needs, edges, strict=True):
            costs = extra[:, need.select(is_below).of_map]
            variables = f"d{self.producer[access.tensor]}", f"m{number}"
            self.tables.append(Table(variables, costs))
        self._tie(number)
        self._add_uses(number, rows)
        self._add_results(number, rows, bound, own_bound)
        return True

    def _tie(self, number: int) -> None:
        """Require the map of the first group that walks the same entries."""
        operands = [access and access.tensor for access in self.space.walked]
        first = operands.index(operands[number])
        if operands[number] is None or first == number:
            return
        is_same = np.equal.outer(self.rows[first], self.rows[number])
        costs = np.where(is_same, 0.0, inf)
        self.tables.append(Table((f"m{first}", f"m{number}"), costs))

    def _needs(self, number: int, rows: NDArray[np.int64], access: Access) -> _Needs:
        axes, needed = self.space.maps[number].axes, self.space.needed
        needs = [needed(axes(row), access) for row in rows.tolist()]
        number_of = {need: k for k, need in enumerate(dict.fromkeys(needs))}
        return _Needs(list(number_of), np.array([number_of[need] for need in needs]))

    def _cost_moves(self, access: Access, need: _Needs) -> NDArray[np.float64]:
        """Return the cost of moving the elements that are not where they are needed.

        Returns:
            A row for each distribution of the tensor, a column for each need.
        """
        shape, sources = self.space.shape(access), self.results[access.tensor]
        shared = self.space.overlap.shared(shape, sources, need.choices)
        return self.space.of_another * (prod(shape) - shared)

    def _add_results(
        self,
        number: int,
        rows: NDArray[np.int64],
        bound: NDArray[np.float64],
        own_bound: float,
    ) -> None:
        """Add the distributions of the result, if it moves afterwards."""
        output = self.space.groups[number].output
        tensor, end = output.tensor, self.space.ends.get(output.tensor)
        if tensor not in self.space.uses and end is None:
            return
        choices = [self.space.result_choices(number, row) for row in rows.tolist()]
        unique = dict.fromkeys(d for of_row in choices for d in of_row)
        number_of = {d: k for k, d in enumerate(unique)}
        costs = np.full((len(rows), len(number_of)), inf)
        for row, of_row in enumerate(choices):
            costs[row, [number_of[d] for d in of_row]] = 0.0
        self.results[tensor] = list(number_of)
        self.below[tensor] = ((costs + bound[:, None]).min(axis=0), own_bound)
        # 0 or infinite: the distributions that each map allows
        self.tables.append(Table((f"m{number}", f"d{number}"), costs))
        if end is not None:
            shape = self.space.shape(output)
            missing = [count_moved(shape, source, end) for source in number_of]
            ends = self.space.of_another * np.array(missing)
            self.tables.append(Table((f"d{number}",), ends))

    def _add_uses(self, number: int, rows: NDArray[np.int64]) -> None:
        """Add the cost of later uses of tensors: elements that were not fetched yet."""
        for tensor, uses in self.space.uses.items():
            if len(uses) < 2:
                continue
            for k, (group, access) in enumerate(uses):
                if group != number:
                    continue
                need = self._needs(number, rows, access)
                self.needs[tensor, k] = need
                self.tables.append(need.link(number, f"{tensor}:{k}"))
                # the first use is in the cost of its map, or of its edge
                if k:
                    self.tables.append(self._cost_later_use(tensor, k, access))

    def _cost_later_use(self, tensor: str, k: int, access: Access) -> Table:
        """Return the cost of a later use, taking a few earlier uses into account."""
        shape, need = self.space.shape(access), self.needs[tensor, k]
        earlier = {f"{tensor}:{j}": self.needs[tensor, j].choices for j in range(k)}
        if tensor in self.results:
            earlier = {f"d{self.producer[tensor]}": self.results[tensor]} | earlier
        n_entries = len(need.choices) * self.space.machine.n_processes
        while len(earlier) > MAX_TOGETHER or (
            len(earlier) > 1
            and prod(map(len, earlier.values())) * n_entries > MAX_ENTRIES
        ):
            # the table would be too large; without an earlier use, the cost is an
            # overestimate
            self.is_exact = False
            earlier.popitem()
        missing = self.space.overlap.missing
        present = list(earlier.values())
        start = self.space.starts.get(tensor)
        # the overlaps are those of blocks on one machine
        if start and start.machine == self.space.machine and not start.cyclic:
            costs = missing(shape, [[start], *present], need.choices)[0]
        else:
            self.is_exact &= start is None
            costs = missing(shape, present, need.choices)
        return Table((*earlier, f"{tensor}:{k}"), self.space.of_another * costs)


def list_uses(bare: Plan) -> dict[str, list[tuple[int, Access]]]:
    """Return by dense tensor every use: the number of the group, and the access.

    Sparse tensors are used where they are.
    """
    uses: dict[str, list[tuple[int, Access]]] = {}
    for number, group in enumerate(bare.groups):
        for access in group.inputs:
            if not bare.is_sparse(access.tensor):
                uses.setdefault(access.tensor, []).append((number, access))
    return uses


def _list_first_uses(
    uses: Mapping[str, Sequence[tuple[int, Access]]], number: int
) -> list[Access]:
    """Return the inputs of a group that no earlier group uses."""
    return [access for (first, access), *_ in uses.values() if first == number]
