"""Long sums, which the work-items of a group share.

Each work-item adds up some terms of a sum; then a tree in shared memory adds up these
partial sums. For the einsum ``ij->i``, ``gpu_rows`` assigns a row of work-items to each
i, since neighbours along j are neighbours in memory. ``gpu_columns`` suits ``ij->j``,
where a warp reads the terms of neighbouring results::

    gpu_rows      item   0  1  2  3          gpu_columns   item   0  1  2  3
    A[i, :]              j  j  j  j  | j     A[0, :]              j  j  j  j
    A[i+1, :]            j  j  j  j  | j     A[1, :]              j  j  j  j    y = 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

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
from feinsum.transforms.gpu.heuristics import BARRIER_CYCLES, MAX_ITEMS, WARP
from feinsum.transforms.gpu.layouts import split_into_grid_axes
from feinsum.transforms.gpu.tiles import GPUS, GroupWriter, has_plain_dtype
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.schedule import Expression, multiply_rules
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import get_number, get_text


def apply_gpu_rows(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Distribute the terms of a sum to work-items, and add their sums in a tree.

    Rewrite, for ``ij->i`` with the summed index j::

        for i:  out[i] = sum(j, A[i,j])

        for group, y, x in parallel, i = rows*group + y:
            part[y,x] = sum(step, A[i, x + items*step])
            (barrier)
            for half in items/2, ..., 1:  if x < half:
                part[y,x] = part[y,x] + part[y, x + half]
                (barrier)
            if x == 0:  out[i] = part[y,0]

    Parameters:
        summed: the index that is distributed.
        items: work-items of a row, a power of two.
        rows: rows of a work-group.
    """
    items, rows = get_number(parameters, "items"), get_number(parameters, "rows")
    return _share_sums(
        t_unit, nest, get_text(parameters, "summed"), items, rows, (0, 1)
    )


def apply_gpu_columns(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Distribute the terms of neighbouring sums to columns of work-items.

    Rewrite, for ``ij->j`` with the summed index i::

        for j:  out[j] = sum(i, A[i,j])

        for group, y, x in parallel, j = columns*group + x:
            part[y,x] = sum(step, A[y + items*step, j])
            (barrier)
            (a tree over y, as of gpu_rows)
            if y == 0:  out[j] = part[0,x]

    Parameters:
        summed: the index that is distributed.
        items: work-items of a column, a power of two.
        columns: columns of a work-group.
    """
    items, columns = get_number(parameters, "items"), get_number(parameters, "columns")
    return _share_sums(
        t_unit, nest, get_text(parameters, "summed"), items, columns, (1, 0)
    )


def _share_sums(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    summed: str,
    items: int,
    rows: int,
    axes: tuple[int, int],
) -> lp.TranslationUnit:
    """Share each sum among a row of work-items.

    Args:
        t_unit: the unit of the kernel.
        nest: the loop nest to rewrite.
        summed: the summed index that is shared.
        items: work-items that share a sum.
        rows: sums of a work-group.
        axes: the axes of the group along which items and rows are; 0 is the fastest.
    """
    schedule = begin(t_unit, nest)
    writer = GroupWriter(schedule)
    tag_of_item, tag_of_row = (f"l.{axis}" for axis in axes)
    grid = writer.loop_over_output("row", rows, tag_of_row)
    around = [*grid.groups, grid.item]
    limit = f"{{}} < {schedule.extents[summed]}"
    # neighbours along the fastest axis are neighbours in memory: no bank conflicts
    shape = (rows, items) if axes == (0, 1) else (items, rows)
    for k, row in enumerate(schedule.rows):
        item = writer.loop("item", size=items, tag=tag_of_item)
        dtype = schedule.get_sum_dtype(k)
        partial_sums = var(writer.array("part", shape, dtype, is_shared=True))

        def entry(
            number: Expression, partial_sums: Expression = partial_sums
        ) -> Expression:
            pair = var(grid.item), number
            return partial_sums[pair if axes == (0, 1) else pair[::-1]]

        step, value = writer.strided(summed, item, items, limit)
        inner = {
            i: writer.loop(i, size=schedule.extents[i])
            for i in schedule.summed
            if i != summed
        }
        of_inner = {i: var(name) for i, name in inner.items()}
        product = multiply_rules(
            schedule, row, {**grid.points, summed: value, **of_inner}
        )
        total, last = writer.add_up(
            dtype, product, [*around, item], [*inner.values(), step]
        )
        last = writer.assign("share", entry(var(item)), total, [*around, item], [last])
        last = writer.add_in_tree(entry, items, around, last, tag_of_item)
        # the first work-item of each row stores its sum
        only = writer.loop("lane", size=1, tag=tag_of_item)
        writer.store(k, entry(0), grid.points, [*around, only], [last])
    return writer.build().t_unit


def _make_rows_space(workload: Workload) -> Space | None:
    """Fit einsums with a sum; indices in which operands end come first."""
    last = [term[-1] for term in workload.einsum.inputs if term]
    summed = sorted(
        workload.einsum.summation_indices, key=lambda i: (-last.count(i), i)
    )
    return _make_space(workload, summed, (32, 64, 128, 256), "rows", (4, 1, 8, 2))


def _make_columns_space(workload: Workload) -> Space | None:
    """Fit einsums with a sum and several results."""
    summed = sorted(workload.einsum.summation_indices) if workload.einsum.output else []
    return _make_space(workload, summed, (8, 16, 32, 4), "columns", (32, 64, 128))


def _make_space(
    workload: Workload,
    summed: Sequence[str],
    items: tuple[int, ...],
    name: str,
    sums: tuple[int, ...],
) -> Space | None:
    einsum = workload.einsum
    fits = has_plain_dtype(einsum) and bool(summed)
    if not fits or split_into_grid_axes(einsum.output, einsum.extents) is None:
        return None

    def constraint(parameters: Parameters) -> str | None:
        n_items = get_number(parameters, "items") * get_number(parameters, name)
        if n_items > MAX_ITEMS:
            return f"{n_items} work-items in a group, of {MAX_ITEMS}"
        return None

    table: Table = {"summed": tuple(summed), "items": items, name: sums}
    return Space(table, constraint)


def _predict_rows_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds; a warp reads neighbouring terms of a sum."""
    summed, rows = get_text(parameters, "summed"), get_number(parameters, "rows")
    lanes = [{summed: k} for k in range(min(WARP, count_points(einsum, (summed,))))]
    return _predict_shared_sums_s(einsum, machine, parameters, rows, lanes)


def _predict_columns_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds; a warp reads one term of neighbouring sums."""
    columns = get_number(parameters, "columns")
    first, _ = count_output_groups(einsum, columns)
    lanes = [first.unravel_number(k) for k in range(min(WARP, first.n_values))]
    return _predict_shared_sums_s(einsum, machine, parameters, columns, lanes)


def _predict_shared_sums_s(
    einsum: BatchedEinsum,
    machine: MachineModel,
    parameters: Parameters,
    sums: int,
    lanes: Sequence[Mapping[str, int]],
) -> float:
    """Predict the seconds of :func:`_share_sums`.

    Args:
        einsum: the einsum, with known extents.
        machine: the machine, with a GPU.
        parameters: parameters of the transform.
        sums: sums of a work-group.
        lanes: for each lane of a warp, the values of indices in its first read.
    """
    assert machine.gpu is not None
    summed, items = get_text(parameters, "summed"), get_number(parameters, "items")
    first, n_groups = count_output_groups(einsum, sums)
    extent = count_points(einsum, (summed,))
    # the other summed indices are loops of each work-item
    inner = count_points(einsum, einsum.summation_indices) // extent
    n_terms = -(-extent // items) * inner
    box = {
        **first.box_of(sums),
        **{i: count_points(einsum, (i,)) for i in einsum.summation_indices},
    }
    halvings = log2(items)
    # each halving has a barrier
    work = count_warp_cycles(einsum, lanes, n_terms) + BARRIER_CYCLES * halvings
    return predict_launch_s(
        machine.gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=items * sums,
            itemsize=get_itemsize(einsum),
            multiply_adds=n_groups * items * sums * n_terms * count_factors(einsum),
            requests=n_groups * items * sums / WARP * work,
            cached_bytes=n_groups * count_group_bytes(einsum, box),
            distinct_bytes=sum(count_distinct_bytes(einsum)),
            steps=n_terms + halvings,
            shared_bytes=items * sums * get_itemsize(einsum) * einsum.batch_size,
        ),
    )


GPU_ROWS = register(
    Transform(
        "gpu_rows",
        1,
        "sums that are shared by the work-items of a group",
        _make_rows_space,
        apply_gpu_rows,
        _predict_rows_s,
        devices=GPUS,
    )
)

GPU_COLUMNS = register(
    Transform(
        "gpu_columns",
        1,
        "neighbouring sums, each shared by a column of the group",
        _make_columns_space,
        apply_gpu_columns,
        _predict_columns_s,
        devices=GPUS,
    )
)
