"""Plans of programs, by hand and by EinDecomp, for comparison with the planner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
from constantdict import constantdict

from benchmarks.papers.decompose import Decomposition, Model, decompose, split_along
from feinsum.distributed import Plan, assemble_statements
from feinsum.distributed.grids import (
    compute_repartition,
    compute_statement_costs,
    order_by_first_use,
    schedule_on_grid,
)
from feinsum.distributed.program_plan import (
    ProgramPlan,
    build_statements,
    plan_program,
    qualify_index,
)
from feinsum.ir.program import Program

Axes = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Contender:
    """A plan of a program, and its costs.

    Attributes:
        moved: exact count of elements moved.
        model: EinDecomp's cost of the same plan, in elements; an upper bound.
    """

    plan: ProgramPlan
    moved: int
    model: float


def compute_eindecomp_cost(plan: Plan) -> float:
    """Compute join, aggregation and repartition of all groups, in elements.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> ranks_plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> ranks_plan.counts.moved, compute_eindecomp_cost(ranks_plan)
    (128, 256.0)
    """
    produced: dict[str, list[int]] = {}
    total = 0.0
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        indices = order_by_first_use(group)
        # one row: the cost functions are vectorized over grids
        grid = np.array([[schedule.parts(i) for i in indices]], np.int64)
        total += float(compute_statement_costs(group, indices, grid, plan.extents)[0])
        for access in group.inputs:
            consumed = [schedule.parts(i) for i in access.indices]
            # operands start where they are needed, so only results are repartitioned
            if access.tensor in produced:
                lengths = [plan.extents[i] for i in access.indices]
                total += float(
                    compute_repartition(consumed, produced[access.tensor], lengths)
                )
        produced[group.output.tensor] = [
            schedule.parts(i) for i in group.output.indices
        ]
    return total


def plan_decomposition(
    decomposition: Decomposition, processes: int, name: str = "decomposition"
) -> ProgramPlan:
    """Map a decomposition to processes: each statement on a row-major grid.

    Blocks stay where they are computed, and partial results go to one process. The
    traffic of such a plan can be counted, and it can be run.

    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.macros import multi_head_attention
    >>> p = program()
    >>> _ = multi_head_attention(p, p.input("X", (16, 16)), heads=4, entries=4)
    >>> best = decompose(p.build(), 4)
    >>> best.cost, plan_decomposition(best, 4).counts.moved
    (10624.0, 3072)
    """
    program, sizes = decomposition.program, dict(decomposition.sizes)
    statements = build_statements(program, sizes)
    schedules = []
    for statement, group in zip(program.statements, statements.groups, strict=True):
        partition = decomposition.partitions[statement.result]
        parts = {qualify_index(statement.result, i): n for i, n in partition.items()}
        # an index of an operand alone may be in no partition
        grid = [parts.get(index, 1) for index in order_by_first_use(group)]
        schedules.append(schedule_on_grid(group, grid))
    plan = assemble_statements(statements, processes, schedules, name=name)
    return ProgramPlan(program, sizes, plan)


def split_square(
    program: Program, processes: int, *, sizes: Mapping[str, int] | None = None
) -> Decomposition:
    """Partition the two longest axes of every result, as evenly as possible.

    With p = q x q processes, that is the plan of matrix products in q x q blocks.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (8, 8)), array("B", (8, 8)), name="C")
    >>> dict(split_square(p.build(), 4).partitions["C"])
    {'i': 2, 'k': 2, 'j': 1}
    """
    model = Model(program, sizes or {})
    # the two factors of p that are closest to each other
    few = next(k for k in range(isqrt(processes), 0, -1) if processes % k == 0)
    chosen = {}
    for statement in program.statements:
        extents = {
            i: model.extents[qualify_index(statement.result, i)]
            for i in statement.indices
        }
        parts = dict.fromkeys(statement.indices, 1)
        longest = sorted(statement.output, key=lambda i: -extents[i])[:2]
        grid = (processes // few, few) if len(longest) == 2 else (processes,)
        for index, n in zip(longest, grid, strict=False):
            parts[index] = max(1, min(n, extents[index]))
        chosen[statement.result] = constantdict(parts)
    return Decomposition(program, constantdict(sizes or {}), constantdict(chosen))


def make_program_plans(
    program: Program,
    processes: int,
    splits: Mapping[str, Axes] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Mapping[str, Contender]:
    """Plan a program by the planner, and by other methods.

    Args:
        splits: axes of arrays to partition, by name, as in ``{"heads": [("WQ", 1)]}``;
            see :func:`split_along`.

    Returns:
        ``planned``, ``eindecomp`` (its exact optimum), ``linear`` (its linearization),
        ``square``, and the splits.

    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.macros import multi_head_attention
    >>> p = program()
    >>> _ = multi_head_attention(p, p.input("X", (16, 16)), heads=4, entries=4)
    >>> plans = make_program_plans(p.build(), 4, {"heads": [("WQ", 1)]})
    >>> min(plans.values(), key=lambda plan: plan.moved) is plans["planned"]
    True
    """
    values = dict(sizes or {})
    plans = {"planned": plan_program(program, processes, sizes=values)}
    for name, plan in _list_decompositions(program, processes, splits or {}, values):
        plans[name] = plan_decomposition(plan, processes, name)
    return {
        name: Contender(plan, plan.counts.moved, compute_eindecomp_cost(plan.plan))
        for name, plan in plans.items()
    }


def _list_decompositions(
    program: Program, processes: int, splits: Mapping[str, Axes], sizes: dict[str, int]
) -> Iterator[tuple[str, Decomposition]]:
    yield "eindecomp", decompose(program, processes, sizes=sizes)
    yield "linear", decompose(program, processes, sizes=sizes, method="linear")
    yield "square", split_square(program, processes, sizes=sizes)
    for name, ((array, axis), *also) in splits.items():
        yield name, split_along(program, processes, array, axis, also=also, sizes=sizes)
