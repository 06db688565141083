"""Sums of any einsum: work-items, groups or launches share the terms of a result.

============= ==================================== ====================================
family        terms of one result are added by     suits
============= ==================================== ====================================
gpu_points    one work-item                        short sums, and none
gpu_rows      a row of work-items                  terms that are neighbours in memory
gpu_columns   a column of work-items               results that are neighbours
gpu_split_sum groups, and then a second launch     few results of long sums
============= ==================================== ====================================

Neighbouring work-items access neighbouring memory. For the einsum ``ij->i``, they are
along j; for ``ij->j``, they have different results::

    gpu_rows      item   0  1  2  3          gpu_columns   item   0  1  2  3
    A[i, :]              j  j  j  j  | j     A[0, :]              j  j  j  j
    A[i+1, :]            j  j  j  j  | j     A[1, :]              j  j  j  j    y = 1

A tree in shared memory adds up the sums of work-items. Groups cannot wait for each
other, so they need a second launch. For 2**20 terms, 128 parts and 256 items::

    launch 1   128 groups x 256 items, 32 terms each     partial[0..127]
    launch 2   1 group x 128 items                       out

Source: Harris, Optimizing Parallel Reduction in CUDA (2007).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2, prod

import loopy as lp
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Gpu, list_loads
from feinsum.transforms.gpu.cost import (
    LaunchWork,
    count_factors,
    count_group_bytes,
    count_request_cycles,
    get_itemsize,
    predict_kernel_s,
    predict_launch_s,
)
from feinsum.transforms.gpu.families import (
    explain_items,
    has_plain_dtype,
    register_family,
)
from feinsum.transforms.gpu.heuristics import (
    BARRIER_CYCLES,
    MIN_SPLIT_TERMS,
    OVERHEAD_CYCLES,
    WARP,
)
from feinsum.transforms.gpu.layouts import Flat, flatten_indices, split_into_grid_axes
from feinsum.transforms.gpu.sides import make_contiguity_key
from feinsum.transforms.gpu.tiles import GroupWriter, Point
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters, Space, Table
from feinsum.transforms.roles import count_points


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
    groups, item, points = writer.loop_over_output("item", parameters["block"])
    around = [*groups, item]
    for k in range(len(schedule.rows)):
        sums, product = _multiply_terms(writer, k, points, schedule.summed)
        # without a sum, the product is stored directly
        if not sums:
            writer.store(k, product, points, around)
            continue
        total, step = writer.add_up(schedule.get_sum_dtype(k), product, around, sums)
        writer.store(k, total, points, around, [step])
    return writer.build().t_unit


def _multiply_terms(
    writer: GroupWriter, row: int, points: Point, summed: Sequence[str]
) -> tuple[list[str], Expression]:
    """Loop over summed indices; return the loops and the product of a row."""
    schedule = writer.schedule
    loops = {i: writer.loop(i, size=schedule.extents[i]) for i in summed}
    points = {**points, **{i: var(name) for i, name in loops.items()}}
    return [*loops.values()], schedule.multiply_row(row, points)


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
    return _share_sums(t_unit, nest, parameters, "rows")


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
    return _share_sums(t_unit, nest, parameters, "columns")


def _share_sums(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters, lines: str
) -> lp.TranslationUnit:
    """Share each sum among a line of work-items; ``lines`` are rows or columns."""
    schedule = begin(t_unit, nest)
    writer = GroupWriter(schedule)
    summed, items = parameters["summed"], parameters["items"]
    n_lines, is_by_row = parameters[lines], lines == "rows"
    tag_of_item, tag_of_line = ("l.0", "l.1") if is_by_row else ("l.1", "l.0")
    groups, line, of_line = writer.loop_over_output("row", n_lines, tag_of_line)
    around = [*groups, line]
    limit = f"{{}} < {schedule.extents[summed]}"
    # neighbours along the fastest axis are neighbours in memory: no bank conflicts
    shape = (n_lines, items) if is_by_row else (items, n_lines)
    for k in range(len(schedule.rows)):
        item = writer.loop("item", size=items, tag=tag_of_item)
        dtype = schedule.get_sum_dtype(k)
        partial_sums = var(writer.array("part", shape, dtype, is_shared=True))

        def entry(
            number: Expression, partial_sums: Expression = partial_sums
        ) -> Expression:
            pair = var(line), number
            return partial_sums[pair if is_by_row else pair[::-1]]

        step, value = writer.strided(summed, item, items, limit)
        others = [i for i in schedule.summed if i != summed]
        points = {**of_line, summed: value}
        inner, product = _multiply_terms(writer, k, points, others)
        total, last = writer.add_up(dtype, product, [*around, item], [*inner, step])
        only, last = writer.add_in_tree(
            entry, total, item, items, around, [last], tag_of_item
        )
        # the first work-item of each line stores its sum
        writer.store(k, entry(0), of_line, [*around, only], [last])
    return writer.build().t_unit


def apply_gpu_split_sum(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Distribute the terms of a sum to work-groups, and add their partial sums.

    Rewrite, for ``ij->i`` with the summed index j::

        for i:  out[i] = sum(j, A[i,j])

        for i, part, x in parallel:
            own[x] = sum(step, A[i, x + items*(part + parts*step)])
            (barrier)
            own[0] = own[0] + ... + own[items - 1]     # as a tree
            if x == 0:  partial[part,i] = own[0]
        (second launch)
        for i, x in parallel:
            own[x] = partial[x,i]
            (barrier)
            own[0] = own[0] + ... + own[parts - 1]     # as a tree
            if x == 0:  out[i] = own[0]

    Parameters:
        items: work-items of a group, a power of two.
        parts: work-groups of a sum, a power of two.
    """
    schedule = begin(t_unit, nest)
    flats = flatten_output_and_sum(nest.einsum, schedule.extents)
    if flats is None:
        raise TransformError(
            f"{nest.einsum.subscripts} has no sum, or two run-time extents in it or in "
            "the output"
        )
    result, summed = flats
    writer, rows = GroupWriter(schedule), range(len(schedule.rows))
    n_items, n_parts = parameters["items"], parameters["parts"]
    dtypes = [schedule.get_sum_dtype(k) for k in rows]

    def add_in_tree(
        row: int, n: int, item: str, grid: Names, value: Expression, after: list[str]
    ) -> tuple[Expression, str, str]:
        """Add up a value of every work-item; return the sum, a loop and the last id."""
        terms = var(writer.array("own", (n,), dtypes[row], is_shared=True))
        return terms[0], *writer.add_in_tree(
            lambda point: terms[point], value, item, n, grid, after
        )

    def add_part(row: int, partials: Expression) -> str:
        """Add up the terms of one group."""
        item = writer.loop("item", size=n_items, tag="l.0")
        # at each step, the items of all groups together read contiguous terms
        n_terms, first = n_items * n_parts, f"{item} + {n_items}*{part_iname}"
        step = writer.loop("step", f"{first} + {n_terms}*{{}} < {summed.size}")
        value = p.Sum((var(item), n_items * var(part_iname), n_terms * var(step)))
        point = {**result.unravel(var(group)), **summed.unravel(value)}
        product = schedule.multiply_row(row, point)
        grid = (group, part_iname)
        total, last = writer.add_up(dtypes[row], product, [*grid, item], [step])
        total, only, last = add_in_tree(row, n_items, item, grid, total, [last])
        entry = partials[var(part_iname), var(group)]
        return writer.assign("part", entry, total, [*grid, only], [last])

    def add_parts(row: int, group: str, partials: Expression, after: list[str]) -> None:
        """Add up the parts, in the second launch, and store the sum."""
        item = writer.loop("item", size=n_parts, tag="l.0")
        value = partials[var(item), var(group)]
        total, only, last = add_in_tree(row, n_parts, item, (group,), value, after)
        writer.store(row, total, result.unravel(var(group)), [group, only], [last])

    below = f"{{}} < {result.size}"
    group = writer.loop("group", below, tag="g.0")
    part_iname = writer.loop("part", size=n_parts, tag="g.1")
    # declare all arrays first: the loops of the first launch then have one order for
    # all rows
    shape = n_parts, parse(result.size)
    partials = [
        var(writer.array("partial", shape, dtype, is_global=True)) for dtype in dtypes
    ]
    stored_ids = [add_part(k, partials[k]) for k in rows]
    end, second = writer.end_launch(stored_ids), writer.loop("group", below, tag="g.0")
    for k in rows:
        add_parts(k, second, partials[k], [stored_ids[k], end])
    return writer.build().t_unit


def flatten_output_and_sum(
    einsum: BatchedEinsum, extents: Mapping[str, Extent]
) -> tuple[Flat, Flat] | None:
    """Return the output and the sum, each as one index; None if that is impossible.

    >>> from feinsum.ir import array, einsum
    >>> norm = einsum("ij,ij->", array("A", (9, 8)), array("B", (9, 8)))
    >>> [flat.indices for flat in flatten_output_and_sum(norm, norm.extents)]
    [(), ('i', 'j')]
    """
    summed = sorted(einsum.summation_indices, key=make_contiguity_key(einsum))
    flats = flatten_indices(einsum.output, extents), flatten_indices(summed, extents)
    if flats[0] is None or flats[1] is None or not summed:
        return None
    return flats[0], flats[1]


def _fits_grid(einsum: BatchedEinsum) -> bool:
    axes = split_into_grid_axes(einsum.output, einsum.extents)
    return has_plain_dtype(einsum) and axes is not None


def _make_points_space(workload: Workload) -> Table | None:
    """Fit every einsum of real numbers whose run-time extents fit a grid's axes."""
    return {"block": (256, 128, 64, 512)} if _fits_grid(workload.einsum) else None


def _make_rows_space(workload: Workload) -> Space | None:
    """Fit einsums with a sum; indices in which operands end come first."""
    einsum = workload.einsum
    last = [term[-1] for term in einsum.inputs if term]
    summed = sorted(einsum.summation_indices, key=lambda i: (-last.count(i), i))
    table: Table = {"items": (32, 64, 128, 256), "rows": (4, 1, 8, 2)}
    return _make_shared_space(einsum, summed, table)


def _make_columns_space(workload: Workload) -> Space | None:
    """Fit einsums with a sum and several results."""
    einsum = workload.einsum
    summed = sorted(einsum.summation_indices) if einsum.output else []
    table: Table = {"items": (8, 16, 32, 4), "columns": (32, 64, 128)}
    return _make_shared_space(einsum, summed, table)


def _make_shared_space(
    einsum: BatchedEinsum, summed: Sequence[str], table: Table
) -> Space | None:
    if not summed or not _fits_grid(einsum):
        return None

    def constraint(parameters: Parameters) -> str | None:
        return explain_items(prod(parameters[name] for name in table))

    return Space({"summed": tuple(summed), **table}, constraint)


def _make_split_space(workload: Workload) -> Space | None:
    """Fit einsums with sums that are long enough for a second launch."""
    einsum = workload.einsum
    n_terms = count_points(einsum, tuple(einsum.summation_indices))
    if n_terms < MIN_SPLIT_TERMS or not has_plain_dtype(einsum):
        return None
    if flatten_output_and_sum(einsum, einsum.extents) is None:
        return None
    return Space({"items": (256, 128, 512), "parts": (128, 32, 512, 8)})


def _predict_shared_s(
    gpu: Gpu,
    einsum: BatchedEinsum,
    near: Flat,
    *,
    n_groups: int,
    n_items: int,
    n_terms: int,
    group_bytes: float,
    n_halvings: float,
) -> float:
    """Predict the seconds of a launch in which work-items share sums.

    Args:
        gpu: the GPU.
        einsum: the einsum, with known extents.
        near: the index of which the lanes of a warp have neighbouring values.
        n_groups: number of work-groups.
        n_items: work-items of a group.
        n_terms: terms of a work-item, rounded up: the last step may not be full.
        group_bytes: bytes that a group reads and writes.
        n_halvings: steps of the tree, each with a barrier.
    """
    itemsize = get_itemsize(einsum)
    lanes = [near.unravel_number(k) for k in range(min(WARP, near.n_values))]
    terms = [*list_loads(einsum), (einsum.output, itemsize)]
    *of_term, stored = (count_request_cycles(einsum, *term, lanes) for term in terms)
    cycles = (sum(of_term) + OVERHEAD_CYCLES) * n_terms
    cycles += stored * einsum.batch_size + BARRIER_CYCLES * n_halvings
    return predict_kernel_s(
        gpu,
        einsum,
        n_groups=n_groups,
        n_items=n_items,
        multiply_adds=n_groups * n_items * n_terms * count_factors(einsum),
        requests=n_groups * n_items / WARP * cycles,
        cached_bytes=n_groups * group_bytes,
        steps=n_terms + n_halvings,
        shared_bytes=n_items * itemsize * einsum.batch_size if n_halvings else 0,
    )


def _predict_lines_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; a warp reads terms of a sum, or one of neighbouring sums.

    A group of ``gpu_points`` has columns of one work-item.
    """
    summed: Names = ()
    items = 1
    if "summed" in parameters:
        summed, items = (parameters["summed"],), parameters["items"]
    (name,) = {*parameters} & {"block", "rows", "columns"}
    n_lines = parameters[name]
    axes = split_into_grid_axes(einsum.output, einsum.extents)
    assert axes is not None
    first, *outer_axes = axes
    n_groups = -(-first.n_values // n_lines) * prod(x.n_values for x in outer_axes)
    all_summed, extent = einsum.summation_indices, count_points(einsum, summed)
    box = {
        **first.box_of(n_lines),
        **{i: count_points(einsum, (i,)) for i in all_summed},
    }
    return _predict_shared_s(
        gpu,
        einsum,
        # neighbours in the output may be far apart in an operand
        Flat(summed, (extent,)) if name == "rows" else first,
        n_groups=n_groups,
        n_items=items * n_lines,
        # the other summed indices are loops of each work-item
        n_terms=-(-extent // items) * (count_points(einsum, all_summed) // extent),
        group_bytes=count_group_bytes(einsum, box),
        n_halvings=log2(items),
    )


def _predict_split_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds of both launches."""
    n_items, n_parts = parameters["items"], parameters["parts"]
    flats = flatten_output_and_sum(einsum, einsum.extents)
    assert flats is not None
    result, summed = flats
    n_groups = result.n_values * n_parts
    n_terms = -(-summed.n_values // (n_items * n_parts))
    first_s = _predict_shared_s(
        gpu,
        einsum,
        summed,
        n_groups=n_groups,
        n_items=n_items,
        n_terms=n_terms,
        group_bytes=n_terms * count_group_bytes(einsum, summed.box_of(n_items)),
        n_halvings=log2(n_items),
    )
    itemsize, n_rows = get_itemsize(einsum), einsum.batch_size
    n_bytes = n_groups * itemsize * n_rows
    second = LaunchWork(
        n_groups=result.n_values,
        n_items=n_parts,
        itemsize=itemsize,
        multiply_adds=n_groups * n_rows,
        requests=n_groups / WARP * BARRIER_CYCLES * log2(n_parts),
        cached_bytes=n_bytes,
        distinct_bytes=n_bytes,
        steps=1 + log2(n_parts),
        shared_bytes=n_parts * itemsize * n_rows,
    )
    return first_s + predict_launch_s(gpu, second)


GPU_POINTS = register_family(
    "gpu_points",
    1,
    "one work-item for an entry of the output",
    _make_points_space,
    apply_gpu_points,
    _predict_lines_s,
)
GPU_ROWS = register_family(
    "gpu_rows",
    1,
    "sums that are shared by the work-items of a group",
    _make_rows_space,
    apply_gpu_rows,
    _predict_lines_s,
)
GPU_COLUMNS = register_family(
    "gpu_columns",
    1,
    "neighbouring sums, each shared by a column of the group",
    _make_columns_space,
    apply_gpu_columns,
    _predict_lines_s,
)
GPU_SPLIT_SUM = register_family(
    "gpu_split_sum",
    1,
    "few results of long sums, which work-groups share",
    _make_split_space,
    apply_gpu_split_sum,
    _predict_split_s,
)
