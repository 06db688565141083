"""``plan``: the schedules of an einsum with the least communication volume.

``C[i,k] = A[i,j] * B[j,k]`` with 600 x 600 matrices on 8 processes. The planner tries
all machines, (8,), (2, 4) and (2, 2, 2), and for each all ways to map machine axes to
indices. The best one cuts all three indices in halves: x cuts i, y cuts k, z cuts j::

                          B[j,k]
                    k0          k1            rank = 4 x + 2 y + z
                +-----------+-----------+
            j0  | 0 4       | 2 6       |     ranks 0 and 4 need B[j0,k0]
                +-----------+-----------+
            j1  | 1 5       | 3 7       |
                +-----------+-----------+
         j0    j1       k0          k1
       +-----+-----+  +-----------+-----------+
    i0 | 0 2 | 1 3 |  | 0 + 1     | 2 + 3     |     ranks 0 and 1 have partial sums
       +-----+-----+  +-----------+-----------+     of C[i0,k0]
    i1 | 4 6 | 5 7 |  | 4 + 5     | 6 + 7     |
       +-----+-----+  +-----------+-----------+
          A[i,j]               C[i,k]

Each process starts with one eighth of each operand, half of the 300 x 300 block that it
needs, so that all is stored once::

    fetch A     0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7     8 x 45,000 elements
    fetch B     0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7     8 x 45,000
    compute     300 x 300 x 300 multiply-adds on each
    reduce C    0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7     8 x 45,000

1,080,000 elements in all; with (8,), every process would need all of B, 7/8 of it from
others: 2,520,000. :mod:`feinsum.distributed.search` finds the maps of all groups at
once. What follows here are its refinements: a memory limit (sequential loops), several
contraction paths, grids of their own for all groups, idle processes, levels, timings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from os import PathLike

from feinsum.contraction.paths import Path, path_of, postorders
from feinsum.distributed.assembly import arrange_axes, with_schedules
from feinsum.distributed.choosing import alternatives, prefer_measured, priced, ties
from feinsum.distributed.counts import Counts
from feinsum.distributed.distribution import MAX_PROCESSES
from feinsum.distributed.grids import grid_plans
from feinsum.distributed.levels import Levels, levels_of
from feinsum.distributed.maps import MAX_EXCESS
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import MAX_PARTS, GroupSchedule, Loop
from feinsum.distributed.search import best_schedules
from feinsum.distributed.statements import (
    Group,
    Statements,
    default_path,
    extents_of,
    groups_of,
)
from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum, require_einsum, to_text
from feinsum.records import Fleet, Store
from feinsum.words import counted

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip

MAX_FOR_PATHS = 64
"""Processes for which several paths are tried, since that takes longer."""

MEMORY_SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
"""Shares of the memory that one group may take, tried in this order.

The search limits groups one by one, but tensors of several groups are there at a time.
"""

MAX_UNEVEN = 1.5
"""Limit on the maximum work of a process over the average, with idle processes."""

FEW_PROCESSES = 16
"""Up to this number every smaller one is tried; beyond, those that divide an extent."""

MAX_OPERANDS = 5
"""Operands for which all paths are enumerated; five operands have 150."""

MAX_PATHS = 4
"""Number of planned paths."""

MAX_OPERATIONS = 1.1
"""Operations of another path over the fewest."""


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
    >>> best = plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> best.schedules[0].machine.sizes, best.counts.moved
    ((2, 2, 2), 1080000)
    """
    require_einsum(einsum)
    _check_processes(processes)
    _check_work(most_work)
    levels = levels_of(ranks_per_host)
    extents = extents_of(einsum, sizes or {})
    steps = None if path is None else tuple(tuple(step) for step in path)
    groups_of(einsum, steps, extents)  # refuses what cannot be planned
    first, *others = paths_of(einsum, extents) if steps is None else [steps]
    bare = Plan(to_text(einsum), sizes or {}, processes, first, (), {}, ())
    best = _plan_groups(bare, memory, most_work)
    if memory is None and processes <= MAX_FOR_PATHS:
        # other paths have other groups, which the search cannot compare
        for other in others:
            best = _prefer_path(best, other, most_work)
    best = _prefer_on_levels(best, levels, memory)
    return best if database is None else _prefer_measured(best, database, fleet, memory)


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
    best = _plan_groups(bare, memory, most_work)
    return _prefer_on_levels(best, levels, memory)


def best_plans(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    most: int = 5,
) -> tuple[Plan, ...]:
    """Return distinct plans that move few elements, best first.

    These are the planner's choice, the best one for every machine of a quick search,
    and those with a grid of its own for every group.

    Args:
        most: limit on the number of plans.

    Raises:
        PlanError: as :func:`plan` does.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> plans = best_plans(feinsum.einsum("ij,jk->ik", A, B), processes=8, most=3)
    >>> [(plan.name, plan.counts.moved) for plan in plans]
    [('planned', 1080000), ('eindecomp', 1080000), ('planned', 1440000)]
    """
    first = plan(einsum, sizes, processes=processes)
    return (first, *alternatives(first, most - 1))


# ---- arguments


def _check_processes(processes: object) -> None:
    is_number = isinstance(processes, int) and not isinstance(processes, bool)
    if not (is_number and 1 <= processes <= MAX_PROCESSES):  # type: ignore[operator]
        raise PlanError(
            f"processes={processes!r}; expected an integer from 1 to {MAX_PROCESSES}",
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


def _max_elements(memory: int | str | None, itemsize: int) -> float:
    """Return how many entries of the result's dtype fit a memory."""
    if memory is None:
        return inf
    return read_bytes(memory) // itemsize


def read_bytes(memory: int | str) -> int:
    """Parse bytes as a number or with a unit.

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


# ---- one path: the search, a memory limit, and other grids


def _plan_groups(bare: Plan, memory: int | str | None, most_work: float) -> Plan:
    """Return the best plan of the groups of a plan without schedules.

    Raises:
        PlanError: with the rule ``memory``, if there is none.
    """
    max_elements = _max_elements(memory, bare.dtype.itemsize)
    least_peak = inf
    # without a limit one search is enough
    for share in MEMORY_SHARES if max_elements < inf else (1.0,):
        result = best_schedules(
            bare.groups, bare.extents, bare.processes, share * max_elements
        )
        if result is None:
            continue
        best = with_schedules(bare, result.schedules)
        if max_elements == inf:
            return _prefer_grids(_prefer_idle(best, most_work), most_work)
        best = _fit_memory(best, max_elements)
        if best.counts.peak <= max_elements:
            return _prefer_grids(best, most_work, max_elements)
        least_peak = min(least_peak, best.counts.peak)
    n_bytes = least_peak * bare.dtype.itemsize
    needs = f"; {n_bytes} bytes would do" if least_peak < inf else ""
    raise PlanError(
        f"{counted(bare.processes, 'process')} with {memory} each are too few for "
        f"{bare.title}{needs}; give more memory or more processes",
        rules=("memory",),
    )


def _prefer_grids(plan: Plan, most_work: float, max_elements: float = inf) -> Plan:
    """Return the plan, one with separate grids that moves less, or one better yet.

    Separate grids for each group, with uneven blocks, can be better than any map of one
    machine; so can grids of fewer processes, because the others fetch nothing.

    Args:
        max_elements: limit on the elements that a process holds.
    """
    counts = plan.outline()
    max_points = max(counts.most_points, most_work * counts.points / plan.processes)
    best, best_counts = plan, counts
    for other in grid_plans(plan).values():
        counts = other.outline()
        is_shared = counts.busy > 1 and counts.most_points <= max_points
        is_better = counts.moved < best_counts.moved
        if is_shared and is_better and counts.peak <= max_elements:
            best, best_counts = other, counts
    if best is plan:
        return plan
    return _match_unevenness(plan, best, best_counts, max_elements)


def _match_unevenness(
    plan: Plan, other: Plan, counts: Counts, max_elements: float
) -> Plan:
    """Return the best plan whose work is as even as another's, or that other one.

    The search only considered even work: with the freedom that the other plan takes,
    it may find something better.
    """
    excess = counts.most_points * counts.busy / counts.points
    result = best_schedules(
        plan.groups, plan.extents, counts.busy, max_excess=max(MAX_EXCESS, excess)
    )
    if result is None:
        return other
    uneven = with_schedules(plan, result.schedules)
    ours = uneven.outline()
    is_better = ours.moved < counts.moved and ours.most_points <= counts.most_points
    return uneven if is_better and ours.peak <= max_elements else other


def _fit_memory(plan: Plan, max_elements: float) -> Plan:
    """Add sequential loops that keep a process below its memory limit, if any do."""
    parts = 2
    while plan.counts.peak > max_elements and parts <= MAX_PARTS:
        schedules = [
            _with_loop(group, schedule, plan.extents, parts)
            for group, schedule in zip(plan.groups, plan.schedules, strict=True)
        ]
        plan = with_schedules(plan, schedules, starts=plan.starts)
        # a few large steps: each is planned and counted in full
        parts *= 4
    return plan


def _with_loop(
    group: Group, schedule: GroupSchedule, extents: Mapping[str, int], parts: int
) -> GroupSchedule:
    """Split a group into this many parts of the summed index that saves the most."""
    if not group.summed:
        return schedule

    def length(index: str) -> int:
        return -(-extents[index] // schedule.parts(index))

    def saved_elements(index: str) -> float:
        sizes = [
            prod(float(length(i)) for i in access.indices)
            for access in group.inputs
            if index in access.indices
        ]
        return sum(size * (1 - 1 / min(parts, length(index))) for size in sizes)

    # only a summed index: others would leave parts of the result
    index = max(group.summed, key=saved_elements)
    n_parts = min(parts, length(index))
    return replace(schedule, loop=Loop(index, n_parts) if n_parts > 1 else None)


# ---- fewer processes


def _prefer_idle(plan: Plan, most_work: float) -> Plan:
    """Return the plan of several statements, or one on fewer processes that moves less.

    Six processes can partition four heads only together with another index; four can do
    so alone. If all processes partition an index evenly, all of them are used: leaving
    some idle would nearly always move less, but take longer.

    Args:
        most_work: limit on the maximum work of a process over the average.
    """
    if plan.statements is None:
        return plan
    counts = plan.outline()
    average = counts.points / plan.processes
    is_even = counts.most_points <= MAX_EXCESS * average
    max_points = max(counts.most_points, min(most_work, MAX_UNEVEN) * average)
    best, moved = plan, counts.moved
    for processes in fewer_processes(plan, is_even=is_even):
        result = best_schedules(
            plan.groups, plan.extents, processes, limit=float(moved)
        )
        if result is None:
            continue
        other = with_schedules(plan, result.schedules)
        counts = other.outline()
        if counts.moved < moved and counts.most_points <= max_points:
            best, moved = other, counts.moved
    return best


def fewer_processes(plan: Plan, *, is_even: bool) -> Iterator[int]:
    """Yield smaller numbers of processes that may do better, largest first.

    Args:
        is_even: whether all processes have about equal work; if not, the largest power
            of two may be more even.
    """
    n, extents = plan.processes, set(plan.extents.values())

    def divides(number: int) -> bool:
        return any(extent and extent % number == 0 for extent in extents)

    # fewer processes would take longer, though they communicate less
    if is_even and divides(n):
        return
    # the largest power of two below n: extents are often multiples of it
    power = 1 << max((n - 1).bit_length() - 1, 0)
    for few in range(n - 1, 1, -1):
        is_likely = n <= FEW_PROCESSES or divides(few)
        if (is_likely and few * MAX_UNEVEN >= n) or few == power:
            yield few


# ---- other contraction paths


def _prefer_path(plan: Plan, path: Path, most_work: float) -> Plan:
    """Return the plan, or one of another path that moves less and has work as even."""
    bare = replace(plan, path=path, schedules=(), starts={}, leaves=(), name="planned")
    counts = plan.outline()
    result = best_schedules(
        bare.groups, bare.extents, bare.processes, limit=float(counts.moved)
    )
    if result is None:
        return plan
    other = _prefer_grids(with_schedules(bare, result.schedules), most_work)
    other_counts = other.outline()
    is_as_even = other_counts.most_points <= MAX_EXCESS * counts.most_points
    return other if is_as_even and other_counts.moved < counts.moved else plan


def paths_of(einsum: BatchedEinsum, extents: Mapping[str, int]) -> tuple[Path, ...]:
    """Return the default path, and others with about as few operations.

    Only paths with different groups count.

    >>> import feinsum
    >>> arrays = [feinsum.array(name, (8, 8)) for name in "ABC"]
    >>> chain = feinsum.einsum("ij,jk,kl->il", *arrays)
    >>> paths_of(chain, dict(chain.extents))
    (((1, 2), (0, 1)), ((0, 1), (0, 1)))
    """
    usual = default_path(einsum, extents)
    # two operands have one path, and the number grows exponentially
    if not 3 <= len(einsum.inputs) <= MAX_OPERANDS:
        return (usual,)

    def count_operations(groups: Sequence[Group]) -> int:
        # each leaf computes along its own best path, one operand after the other
        return sum(group.n_points(extents) * len(group.inputs) for group in groups)

    max_operations = MAX_OPERATIONS * count_operations(
        groups_of(einsum, usual, extents)
    )
    paths: dict[object, tuple[int, Path]] = {}
    n = len(einsum.inputs)
    for path in (usual, *(path_of(order, n) for order in postorders(n))):
        groups = groups_of(einsum, path, extents)
        n_operations = count_operations(groups)
        if n_operations <= max_operations:
            # fusion may give different paths the same groups
            paths.setdefault(_combinations(groups), (n_operations, path))
    (_, first), *rest = paths.values()
    return (first, *(path for _, path in sorted(rest)[: MAX_PATHS - 1]))


def _combinations(groups: Sequence[Group]) -> object:
    """Return which operands each group combines, whatever the names of products."""
    content: dict[str, object] = {}
    for group in groups:
        terms = Counter(content.get(str(a), str(a)) for a in group.inputs)
        content[str(group.output)] = frozenset(terms.items())
    return frozenset(content.values())


# ---- levels of the machine, and measured times


def _prefer_on_levels(
    plan: Plan, levels: Levels | None, memory: int | str | None
) -> Plan:
    """Return the plan, or one with a lower cost on these levels."""
    if levels is None:
        return plan
    max_elements = _max_elements(memory, plan.dtype.itemsize)
    # without prices, only plans that move equally little are of interest
    if not levels.links:
        return arrange_axes([plan, *ties(plan, max_elements)], levels)
    return arrange_axes([plan], levels, priced(plan, levels, max_elements))


def _prefer_measured(
    plan: Plan,
    database: str | PathLike[str] | Store,
    fleet: Fleet | None,
    memory: int | str | None,
) -> Plan:
    # opening a database imports SQL, which plans without one do not need
    from feinsum.db import opened_store

    max_bytes = inf if memory is None else read_bytes(memory)
    with opened_store(database) as store:
        return prefer_measured(plan, store, fleet, max_bytes=max_bytes)
