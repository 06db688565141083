"""The checker of plans: every broken rule, by its code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from feinsum.distributed.distribution import distribution_violations
from feinsum.distributed.groups import Group
from feinsum.distributed.leaves import leaves_of
from feinsum.distributed.machine import MOST_PROCESSES
from feinsum.distributed.schedule import schedule_violations
from feinsum.distributed.statements import statement_violations
from feinsum.errors import FeinsumError, PlanError
from feinsum.ir.operand import Violation
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.distributed.plan import Plan

FORMAT = 1
"""Format of plan documents."""

RULES = (
    "axes", "axis", "batch", "diagonal", "format", "groups", "leaf", "loop", "machine",
    "path", "processes", "rank", "result", "sizes", "starts", "statements",
)  # fmt: skip
"""Codes of the rules that :func:`plan_violations` checks."""


def plan_violations(plan: Plan) -> Iterator[Violation]:
    """Every broken rule, by its code."""
    if plan.format != FORMAT:
        yield Violation("format", f"format {plan.format}; this release reads {FORMAT}")
        return
    if not 1 <= plan.processes <= MOST_PROCESSES:
        yield Violation(
            "processes",
            f"{counted(plan.processes, 'process')}; expected from 1 to "
            f"{MOST_PROCESSES}",
        )
        return
    if plan.statements is not None:
        broken = list(statement_violations(plan.statements))
        if plan.einsum or plan.path or plan.sizes:
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
    broken = [*_schedules(plan, groups), *_starts(plan)]
    yield from broken
    if not broken:
        yield from _leaves(plan)


def _schedules(plan: Plan, groups: Sequence[Group]) -> Iterator[Violation]:
    if len(plan.schedules) != len(groups):
        yield Violation(
            "groups",
            f"{counted(len(plan.schedules), 'schedule')} of "
            f"{counted(len(groups), 'group')}",
        )
        return
    for group, schedule in zip(groups, plan.schedules, strict=True):
        yield from schedule_violations(group, schedule, plan.processes)
    units = {one.machine.units for one in plan.schedules if one.machine.levels}
    if len(units) > 1:
        yield Violation(
            "machine",
            f"machines with levels of {' and of '.join(map(str, sorted(units)))} ranks "
            "in one plan; expected the same",
        )


def _starts(plan: Plan) -> Iterator[Violation]:
    operands = plan.operands
    if set(operands) != set(plan.starts):
        yield Violation(
            "starts",
            f"distributions of {', '.join(plan.starts)}; the operands are "
            f"{', '.join(operands)}",
        )
        return
    for name, start in plan.starts.items():
        n_axes = len(plan.shape(name))
        yield from distribution_violations(name, start, n_axes, plan.processes)


def _leaves(plan: Plan) -> Iterator[Violation]:
    expected = leaves_of(plan)
    if plan.leaves != expected:
        wrong = [a.key for a, b in zip(plan.leaves, expected, strict=False) if a != b]
        yield Violation(
            "leaf",
            f"the leaves do not match the blocks ({', '.join(wrong)[:80]}); create the "
            "plan again",
        )
