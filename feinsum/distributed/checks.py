"""Rules that plans obey: those of machines, distributions, schedules, and leaves.

Documents may be edited, or written by another version, so plans are checked when they
are read and when they are built. Rules of a distribution alone are in
:mod:`feinsum.distributed.distribution`, those of statements in
:mod:`feinsum.distributed.statement_graph`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from feinsum.distributed.distribution import (
    MAX_PROCESSES,
    find_distribution_violations,
    find_machine_violations,
    get_axis_name,
    name_violations,
)
from feinsum.distributed.groups import Group
from feinsum.distributed.schedule import MAX_PARTS, GroupSchedule, list_leaves
from feinsum.distributed.statement_graph import (
    find_sparse_violations,
    find_statement_violations,
)
from feinsum.errors import FeinsumError, PlanError
from feinsum.ir.operand import Violation
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan

FORMAT = 1
"""Format of plan documents."""


def find_plan_violations(plan: Plan) -> Iterator[Violation]:
    """Yield every broken rule, by its code.

    Later checks rely on the rules of earlier ones, so they are skipped after a
    violation.
    """
    if plan.format != FORMAT:
        yield Violation("format", f"format {plan.format}; this release reads {FORMAT}")
        return
    if not 1 <= plan.processes <= MAX_PROCESSES:
        yield Violation(
            "processes",
            f"{format_count(plan.processes, 'process')}; expected from 1 to "
            f"{MAX_PROCESSES}",
        )
        return
    if plan.statements is not None:
        broken = list(find_statement_violations(plan.statements))
        if plan.einsum or plan.path or plan.sizes or plan.nonzeros is not None:
            broken.append(
                Violation(
                    "statements", "a plan has either an einsum or statements, not both"
                )
            )
        if broken:
            yield from broken
            return
    try:
        groups = plan.groups
    except PlanError as error:
        for rule in error.rules:
            yield Violation(rule, str(error))
        return
    except FeinsumError as error:
        yield Violation("format", str(error))
        return
    broken = [
        *find_storage_violations(plan),
        *_find_schedule_violations(plan, groups),
        *find_request_violations(plan),
        *_find_start_violations(plan),
    ]
    if not broken:
        broken = [*name_violations("sparse", _find_movement_problems(plan))]
    yield from broken
    if not broken:
        yield from _find_leaf_violations(plan)


def _find_schedule_violations(
    plan: Plan, groups: Sequence[Group]
) -> Iterator[Violation]:
    if len(plan.schedules) != len(groups):
        yield Violation(
            "groups",
            f"{format_count(len(plan.schedules), 'schedule')} of "
            f"{format_count(len(groups), 'group')}",
        )
        return
    for group, schedule in plan.scheduled:
        yield from find_schedule_violations(group, schedule, plan.processes)
    machines = [schedule.machine for schedule in plan.schedules]
    units = {machine.units for machine in machines if machine.levels}
    if len(units) > 1:
        yield Violation(
            "machine",
            f"machines with levels of {' and of '.join(map(str, sorted(units)))} ranks "
            "in one plan; expected the same",
        )


def _find_start_violations(plan: Plan) -> Iterator[Violation]:
    if set(plan.operands) != set(plan.starts):
        yield Violation(
            "starts",
            f"distributions of {', '.join(plan.starts)}; the operands are "
            f"{', '.join(plan.operands)}",
        )


def find_request_violations(plan: Plan) -> Iterator[Violation]:
    """Yield the violations of distributions of operands, and of requested results.

    It needs no schedules.
    """
    operands = plan.operands
    for name in plan.placed:
        if name not in operands:
            yield Violation(
                "starts",
                f"a distribution of {name}; the operands are {', '.join(operands)}",
            )
    for name, start in plan.starts.items():
        if name in operands:
            n_axes = len(plan.shape(name))
            yield from find_distribution_violations(name, start, n_axes, plan.processes)
    for name, end in plan.ends.items():
        if name not in plan.outputs:
            yield Violation(
                "result",
                f"a distribution of {name}; the results are {', '.join(plan.outputs)}",
            )
            continue
        if plan.is_sparse(name):
            yield Violation("sparse", f"{name} is sparse, and its entries never move")
        n_axes = len(plan.shape(name))
        yield from find_distribution_violations(
            f"the result {name}", end, n_axes, plan.processes
        )


def find_storage_violations(plan: Plan) -> Iterator[Violation]:
    """Yield the violations of sparse operands, and of numbers of nonzeros."""
    if plan.nonzeros is not None and not plan.problem.nonzeros:
        yield Violation("sparse", "nonzeros of an einsum without sparse operands")
    yield from find_sparse_violations(plan.problem)


def _find_movement_problems(plan: Plan) -> Iterator[str]:
    """Yield a message wherever entries of a sparse tensor would have to move."""
    for walked, (group, schedule) in zip(
        plan.problem.walked, plan.scheduled, strict=True
    ):
        if walked is None:
            continue
        output = group.output
        if plan.starts[walked.tensor] != schedule.needs(walked):
            yield f"{walked.tensor} does not start where {output.tensor} needs it"
        for k, index in enumerate(schedule.axes):
            if index not in walked.indices:
                yield (
                    f"axis {get_axis_name(k)} partitions {index}, which {walked} lacks"
                )
        has_pattern = plan.is_sparse(output.tensor)
        if has_pattern and schedule.result != schedule.needs(output):
            yield f"{output.tensor} ends where entries of {walked.tensor} are not"


def _find_leaf_violations(plan: Plan) -> Iterator[Violation]:
    # computed again: a document may be edited, or written by another version
    expected = list_leaves(plan)
    if plan.leaves != expected:
        pairs = zip(plan.leaves, expected, strict=False)
        wrong = [leaf.key for leaf, expected_leaf in pairs if leaf != expected_leaf]
        yield Violation(
            "leaf",
            f"the leaves do not match the blocks ({', '.join(wrong)[:80]}); create the "
            "plan again",
        )


# ---- one schedule


def find_schedule_violations(
    group: Group, schedule: GroupSchedule, n_processes: int
) -> Iterator[Violation]:
    """Yield the violations of a schedule for a group."""
    output = group.output
    yield from find_machine_violations(schedule.machine, n_processes)
    yield from name_violations("axes", _find_axis_problems(group, schedule))
    if len(schedule.axes) != schedule.machine.n_axes:
        return
    yield from find_distribution_violations(
        f"the result {output.tensor}", schedule.result, len(output.indices), n_processes
    )
    results = _find_result_problems(output.tensor, schedule)
    yield from name_violations("result", results)
    yield from name_violations("loop", _find_loop_problems(group, schedule))


def _find_axis_problems(group: Group, schedule: GroupSchedule) -> Iterator[str]:
    name = group.output.tensor
    if len(schedule.axes) != schedule.machine.n_axes:
        yield (
            f"{name}: {format_count(len(schedule.axes), 'index')} for "
            f"{format_count(schedule.machine.n_axes, 'axis')} of the machine"
        )
        return
    for k, index in enumerate(schedule.axes):
        if index is not None and index not in group.indices:
            yield (
                f"{name}: axis {get_axis_name(k)} partitions {index!r}, which is not "
                "an index"
            )
    used = {k for k, index in enumerate(schedule.axes) if index is not None}
    is_repeated = len(set(schedule.cyclic)) < len(schedule.cyclic)
    if is_repeated or not set(schedule.cyclic) <= used:
        yield (
            f"{name}: cyclic axes {schedule.cyclic}; expected different ones that "
            "partition an index"
        )


def _find_result_problems(name: str, schedule: GroupSchedule) -> Iterator[str]:
    result = schedule.result
    # the result stays on the machine of its group, from which later groups fetch it
    if result.machine != schedule.machine:
        yield f"{name}: the result is distributed over another machine"
        return
    copied = set(result.copied_axes)
    for k, index in enumerate(schedule.axes):
        if k in copied and index is not None:
            yield (
                f"{name}: the result is replicated along axis {get_axis_name(k)}, "
                "which partitions an index; let the group that needs copies fetch them"
            )
    for k, index in enumerate(schedule.axes):
        if k not in copied and index is None:
            yield (
                f"{name}: all processes along axis {get_axis_name(k)} compute the "
                "same, so the result must be replicated there"
            )


def _find_loop_problems(group: Group, schedule: GroupSchedule) -> Iterator[str]:
    loop, name = schedule.loop, group.output.tensor
    if loop is None:
        return
    if loop.index not in group.summed:
        yield f"{name}: a sequential loop over {loop.index!r}, which is not summed"
    if not 1 <= loop.parts <= MAX_PARTS:
        yield (
            f"{name}: a sequential loop of {format_count(loop.parts, 'part')}; "
            f"expected 1 to {MAX_PARTS}"
        )
    for k in loop.rotate:
        if not 0 <= k < schedule.machine.n_axes:
            yield f"{name}: rotation by axis {k}, which does not exist"
