"""The papers' costs of whole plans, in elements.

The first measures what a process holds, the second bounds what moves.

Source: Deinsum, section IV (footprint); EinDecomp (Bourgeois et al.; join, aggregation,
repartition).
"""

from __future__ import annotations

from math import prod

import numpy as np

from feinsum.distributed import Plan
from feinsum.distributed.grids import (
    compute_repartition,
    compute_statement_costs,
    order_by_first_use,
)


def footprint(plan: Plan) -> float:
    """Elements in the blocks of a process, summed over groups."""
    return float(sum(
        prod(plan.extents[i] / schedule.parts(i) for i in access.indices)
        for group, schedule in zip(plan.groups, plan.schedules, strict=True)
        for access in (*group.inputs, group.output)
    ))  # fmt: skip


def eindecomp(plan: Plan) -> float:
    """Join, aggregation and repartition of all groups, by parts of their indices."""
    produced: dict[str, list[int]] = {}
    total = 0.0
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        indices = order_by_first_use(group)
        # one row: the cost functions take many grids at once
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


PAPER_COSTS = {"footprint": footprint, "eindecomp": eindecomp}
"""Costs by name; each is a number of elements."""


def paper_cost(name: str, plan: Plan) -> float:
    """The cost of a plan by a paper's model, in elements.

    Args:
        name: one of :data:`PAPER_COSTS`.

    Raises:
        ValueError: if there is no such cost.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> made = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=4)
    >>> made.counts.moved, paper_cost("footprint", made), paper_cost("eindecomp", made)
    (128, 80.0, 256.0)
    """
    if name not in PAPER_COSTS:
        raise ValueError(
            f"there is no cost {name!r}; expected one of {', '.join(PAPER_COSTS)}"
        )
    return PAPER_COSTS[name](plan)
