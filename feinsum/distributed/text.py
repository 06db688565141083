"""Plans as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.levels import moved_by_level
from feinsum.distributed.machine import ONE, axis_name, barred
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.words import counted


def plan_text(plan: Plan, statements: Sequence[object] = ()) -> str:
    """Groups, their machines and partitions, and what moves.

    Args:
        statements: those of a program. The plan has their indices with the name of the
            result before them, which is left out.
    """
    n = counted(plan.processes, "process")
    title = f"{plan.title} on {n} ({plan.name})"
    return "\n".join([title, *_steps(plan, statements), *_counts(plan)])


def _steps(plan: Plan, statements: Sequence[object]) -> Iterator[str]:
    def short(text: str, group: Group) -> str:
        return text.replace(f"{group.output.tensor}_", "") if statements else text

    def placed(held: Distribution, access: Access, group: Group) -> str:
        return held.notation([short(i, group) for i in access.indices])

    steps = [*zip(plan.groups, plan.schedules, strict=True)]
    for said, (group, schedule) in zip(statements or plan.groups, steps, strict=True):
        yield f"  {said}"
        yield f"    {short(schedule_text(group, schedule), group)}"
    first_uses = {a.tensor: (a, g) for g, _ in reversed(steps) for a in g.inputs[::-1]}
    for name, start in plan.starts.items():
        yield f"  {name} starts as {placed(start, *first_uses[name])}"
    for group, schedule in steps:
        if group.output.tensor in plan.outputs:
            where = placed(schedule.result, group.output, group)
            yield f"  {group.output.tensor} ends as {where}"


def _counts(plan: Plan) -> Iterator[str]:
    counts = plan.counts
    yield (
        f"moved {counted(counts.moved, 'element', ',')} ({counts.received:,} fetched, "
        f"{counts.reduced:,} reduced), {counts.most_received:,} by one process at most"
    )
    if plan.units:
        yield passing_text(plan, plan.units)
    yield (
        f"{counted(counts.messages, 'message', ',')}; at most "
        f"{counted(plan.peak_bytes, 'byte', ',')} in a process"
    )
    if n_idle := plan.processes - counts.busy:
        yield (
            "one process has no work"
            if n_idle == 1
            else f"{counted(n_idle, 'process')} have no work"
        )


def schedule_text(group: Group, schedule: GroupSchedule) -> str:
    """Which axis partitions which index, the sequential loop, and the reduction."""
    return f"{_machine(schedule)}{_loop(schedule)}{_reduction(group, schedule)}"


def passing_text(plan: Plan, units: Sequence[int]) -> str:
    """Elements that pass between processes, by level; see :func:`moved_by_level`."""
    *between, within = moved_by_level(plan, units)
    pairs = zip(units, between, strict=True)
    words = [f"{n:,} between groups of {counted(unit, 'rank')}" for unit, n in pairs]
    return f"by level: {', '.join(words)}, {within:,} within"


def _machine(schedule: GroupSchedule) -> str:
    cuts = [
        f"{axis_name(k)}={n} {'deals' if k in schedule.cyclic else 'cuts'} {index}"
        if index is not None
        else f"{axis_name(k)}={n}"
        for k, (n, index) in enumerate(
            zip(schedule.machine.sizes, schedule.axes, strict=True)
        )
    ]
    bounds = schedule.machine.bounds
    return ", ".join(barred(cuts, bounds)).replace(", |,", " |") or ONE


def _loop(schedule: GroupSchedule) -> str:
    loop = schedule.loop
    if loop is None:
        return ""
    turned = "".join(axis_name(k) for k in loop.rotate)
    return f"; {loop.index} in {counted(loop.parts, 'step')}" + (
        turned and f", turned by {turned}"
    )


def _reduction(group: Group, schedule: GroupSchedule) -> str:
    words = {
        "none": "",
        "scatter": "; sums in blocks",
        "owner": "; sums at one place",
        "mixed": "; sums in blocks and at one place",
    }
    return words[schedule.reduction(group)]
