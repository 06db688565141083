"""Plans whose tensors are dealt out cyclically, such as ScaLAPACK's matrices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from feinsum.distributed.assembly import with_schedules
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.errors import PlanError


def with_cyclic(plan: Plan, indices: Collection[str]) -> Plan:
    """The same plan, with the values of some indices dealt out one by one, in turn.

    Process p of the P along a machine axis that partitions such an index has its values
    ``x`` with ``x % P == p`` wherever it held or computed a block. If P divides the
    extent, exactly as many elements move as before.

    Source: Blackford et al., *ScaLAPACK Users' Guide*, section 4.3.

    Raises:
        PlanError: with the rule ``cyclic``, for something that is no index of the plan.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (7, 4)), feinsum.array("B", (4, 4))
    >>> made = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=2)
    >>> dealt = with_cyclic(made, ["i"])
    >>> dealt.starts["A"].notation("ij"), dealt.start_box("A", 1)
    ('ij->i%', (range(1, 7, 2), range(0, 4)))
    """
    dealt = set(indices)
    if unknown := sorted(dealt - set(plan.extents)):
        raise PlanError(
            f"no index {unknown[0]}; there are {', '.join(plan.extents)}",
            rules=("cyclic",),
        )
    accesses = {a.tensor: a for g in reversed(plan.groups) for a in g.inputs}
    starts = {
        name: _dealt(start, accesses[name], dealt)
        for name, start in plan.starts.items()
    }
    pairs = zip(plan.groups, plan.schedules, strict=True)
    schedules = [_scheduled(group, schedule, dealt) for group, schedule in pairs]
    return with_schedules(plan, schedules, starts=starts)


def _scheduled(
    group: Group, schedule: GroupSchedule, dealt: Collection[str]
) -> GroupSchedule:
    cyclic = tuple(k for k, index in enumerate(schedule.axes) if index in dealt)
    result = _dealt(schedule.result, group.output, dealt)
    loop = schedule.loop and replace(
        schedule.loop, is_cyclic=schedule.loop.index in dealt
    )
    return replace(schedule, cyclic=cyclic, result=result, loop=loop)


def _dealt(held: Distribution, access: Access, dealt: Collection[str]) -> Distribution:
    pairs = zip(access.indices, held.cuts, strict=True)
    cyclic = tuple(k for index, cutting in pairs if index in dealt for k in cutting)
    return replace(held, cyclic=cyclic)
