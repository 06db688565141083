"""Building plans from given schedules: initial distributions, leaves, checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Group, groups_of
from feinsum.distributed.leaves import extents_of, leaves_of
from feinsum.distributed.placing import start_of
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.distributed.statements import Statements
from feinsum.ir import BatchedEinsum, to_text
from feinsum.paths import Path

Starts = Mapping[str, Distribution]


def assemble(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    processes: int,
    path: Path,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Starts | None = None,
    name: str = "planned",
) -> Plan:
    """A checked plan from schedules; operands start where they are first needed.

    Raises:
        PlanError: naming every rule that is broken.
    """
    groups_of(einsum, path, extents_of(einsum, sizes))
    bare = Plan(to_text(einsum), sizes, processes, path, (), {}, (), name)
    return with_schedules(bare, schedules, starts=starts)


def assemble_statements(
    statements: Statements,
    processes: int,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Starts | None = None,
    name: str = "planned",
) -> Plan:
    """A checked plan of statements, with a schedule for each of them.

    Raises:
        PlanError: naming every rule that is broken.
    """
    bare = Plan("", {}, processes, (), (), {}, (), name, statements=statements.check())
    return with_schedules(bare, schedules, starts=starts)


def with_schedules(
    plan: Plan,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Starts | None = None,
    name: str | None = None,
) -> Plan:
    """A checked plan of the same einsums with other schedules."""
    begins = starts_of(plan.operands, plan.groups, schedules, plan.extents)
    made = replace(
        plan,
        schedules=tuple(schedules),
        starts=begins | dict(starts or {}),
        leaves=(),
        name=plan.name if name is None else name,
    )
    if any(v.rule != "leaf" for v in made.violations()):
        made.check()
    return replace(made, leaves=leaves_of(made))


def starts_of(
    operands: Collection[str],
    groups: Sequence[Group],
    schedules: Sequence[GroupSchedule],
    extents: Mapping[str, int],
) -> dict[str, Distribution]:
    """One copy of every operand, in blocks placed where they are first needed."""
    found: dict[str, Distribution] = {}
    for group, schedule in zip(groups, schedules, strict=False):
        for access in group.inputs:
            if access.tensor in operands and access.tensor not in found:
                shape = tuple(extents[i] for i in access.indices)
                found[access.tensor] = start_of(schedule.needs(access), shape)
    return found
