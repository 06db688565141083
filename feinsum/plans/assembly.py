"""Plans of given schedules: starts, leaves and the check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from feinsum.ir import BatchedEinsum, to_text
from feinsum.paths import Path
from feinsum.plans.distribution import Distribution
from feinsum.plans.groups import Group, groups_of
from feinsum.plans.placing import start_of
from feinsum.plans.plan import Plan, extents_of, leaves_of
from feinsum.plans.schedule import GroupSchedule

__all__ = ["assemble", "starts_of"]


def assemble(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    processes: int,
    path: Path,
    schedules: Sequence[GroupSchedule],
    *,
    starts: Mapping[str, Distribution] | None = None,
    name: str = "planned",
) -> Plan:
    """A checked plan of schedules: operands start where they are needed first.

    Raises:
        PlanError: naming every rule that is broken.
    """
    extents = extents_of(einsum, sizes)
    groups = groups_of(einsum, path, extents)
    begins = starts_of(einsum, groups, schedules, extents) | dict(starts or {})
    made = Plan(
        to_text(einsum), sizes, processes, path, tuple(schedules), begins, (), name
    )
    if any(v.rule != "leaf" for v in made.violations()):
        made.check()
    return replace(
        made, leaves=leaves_of(einsum, groups, schedules, extents, processes)
    )


def starts_of(
    einsum: BatchedEinsum,
    groups: Sequence[Group],
    schedules: Sequence[GroupSchedule],
    extents: Mapping[str, int],
) -> dict[str, Distribution]:
    """One copy of every operand, in blocks that lie where it is needed first."""
    operands = {operand.name for operand in einsum.operands}
    found: dict[str, Distribution] = {}
    for group, schedule in zip(groups, schedules, strict=False):
        for access in group.inputs:
            if access.tensor in operands and access.tensor not in found:
                shape = tuple(extents[i] for i in access.indices)
                found[access.tensor] = start_of(schedule.needs(access), shape)
    return found
