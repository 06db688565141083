"""``plan``: the schedules of an einsum whose slowest process finishes first.

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

This moves 1,080,000 elements. With (8,), every process would need all of B and receive
7/8 of it: 2,520,000. :mod:`feinsum.distributed.search` finds the maps of all groups
together, with even work and the least total volume. This module tries refinements, and
compares them by the time of the slowest process: more even work, a grid for each group,
idle processes, several contraction paths, sequential loops within a memory limit,
levels of the machine, and measured times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from os import PathLike

from feinsum.contraction.paths import Path, list_postorders, make_path
from feinsum.distributed.assembly import (
    Placement,
    arrange_axes,
    with_requested,
    with_schedules,
)
from feinsum.distributed.checks import find_storage_violations
from feinsum.distributed.choosing import (
    MAX_FOR_PATHS,
    choose_quickest,
    find_alternatives,
    find_cheap_plans,
    find_ties,
    prefer_measured,
    search_plan,
)
from feinsum.distributed.counts import USUAL, Rates
from feinsum.distributed.distribution import check_processes
from feinsum.distributed.groups import Group, find_default_path, get_extents, groups_of
from feinsum.distributed.levels import Levels, convert_levels
from feinsum.distributed.plans import Plan
from feinsum.distributed.repeats import plan_blocks
from feinsum.distributed.schedule import MAX_PARTS, GroupSchedule, Loop
from feinsum.distributed.search import find_least_resident
from feinsum.distributed.statement_graph import Statements, as_count
from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum, require_einsum, to_text
from feinsum.records import Fleet, Store
from feinsum.words import format_count

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip

MEMORY_SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
"""Shares of the memory that one group may take, tried in this order.

The search limits groups one by one, but tensors of several groups coexist in memory.
"""

MAX_OPERANDS = 5
"""Maximum number of operands for which all paths are enumerated; five have 150."""

MAX_PATHS = 4
"""Number of planned paths."""

MAX_OPERATIONS = 1.1
"""Maximum ratio of a path's operations to the fewest."""


def plan(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    processes: int,
    memory: int | str | None = None,
    path: Sequence[Sequence[int]] | None = None,
    rates: Rates = USUAL,
    database: str | PathLike[str] | Store | None = None,
    fleet: Fleet | None = None,
    ranks_per_host: int | Levels | None = None,
    nonzeros: int | None = None,
    starts: Mapping[str, Placement] | None = None,
    result: Placement | None = None,
) -> Plan:
    """Plan an einsum on many processes so that the slowest one finishes first.

    The time of a process is that of its multiply-adds, and of the elements and messages
    that it receives. Ties go to the plan that moves the fewest elements. The planner
    considers all machines with up to four axes, all ways to partition indices along
    these axes with even work, and a separate grid for each group. A search is exact for
    the groups of one contraction path; ``docs/reference/plans.md`` defines the counts.
    Nothing is measured.

    Args:
        einsum: an einsum with one row, without repeated indices in a term.
        sizes: the value of every size parameter.
        processes: number of processes.
        memory: memory limit per process, as a number of bytes or a text such as
            ``"8 GB"``.
        path: positions of the operands to multiply at each step, with the product
            appended. By default a path with the fewest operations or, for up to five
            operands and 64 processes, a faster one with at most a tenth more.
        rates: seconds of a multiply-add, a message and an element.
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
        nonzeros: number of entries of a sparse operand
            (:func:`feinsum.ir.sparse_array`). These are dealt out cyclically along the
            operand's axes, and never move; other operands move to them.
        starts: initial distributions of operands, such as
            :attr:`Plan.final_distributions` of an earlier plan; ``"replicated"`` is one
            copy on each process. Other operands start where they are first needed.
        result: final distribution of the result, likewise.

    Raises:
        StoreError: if the database cannot be read.
        PlanError: if it cannot be planned, with the broken rule: ``sizes``,
            ``processes``, ``memory``, ``path``, ``work``, ``batch``, ``diagonal``,
            ``starts``, ``result`` or ``sparse``.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> best = plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> best.schedules[0].machine.sizes, best.counts.moved
    ((2, 2, 2), 1080000)

    The next product reads the result where it is, and leaves a copy on each process:

    >>> C = feinsum.array("C", (600, 600))
    >>> chained = plan(
    ...     feinsum.einsum("ij,jk->ik", A, C),
    ...     processes=8,
    ...     starts={"C": best.result},
    ...     result="replicated",
    ... )
    >>> chained.starts["C"] == best.result, chained.result.notation("ik")
    (True, 'ik->*')
    """
    require_einsum(einsum)
    check_processes(processes)
    levels = convert_levels(ranks_per_host)
    extents = get_extents(einsum, sizes or {})
    steps = None if path is None else tuple(tuple(step) for step in path)
    groups_of(einsum, steps, extents)  # refuses einsums that cannot be planned
    first_path, *other_paths = (
        list_short_paths(einsum, extents) if steps is None else [steps]
    )
    text = to_text(einsum)
    count = as_count(nonzeros)
    bare = Plan(text, sizes or {}, processes, first_path, (), {}, (), nonzeros=count)
    for violation in find_storage_violations(bare):
        raise PlanError(violation.message, rules=(violation.rule,))
    ends = {} if result is None else {bare.outputs[-1]: result}
    bare = with_requested(bare, starts or {}, ends)
    best = _plan_groups(bare, memory, rates)
    if memory is None and processes <= MAX_FOR_PATHS:
        # other paths have other groups, which the search cannot compare
        for other_path in other_paths:
            best = _prefer_path(best, other_path, rates)
    best = _prefer_on_levels(best, levels, memory)
    return best if database is None else _prefer_measured(best, database, fleet, memory)


def plan_statements(
    statements: Statements,
    *,
    processes: int,
    memory: int | str | None = None,
    rates: Rates = USUAL,
    ranks_per_host: int | Levels | None = None,
    starts: Mapping[str, Placement] | None = None,
    results: Mapping[str, Placement] | None = None,
) -> Plan:
    """Plan several einsums on many processes so that the slowest one finishes first.

    Several statements can read one result, and a process never fetches again what it
    fetched for an earlier statement. As for a single einsum, the search is exact over
    the maps of one machine to all statements at once.

    Args:
        statements: the statements, in an order in which they can be computed.
        processes: number of processes.
        memory: memory limit per process, in bytes.
        rates: as for :func:`plan`.
        ranks_per_host: see :func:`plan`.
        starts: see :func:`plan`.
        results: final distributions, by output.

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
    check_processes(processes)
    levels = convert_levels(ranks_per_host)
    bare = Plan("", {}, processes, (), (), {}, (), statements=statements.check())
    bare = with_requested(bare, starts or {}, results or {})
    if memory is None:
        joined = plan_blocks(bare, lambda part: _plan_groups(part, None, rates))
        if joined is not None:
            return joined if levels is None else arrange_axes([joined], levels)
    best = _plan_groups(bare, memory, rates)
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
        einsum: the computation.
        sizes: values of the size parameters.
        processes: number of processes.
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
    return (first, *find_alternatives(first, most - 1))


# ---- arguments


def _compute_max_elements(memory: int | str | None, itemsize: int) -> float:
    """Return how many entries of the result's dtype fit into a memory limit."""
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


def _plan_groups(bare: Plan, memory: int | str | None, rates: Rates) -> Plan:
    """Return the best plan of the groups of a plan without schedules.

    Raises:
        PlanError: with the rule ``memory``, if there is none.
    """
    max_elements = _compute_max_elements(memory, bare.dtype.itemsize)
    if max_elements == inf:
        result = search_plan(bare)
        if result is None:
            raise _make_start_error(bare)
        return choose_quickest(result, rates)
    fitted, enough = _plan_within(bare, max_elements)
    if fitted is not None:
        return choose_quickest(fitted, rates, max_elements)
    # with another limit the search may find other plans, so a limit is reported only
    # after a plan within it was found
    while fitted is None:
        if enough == inf:
            raise _make_start_error(bare)
        limit = enough
        fitted, enough = _plan_within(bare, limit)
    n_bytes = int(limit) * bare.dtype.itemsize
    raise PlanError(
        f"{format_count(bare.processes, 'process')} with {memory} each are too few for "
        f"{bare.title}; {n_bytes} bytes would do; give more memory or more processes",
        rules=("memory",),
    )


def _plan_within(bare: Plan, max_elements: float) -> tuple[Plan | None, float]:
    """Return a plan within a memory limit, or None, and the least peak reached.

    The peak is infinite if there is no plan with the requested starts.

    Args:
        bare: a plan without schedules.
        max_elements: limit on the elements that a process holds.
    """
    least = find_least_resident(bare)
    # the last try is with the maps that hold the least
    limits = [share * max_elements for share in MEMORY_SHARES] + [least]
    least_peak = inf
    for limit in limits:
        candidate = search_plan(bare, max_elements=limit) if limit >= least else None
        if candidate is None:
            continue
        fitted = _fit_memory(candidate, max_elements)
        peak = fitted.outline().peak
        if peak <= max_elements:
            return fitted, peak
        least_peak = min(least_peak, peak)
    return None, least_peak


def _make_start_error(bare: Plan) -> PlanError:
    # without limits, only requested starts of sparse operands exclude all maps
    return PlanError(
        f"entries of {', '.join(bare.sparse_starts)} never move, and machine axes can "
        "only partition their indices, alike wherever they are read; let the planner "
        "choose where they start",
        rules=("starts",),
    )


def _fit_memory(plan: Plan, max_elements: float) -> Plan:
    """Add sequential loops until each process fits its memory limit, if possible."""
    n_parts, looped = 1, plan
    while n_parts < MAX_PARTS and looped.outline().peak > max_elements:
        n_parts *= 2
        schedules = [
            _with_loop(group, schedule, plan.extents, n_parts)
            for group, schedule in plan.scheduled
        ]
        if schedules == [*looped.schedules]:
            break  # every index has a part for each of its values
        looped = replace(looped, schedules=tuple(schedules), leaves=())
    if looped is plan:
        return plan
    return with_schedules(plan, looped.schedules, starts=plan.starts)


def _with_loop(
    group: Group, schedule: GroupSchedule, extents: Mapping[str, int], max_parts: int
) -> GroupSchedule:
    """Add a loop over ``max_parts`` parts of the summed index that saves the most."""
    if not group.summed:
        return schedule

    def compute_length(index: str) -> int:
        return -(-extents[index] // schedule.parts(index))

    def count_saved(index: str) -> float:
        sizes = [
            prod(float(compute_length(i)) for i in access.indices)
            for access in group.inputs
            if index in access.indices
        ]
        return sum(
            size * (1 - 1 / min(max_parts, compute_length(index))) for size in sizes
        )

    # only a summed index: loops over other indices would split the result
    index = max(group.summed, key=count_saved)
    n_parts = min(max_parts, compute_length(index))
    return replace(schedule, loop=Loop(index, n_parts) if n_parts > 1 else None)


# ---- other contraction paths


def _prefer_path(plan: Plan, path: Path, rates: Rates) -> Plan:
    """Return the plan, or one along another path whose slowest process is faster."""
    bare = replace(
        plan,
        path=path,
        schedules=(),
        starts=plan.requested_starts,
        leaves=(),
        name="planned",
    )
    candidate = search_plan(bare)
    if candidate is None:
        return plan
    other = choose_quickest(candidate, rates)
    is_better = other.estimate(rates).is_better_than(plan.estimate(rates))
    return other if is_better else plan


def list_short_paths(
    einsum: BatchedEinsum, extents: Mapping[str, int]
) -> tuple[Path, ...]:
    """Return the default path, and other paths with about as few operations.

    Of paths with the same groups, only one is returned.

    >>> import feinsum
    >>> arrays = [feinsum.array(name, (8, 8)) for name in "ABC"]
    >>> chain = feinsum.einsum("ij,jk,kl->il", *arrays)
    >>> list_short_paths(chain, dict(chain.extents))
    (((1, 2), (0, 1)), ((0, 1), (0, 1)))
    """
    default = find_default_path(einsum, extents)
    if einsum.sparse_position is not None:
        return (default,)
    # two operands have one path; the number of paths grows exponentially
    if not 3 <= len(einsum.inputs) <= MAX_OPERANDS:
        return (default,)

    def count_operations(groups: Sequence[Group]) -> int:
        # each leaf computes along its own best path, one operand after the other
        return sum(group.n_points(extents) * len(group.inputs) for group in groups)

    max_operations = MAX_OPERATIONS * count_operations(
        groups_of(einsum, default, extents)
    )
    paths: dict[object, tuple[int, Path]] = {}
    n = len(einsum.inputs)
    for path in (default, *(make_path(order, n) for order in list_postorders(n))):
        groups = groups_of(einsum, path, extents)
        n_operations = count_operations(groups)
        if n_operations <= max_operations:
            # fusion may give different paths the same groups
            paths.setdefault(_list_combinations(groups), (n_operations, path))
    (_, first_path), *other_paths = paths.values()
    return (first_path, *(path for _, path in sorted(other_paths)[: MAX_PATHS - 1]))


def _list_combinations(groups: Sequence[Group]) -> object:
    """Return the operands that each group combines, regardless of products' names."""
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
    max_elements = _compute_max_elements(memory, plan.dtype.itemsize)
    # without prices, levels only decide between plans that move equally little
    if not levels.links:
        return arrange_axes([plan, *find_ties(plan, max_elements)], levels)
    return arrange_axes([plan], levels, find_cheap_plans(plan, levels, max_elements))


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
