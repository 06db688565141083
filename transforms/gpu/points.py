"""Pointwise products and anything else: one work-item for each entry of the output.

Work-items are numbered with the last index of the output fastest, so a warp writes
neighbouring entries. A work-item adds all terms of its sum in a loop. For ``ij->i``::

    item       0   1   2  ...          each item reads a row of A, one entry after the
    writes   out0 out1 out2            other: ``gpu_rows`` suits long rows better
"""

from __future__ import annotations

import loopy as lp
from pymbolic import var

from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import MachineModel, count_distinct_bytes, count_points
from feinsum.transforms.gpu.cost import (
    LaunchWork,
    count_factors,
    count_group_bytes,
    count_output_groups,
    count_warp_cycles,
    get_itemsize,
    predict_launch_s,
)
from feinsum.transforms.gpu.heuristics import WARP
from feinsum.transforms.gpu.layouts import split_into_grid_axes
from feinsum.transforms.gpu.tiles import GPUS, GroupWriter, has_plain_dtype
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.schedule import multiply_rules
from feinsum.transforms.registry import Parameters, Table, Transform, register
from feinsum.transforms.roles import get_number


def apply_gpu_points(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Assign every entry of the output to a work-item.

    Rewrite, for ``ij->ji`` with 5 values of i::

        for j, i:  out[j,i] = A[i,j]

        for group, item in parallel, entry = block*group + item:
            out[entry // 5, entry % 5] = A[entry % 5, entry // 5]

    Parameters:
        block: work-items of a group.
    """
    schedule = begin(t_unit, nest)
    writer = GroupWriter(schedule)
    grid = writer.loop_over_output("item", get_number(parameters, "block"))
    around = [*grid.groups, grid.item]
    for k, row in enumerate(schedule.rows):
        sums = {i: writer.loop(i, size=schedule.extents[i]) for i in schedule.summed}
        points = {**grid.points, **{i: var(name) for i, name in sums.items()}}
        product = multiply_rules(schedule, row, points)
        # without a sum, the product is stored directly
        if not sums:
            writer.store(k, product, grid.points, around)
            continue
        dtype = schedule.get_sum_dtype(k)
        total, step = writer.add_up(dtype, product, around, [*sums.values()])
        writer.store(k, total, grid.points, around, [step])
    return writer.build().t_unit


def _make_space(workload: Workload) -> Table | None:
    """Fit every einsum of real numbers whose run-time extents fit a grid's axes."""
    einsum = workload.einsum
    if (
        not has_plain_dtype(einsum)
        or split_into_grid_axes(einsum.output, einsum.extents) is None
    ):
        return None
    return {"block": (256, 128, 64, 512)}


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds; neighbouring work-items share terms in the cache."""
    assert machine.gpu is not None
    block = get_number(parameters, "block")
    first, n_groups = count_output_groups(einsum, block)
    # neighbours in the output may be far apart in an operand
    lanes = [first.unravel_number(k) for k in range(min(WARP, first.n_values))]
    summed = einsum.summation_indices
    n_terms, n_warps = count_points(einsum, summed), n_groups * block / WARP
    box = {**first.box_of(block), **{i: count_points(einsum, (i,)) for i in summed}}
    return predict_launch_s(
        machine.gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=block,
            itemsize=get_itemsize(einsum),
            multiply_adds=n_groups * block * n_terms * count_factors(einsum),
            requests=n_warps * count_warp_cycles(einsum, lanes, n_terms),
            cached_bytes=n_groups * count_group_bytes(einsum, box),
            distinct_bytes=sum(count_distinct_bytes(einsum)),
            steps=n_terms,
        ),
    )


GPU_POINTS = register(
    Transform(
        "gpu_points",
        1,
        "one work-item for an entry of the output",
        _make_space,
        apply_gpu_points,
        _predict_s,
        devices=GPUS,
    )
)
