"""Plans that follow from another one without a search.

Each keeps which index a machine axis partitions. Of ``C[i,k] = A[i,j] * B[j,k]`` on a
machine ``x=2 y=2`` whose axes partition i and k::

    with_sizes(plan, {"i": 9})      the blocks of the same machine at other extents
    with_processes(plan, 6)         the same on x=2 y=3
    with_cyclic(plan, ["i"])        rows 0, 2, 4... and 1, 3, 5... instead of halves
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod

from feinsum.distributed.assembly import place_operands, with_schedules
from feinsum.distributed.counts import USUAL, Rates
from feinsum.distributed.distribution import (
    Distribution,
    Machine,
    check_processes,
    list_ordered_factors,
)
from feinsum.distributed.groups import Access, Group, get_extents, get_shape
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.distributed.statement_graph import as_count, read_nonzeros
from feinsum.errors import InvalidEinsumError, PlanError
from feinsum.ir import BatchedEinsum, SizeParam, to_text, with_extents
from feinsum.words import format_count

N_COMPARED = 4
"""Machines of :func:`with_processes` whose plans are counted exactly; each takes
milliseconds."""


def with_cyclic(plan: Plan, indices: Collection[str]) -> Plan:
    """Return the same plan with some indices distributed cyclically.

    Along a machine axis of P processes that partitions such an index, process p has the
    values ``x`` with ``x % P == p`` instead of a block. If P divides the extent,
    the same number of elements moves as before.

    Source: Blackford et al., *ScaLAPACK Users' Guide*, section 4.3.

    Raises:
        PlanError: with the rule ``cyclic``, for a name that is not an index of the
            plan.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (7, 4)), feinsum.array("B", (4, 4))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=2)
    >>> cyclic = with_cyclic(plan, ["i"])
    >>> cyclic.starts["A"].notation("ij"), cyclic.start_box("A", 1)
    ('ij->i%', (range(1, 7, 2), range(0, 4)))
    """
    _require_indices(plan, indices, rules=("cyclic",))

    def distribute(distribution: Distribution, access: Access) -> Distribution:
        pairs = zip(access.indices, distribution.cuts, strict=True)
        cyclic = tuple(k for index, cuts in pairs if index in indices for k in cuts)
        return replace(distribution, cyclic=cyclic)

    def schedule_cyclic(group: Group, schedule: GroupSchedule) -> GroupSchedule:
        cyclic = tuple(k for k, index in enumerate(schedule.axes) if index in indices)
        result = distribute(schedule.result, group.output)
        loop = schedule.loop and replace(
            schedule.loop, is_cyclic=schedule.loop.index in indices
        )
        return replace(schedule, cyclic=cyclic, result=result, loop=loop)

    starts = {
        name: distribute(start, plan.first_accesses[name])
        for name, start in plan.starts.items()
        if name not in plan.placed
    }
    schedules = [schedule_cyclic(*pair) for pair in plan.scheduled]
    return with_schedules(plan, schedules, starts=starts)


def with_sizes(
    plan: Plan,
    extents: Mapping[str, int],
    *,
    nonzeros: int | Mapping[str, int] | None = None,
) -> Plan:
    """Return the same plan for other extents, without a search.

    Machines, the indices that their axes partition, and all distributions stay, so that
    arrays of one family of problems are distributed alike. Blocks, leaves and counts
    are those of the new extents. Whether another plan would now finish sooner, a search
    (:func:`feinsum.distributed.plan`) finds out.

    Args:
        plan: a plan of one einsum or of statements.
        extents: the new extent of some indices, by name; others keep theirs.
        nonzeros: entries of the sparse operand of an einsum, or of those of statements
            by name; by default their density stays.

    Raises:
        PlanError: with the rule ``sizes``, for an unknown index or a wrong extent, or
            with one that the plan breaks at these extents.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 600)), feinsum.array("B", (600, 600))
    >>> square = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> longer = with_sizes(square, {"i": 1000})
    >>> longer.shape("A"), longer.result == square.result, longer.counts.moved
    ((1000, 600), True, 1560000)
    """
    _require_indices(plan, extents, rules=("sizes",))
    for index, extent in extents.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise PlanError(
                f"extent {index}={extent!r}; expected an integer from 0",
                rules=("sizes",),
            )
    all_extents = {**plan.extents, **extents}
    entries = {
        name: round(plan.density[name] * prod(get_shape(access, all_extents)))
        for name, access in plan.first_accesses.items()
        if name in plan.problem.nonzeros
    }
    if plan.statements is not None:
        entries |= read_nonzeros(nonzeros)
        of_all = replace(plan.statements, extents=all_extents, nonzeros=entries)
        resized = replace(plan, statements=of_all)
        return with_schedules(resized, plan.schedules, starts=plan.starts)
    einsum, sizes = _resize_einsum(plan.batched_einsum, plan.sizes, extents)
    nonzeros = as_count(nonzeros)
    if not isinstance(nonzeros, int):
        entries |= read_nonzeros(nonzeros)
        nonzeros = next(iter(entries.values()), None)
    resized = replace(plan, einsum=to_text(einsum), sizes=sizes, nonzeros=nonzeros)
    return with_schedules(resized, plan.schedules, starts=plan.starts)


def _require_indices(
    plan: Plan, indices: Iterable[str], *, rules: tuple[str, ...]
) -> None:
    if unknown := sorted(set(indices) - set(plan.extents)):
        raise PlanError(
            f"no index {unknown[0]}; there are {', '.join(plan.extents)}", rules=rules
        )


def with_processes(plan: Plan, processes: int, *, rates: Rates = USUAL) -> Plan:
    """Return the same plan on another number of processes, without a search.

    The machine keeps its axes, and each axis the index that it partitions; only its
    sizes change, to those with which the slowest process finishes first. So data of one
    family of problems is distributed alike on any allocation, and a restart on another
    number of nodes reads it by the same rules.

    Args:
        plan: a plan whose groups have one machine, of at least one axis.
        processes: the new number of processes.
        rates: by which sizes are compared, as for :func:`feinsum.distributed.plan`.

    Raises:
        PlanError: with the rule ``processes``, for a number that is none or without
            such a machine; or with ``starts``, if an operand was requested on a machine
            of its own.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (600, 300)), feinsum.array("B", (300, 600))
    >>> small = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> large = with_processes(small, 24)
    >>> small.schedules[0].machine.text, large.schedules[0].machine.text
    ('x=2 y=2', 'x=4 y=6')
    """
    check_processes(processes)
    machines = {schedule.machine for schedule in plan.schedules}
    old = min(machines, key=lambda machine: machine.n_axes)
    if len(machines) > 1 or not old.n_axes:
        raise PlanError(
            f"the groups have {format_count(len(machines), 'machine')}, the "
            f"smallest with {format_count(old.n_axes, 'axis')}; expected one machine "
            "with at least one axis: search with feinsum.plan",
            rules=("processes",),
        )
    candidates = [
        _on_machine(plan, replace(old, sizes=sizes), processes)
        for sizes in list_ordered_factors(processes, old.n_axes).tolist()
    ]
    # exact counts take long, so they are compared only where blocks are small
    candidates = sorted(candidates, key=lambda p: _estimate_blocks_s(p, rates))
    best, *others = candidates[:N_COMPARED]
    least = best.estimate(rates)
    for other in others:
        estimate = other.estimate(rates)
        if estimate.is_better_than(least):
            best, least = other, estimate
    starts = {name: best.starts[name] for name in best.placed}
    return with_schedules(best, best.schedules, starts=starts)


def _on_machine(plan: Plan, machine: Machine, processes: int) -> Plan:
    """Return a plan with another machine of as many axes; without leaves."""
    old = plan.schedules[0].machine

    def move(distribution: Distribution) -> Distribution:
        sizes = machine.sizes
        if distribution.machine == Machine((plan.processes,)):
            sizes = (processes,)
        elif distribution.machine != old:
            raise PlanError(
                f"a distribution on {distribution.machine.text} was requested; "
                f"expected the machine of the plan, {old.text}",
                rules=("starts",),
            )
        fixed = tuple((k, min(at, sizes[k] - 1)) for k, at in distribution.fixed)
        moved = machine if sizes == machine.sizes else Machine(sizes)
        return replace(distribution, machine=moved, fixed=fixed)

    schedules = [
        replace(schedule, machine=machine, result=move(schedule.result))
        for schedule in plan.schedules
    ]
    placed = {name: move(plan.starts[name]) for name in plan.placed}
    return replace(
        plan,
        processes=processes,
        schedules=tuple(schedules),
        starts=place_operands(plan.operands, plan.groups, schedules, plan.extents)
        | placed,
        ends={name: move(end) for name, end in plan.ends.items()},
        leaves=(),
    )


def _estimate_blocks_s(plan: Plan, rates: Rates) -> float:
    """Estimate the time of the largest blocks: their work, and their elements."""
    seconds = 0.0
    for group, schedule in plan.scheduled:
        lengths = {i: -(-plan.extents[i] // schedule.parts(i)) for i in group.indices}
        seconds += rates.point_s * prod(lengths.values())
        n_elements = sum(prod(lengths[i] for i in a.indices) for a in group.accesses)
        seconds += rates.links.element_s * n_elements
    return seconds


def _resize_einsum(
    einsum: BatchedEinsum, sizes: Mapping[str, int], extents: Mapping[str, int]
) -> tuple[BatchedEinsum, dict[str, int]]:
    """Return an einsum with new extents, and the values of its size parameters."""
    new_sizes, new_extents = dict(sizes), dict(einsum.extents)
    for index in (i for term in einsum.inputs for i in term if i in extents):
        extent = einsum.extents[index]
        if isinstance(extent, SizeParam):
            new_sizes[extent.name] = extents[index]
        else:
            new_extents[index] = extents[index]
    try:
        resized = with_extents(einsum, new_extents)
    except InvalidEinsumError as error:  # an array that is read by several indices
        raise PlanError(f"wrong extents: {error}", rules=("sizes",)) from None
    actual = get_extents(resized, new_sizes)
    if differing := sorted(i for i, extent in extents.items() if actual[i] != extent):
        raise PlanError(
            f"extents of {', '.join(differing)} are one size parameter; expected one "
            "value for all of its indices",
            rules=("sizes",),
        )
    return resized, new_sizes
