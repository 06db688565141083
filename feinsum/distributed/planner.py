"""``plan``: the schedules of an einsum that move the fewest elements."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from os import PathLike

from feinsum.distributed.alternatives import priced, ties
from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.candidates import grid_plans
from feinsum.distributed.counts import Counts
from feinsum.distributed.groups import Group, default_path, groups_of
from feinsum.distributed.hosts import arranged
from feinsum.distributed.leaves import extents_of
from feinsum.distributed.levels import Levels, levels_of
from feinsum.distributed.machine import MOST_PROCESSES
from feinsum.distributed.maps import MOST_EXCESS
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import MOST_PARTS, GroupSchedule, Loop
from feinsum.distributed.search import best_schedules
from feinsum.distributed.statements import Statements
from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum, require_einsum, to_text
from feinsum.paths import Path, path_of, postorders
from feinsum.records import Fleet, Store
from feinsum.words import counted

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip

MOST_FOR_PATHS = 64
"""Maximum processes for which several paths are tried, since that takes longer."""

NARROWER = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
"""Shares of the memory that one group may take, tried in this order."""


def plan(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    memory: int | str | None = None,
    path: Sequence[Sequence[int]] | None = None,
    most_work: float = inf,
    database: str | PathLike[str] | Store | None = None,
    fleet: Fleet | None = None,
    ranks_per_host: int | Levels | None = None,
) -> Plan:
    """Plan an einsum on many processes so that the fewest elements move.

    Considers all machines with up to four axes, all ways to partition indices along
    these axes with even work, and grids of their own for all groups. The search is
    exact for the groups of one contraction path; ``docs/reference/plans.md`` defines
    the counts. Nothing is measured.

    Args:
        einsum: an einsum with one row, without repeated indices in a term.
        sizes: the value of every size parameter.
        processes: number of processes.
        memory: memory limit per process, as a number of bytes or a text such as
            ``"8 GB"``.
        path: positions of the operands to multiply at each step, with the product
            appended. By default a path with the fewest operations or, for up to five
            operands and 64 processes, one with at most a tenth more operations that
            moves less.
        most_work: limit on the maximum work of a process over the average, which bounds
            how many processes may be idle in exchange for fewer elements. With 1, work
            is as even as possible. By default there is no limit, except that at least
            two processes have work.
        database: database with facts of plans. If the plan and others with few elements
            were timed on such a fleet, the fastest is chosen. None by default.
        fleet: the fleet to plan for; by default MPI ranks on this machine, with one
            thread each.
        ranks_per_host: number of consecutive ranks on each host. Among plans and orders
            of machine axes that move equally many elements, the planner chooses the one
            that moves the fewest between hosts
            (:func:`feinsum.distributed.between_hosts`). For more levels,
            :class:`feinsum.distributed.Levels`; if these have links, it chooses the
            least seconds over all elements.

    Raises:
        StoreError: if the database cannot be read.
        PlanError: if it cannot be planned, with the broken rule: ``sizes``,
            ``processes``, ``memory``, ``path``, ``work``, ``batch`` or ``diagonal``.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> found = plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> found.schedules[0].machine.sizes, found.counts.moved
    ((2, 2, 2), 1080000)
    """
    require_einsum(einsum)
    _check_processes(processes)
    _check_work(most_work)
    levels = levels_of(ranks_per_host)
    extents = extents_of(einsum, sizes or {})
    steps = None if path is None else tuple(tuple(step) for step in path)
    groups_of(einsum, steps, extents)
    chosen, *others = paths_of(einsum, extents) if steps is None else [steps]
    bare = Plan(to_text(einsum), sizes or {}, processes, chosen, (), {}, ())
    made = _planned(bare, memory, most_work)
    if memory is None and processes <= MOST_FOR_PATHS:
        for other in others:
            made = _or_by_path(made, other, most_work)
    made = _on_levels(made, levels, memory)
    return made if database is None else _or_measured(made, database, fleet, memory)


def _on_levels(made: Plan, levels: Levels | None, memory: int | str | None) -> Plan:
    """The plan, or one with a lower cost on these levels."""
    if levels is None:
        return made
    most = _elements(memory, made.dtype.itemsize)
    if not levels.links:
        return arranged([made, *ties(made, most)], levels)
    return arranged([made], levels, priced(made, levels, most))


def _or_measured(
    made: Plan,
    database: str | PathLike[str] | Store,
    fleet: Fleet | None,
    memory: int | str | None,
) -> Plan:
    from feinsum.db import opened_store
    from feinsum.distributed.measured import prefer_measured

    most_bytes = inf if memory is None else read_bytes(memory)
    with opened_store(database) as store:
        return prefer_measured(made, store, fleet, most_bytes=most_bytes)


def _or_by_path(made: Plan, path: Path, most_work: float) -> Plan:
    """The plan, or one of another path that moves less and has work as even."""
    bare = replace(made, path=path, schedules=(), starts={}, leaves=(), name="planned")
    counts = made.outline()
    found = best_schedules(
        bare.groups, bare.extents, bare.processes, limit=float(counts.moved)
    )
    if found is None:
        return made
    other = _best_known(with_schedules(bare, found.schedules), most_work)
    theirs = other.outline()
    is_as_even = theirs.most_points <= MOST_EXCESS * counts.most_points
    return other if is_as_even and theirs.moved < counts.moved else made


def plan_statements(
    statements: Statements,
    *,
    processes: int,
    memory: int | str | None = None,
    most_work: float = inf,
    ranks_per_host: int | Levels | None = None,
) -> Plan:
    """Plan several einsums on many processes so that the fewest elements move.

    Several statements can read one result, and a process never fetches again what it
    fetched for an earlier statement. As for a single einsum, the search is exact over
    the maps of one machine to all statements at once.

    Args:
        statements: the statements, in an order in which they can be computed.
        processes: number of processes.
        memory: memory limit per process, in bytes.
        most_work: limit on the maximum work of a process over the average.
        ranks_per_host: see :func:`plan`.

    Raises:
        PlanError: with the broken rule: ``statements``, or one of those of
            :func:`plan`.

    >>> from feinsum.distributed import statements
    >>> both = statements(
    ...     ["Q[s,h] = X[s,a] * V[a,h]", "K[s,h] = X[s,a] * W[a,h]"],
    ...     {"X": (600, 40), "V": (40, 30), "W": (40, 30)},
    ... )
    >>> plan_statements(both, processes=4).counts.moved
    7200
    """
    _check_processes(processes)
    _check_work(most_work)
    levels = levels_of(ranks_per_host)
    bare = Plan("", {}, processes, (), (), {}, (), statements=statements.check())
    made = _planned(bare, memory, most_work)
    return _on_levels(made, levels, memory)


def _planned(bare: Plan, memory: int | str | None, most_work: float) -> Plan:
    most = _elements(memory, bare.dtype.itemsize)
    least = inf
    for share in NARROWER if most < inf else (1.0,):
        found = best_schedules(bare.groups, bare.extents, bare.processes, share * most)
        if found is None:
            continue
        made = with_schedules(bare, found.schedules)
        if most == inf:
            return _best_known(with_idle(made, most_work), most_work)
        made = _within(made, most)
        if made.counts.peak <= most:
            return _best_known(made, most_work, most)
        least = min(least, made.counts.peak)
    needs = f"; {least * bare.dtype.itemsize} bytes would do" if least < inf else ""
    raise PlanError(
        f"{counted(bare.processes, 'process')} with {memory} each are "
        "too few for "
        f"{bare.title}{needs}; give more memory or more processes",
        rules=("memory",),
    )


def _check_processes(processes: object) -> None:
    is_number = isinstance(processes, int) and not isinstance(processes, bool)
    if not (is_number and 1 <= processes <= MOST_PROCESSES):  # type: ignore[operator]
        raise PlanError(
            f"processes={processes!r}; expected an integer from 1 to {MOST_PROCESSES}",
            rules=("processes",),
        )


def _check_work(most_work: object) -> None:
    is_number = isinstance(most_work, int | float) and not isinstance(most_work, bool)
    if not (is_number and most_work >= 1):  # type: ignore[operator]
        raise PlanError(
            f"most_work={most_work!r}; expected a number of at least 1: the maximum "
            "work of a process over the average",
            rules=("work",),
        )


def _elements(memory: int | str | None, itemsize: int) -> float:
    """Entries of the result's dtype that fit a memory."""
    if memory is None:
        return inf
    return read_bytes(memory) // itemsize


def read_bytes(memory: int | str) -> int:
    """Bytes as a number or with a unit.

    >>> read_bytes("8 GB"), read_bytes("1.5KiB"), read_bytes(77)
    (8000000000, 1536, 77)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?\s*", str(memory))
    if match is None or isinstance(memory, bool):
        raise PlanError(
            f"memory={memory!r}; expected bytes, such as 8000000000 or '8 GB'",
            rules=("memory",),
        )
    factor = UNITS[(match[2] or "").upper().replace("I", "i")]
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def _best_known(made: Plan, most_work: float, most: float = inf) -> Plan:
    """The plan, or one with separate grids that moves less, or an improvement on that.

    No process holds more than ``most`` elements.

    Separate grids for each group, with uneven blocks, can be better than any map of one
    machine; so can grids of fewer processes, because the others fetch nothing.
    """
    others = grid_plans(made)
    best = made.outline()
    limit = max(best.most_points, most_work * best.points / made.processes)
    found, least = made, best
    for other in others.values():
        counts = other.outline()
        is_shared = counts.busy > 1 and counts.most_points <= limit
        if is_shared and counts.peak <= most and counts.moved < least.moved:
            found, least = other, counts
    return found if found is made else _as_uneven(made, found, least, most)


def _as_uneven(made: Plan, other: Plan, counts: Counts, most: float) -> Plan:
    """The best plan whose work is as even as another's, or that other one."""
    excess = counts.most_points * counts.busy / counts.points
    found = best_schedules(
        made.groups, made.extents, counts.busy, most_excess=max(MOST_EXCESS, excess)
    )
    if found is None:
        return other
    again = with_schedules(made, found.schedules)
    ours = again.outline()
    is_better = ours.moved < counts.moved and ours.most_points <= counts.most_points
    return again if is_better and ours.peak <= most else other


def _within(made: Plan, most: float) -> Plan:
    """Add sequential loops that keep a process below its memory limit, if any do."""
    parts = 2
    while made.counts.peak > most and parts <= MOST_PARTS:
        made = _with_loops(made, parts)
        parts *= 4
    return made


def _with_loops(made: Plan, parts: int) -> Plan:
    """Split every group into this many parts of the index with the largest inputs."""
    schedules = [
        _with_loop(group, schedule, made.extents, parts)
        for group, schedule in zip(made.groups, made.schedules, strict=True)
    ]
    return with_schedules(made, schedules, starts=made.starts)


def _with_loop(
    group: Group, schedule: GroupSchedule, extents: Mapping[str, int], parts: int
) -> GroupSchedule:
    if not group.summed:
        return schedule

    def length(index: str) -> int:
        return -(-extents[index] // schedule.parts(index))

    def saved(index: str) -> float:
        total = 0.0
        for access in group.inputs:
            if index in access.indices:
                size = 1.0
                for i in access.indices:
                    size *= length(i)
                total += size * (1 - 1 / min(parts, length(index)))
        return total

    index = max(group.summed, key=saved)
    n_parts = min(parts, length(index))
    return replace(schedule, loop=Loop(index, n_parts) if n_parts > 1 else None)


MOST_UNEVEN = 1.5
"""Limit on the maximum work of a process over the average, with idle processes."""

FEW_PROCESSES = 16
"""Up to this number every smaller one is tried; beyond, those that divide an extent."""


def with_idle(made: Plan, most_work: float) -> Plan:
    """The plan of several statements, or one on fewer processes that moves less.

    Six processes can partition four heads only together with another index; four can do
    so alone. If all processes partition an index evenly, all of them are used: leaving
    some idle would nearly always move less, but take longer.

    Args:
        most_work: limit on the maximum work of a process over the average.
    """
    if made.statements is None:
        return made
    counts = made.outline()
    average = counts.points / made.processes
    is_even = counts.most_points <= MOST_EXCESS * average
    limit = max(counts.most_points, min(most_work, MOST_UNEVEN) * average)
    best, least = made, counts.moved
    for processes in fewer_processes(made, is_even=is_even):
        found = best_schedules(made.groups, made.extents, processes, limit=float(least))
        if found is None:
            continue
        other = with_schedules(made, found.schedules)
        theirs = other.outline()
        if theirs.moved < least and theirs.most_points <= limit:
            best, least = other, theirs.moved
    return best


def fewer_processes(made: Plan, *, is_even: bool) -> Iterator[int]:
    """Smaller numbers of processes that may do better, largest first.

    Args:
        is_even: whether all processes have about equal work; if not, the largest power
            of two may be more even.
    """
    n, extents = made.processes, set(made.extents.values())

    def divides(number: int) -> bool:
        return any(extent and extent % number == 0 for extent in extents)

    if is_even and divides(n):
        return
    power = 1 << max((n - 1).bit_length() - 1, 0)
    for few in range(n - 1, 1, -1):
        is_likely = n <= FEW_PROCESSES or divides(few)
        if (is_likely and few * MOST_UNEVEN >= n) or few == power:
            yield few


MOST_OPERANDS = 5
"""Maximum operands for enumerating all paths; five operands have 150."""

MOST_PATHS = 4
"""Maximum number of planned paths."""

MOST_OPERATIONS = 1.1
"""Maximum operations of another path over the fewest."""


def paths_of(einsum: BatchedEinsum, extents: Mapping[str, int]) -> tuple[Path, ...]:
    """The default path, and others with about as few operations but other groups.

    >>> import feinsum
    >>> arrays = [feinsum.array(name, (8, 8)) for name in "ABC"]
    >>> chain = feinsum.einsum("ij,jk,kl->il", *arrays)
    >>> paths_of(chain, dict(chain.extents))
    (((1, 2), (0, 1)), ((0, 1), (0, 1)))
    """
    usual = default_path(einsum, extents)
    if not 3 <= len(einsum.inputs) <= MOST_OPERANDS:
        return (usual,)
    limit = MOST_OPERATIONS * _operations(groups_of(einsum, usual, extents), extents)
    found: dict[object, tuple[int, Path]] = {}
    n = len(einsum.inputs)
    for path in (usual, *(path_of(order, n) for order in postorders(n))):
        groups = groups_of(einsum, path, extents)
        n_operations = _operations(groups, extents)
        if n_operations <= limit:
            found.setdefault(_signature(groups), (n_operations, path))
    (_, first), *rest = found.values()
    return (first, *(path for _, path in sorted(rest)[: MOST_PATHS - 1]))


def _operations(groups: Sequence[Group], extents: Mapping[str, int]) -> int:
    """Operations of leaves, each along its own best path."""
    return sum(group.n_points(extents) * len(group.inputs) for group in groups)


def _signature(groups: Sequence[Group]) -> object:
    """The operands that each group combines, independent of names of products."""
    of: dict[str, object] = {}
    for group in groups:
        terms = Counter(of.get(str(a), str(a)) for a in group.inputs)
        of[str(group.output)] = frozenset(terms.items())
    return frozenset(of.values())
