"""Few results of long sums: work-groups share each sum, and a second launch adds.

A second launch is needed because work-groups cannot wait for each other in one. For a
single sum of 2**20 terms, with 128 parts and 256 items::

    launch 1   128 groups x 256 items, 32 terms each     partial[0..127]
    launch 2   1 group x 128 items                       out

Source: Harris, Optimizing Parallel Reduction in CUDA (2007).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

import loopy as lp
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import MachineModel, count_distinct_bytes
from feinsum.transforms.gpu.cost import (
    LaunchWork,
    count_factors,
    count_group_bytes,
    count_warp_cycles,
    get_itemsize,
    predict_launch_s,
)
from feinsum.transforms.gpu.heuristics import BARRIER_CYCLES, MIN_SPLIT_TERMS, WARP
from feinsum.transforms.gpu.layouts import Flat, flatten_indices
from feinsum.transforms.gpu.sides import make_contiguity_key
from feinsum.transforms.gpu.tiles import GPUS, GroupWriter, has_plain_dtype
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.schedule import Expression, Names, multiply_rules
from feinsum.transforms.registry import Parameters, Space, Transform, register
from feinsum.transforms.roles import count_index_tuples, get_number


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
    n_items, n_parts = get_number(parameters, "items"), get_number(parameters, "parts")
    dtypes = [schedule.get_sum_dtype(k) for k in rows]

    def add_in_tree(
        row: int, n: int, item: str, grid: Names, value: Expression, after: list[str]
    ) -> tuple[Expression, str]:
        """Add up a value of every work-item; return the sum and the last id."""
        terms = var(writer.array("own", (n,), dtypes[row], is_shared=True))
        last = writer.assign("share", terms[var(item)], value, [*grid, item], after)
        return terms[0], writer.add_in_tree(lambda point: terms[point], n, grid, last)

    def add_part(row: int, partials: Expression) -> str:
        """Add up the terms of one group."""
        item = writer.loop("item", size=n_items, tag="l.0")
        # at each step, the items of all groups together read contiguous terms
        n_terms, first = n_items * n_parts, f"{item} + {n_items}*{part_iname}"
        step = writer.loop("step", f"{first} + {n_terms}*{{}} < {summed.size}")
        value = p.Sum((var(item), n_items * var(part_iname), n_terms * var(step)))
        point = {**result.unravel(var(group)), **summed.unravel(value)}
        product = multiply_rules(schedule, schedule.rows[row], point)
        grid = (group, part_iname)
        total, last = writer.add_up(dtypes[row], product, [*grid, item], [step])
        total, last = add_in_tree(row, n_items, item, grid, total, [last])
        only = writer.loop("lane", size=1, tag="l.0")
        entry = partials[var(part_iname), var(group)]
        return writer.assign("part", entry, total, [*grid, only], [last])

    def add_parts(row: int, group: str, partials: Expression, after: list[str]) -> None:
        """Add up the parts, in the second launch, and store the sum."""
        item = writer.loop("item", size=n_parts, tag="l.0")
        value = partials[var(item), var(group)]
        total, last = add_in_tree(row, n_parts, item, (group,), value, after)
        only = writer.loop("lane", size=1, tag="l.0")
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


def _make_space(workload: Workload) -> Space | None:
    """Fit einsums with sums that are long enough for a second launch."""
    einsum = workload.einsum
    is_long = (
        count_index_tuples(einsum, tuple(einsum.summation_indices)) >= MIN_SPLIT_TERMS
    )
    fits = is_long and has_plain_dtype(einsum)
    if not fits or flatten_output_and_sum(einsum, einsum.extents) is None:
        return None
    table = {"items": (256, 128, 512), "parts": (128, 32, 512, 8)}
    return Space(table)


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds of both launches."""
    assert machine.gpu is not None
    n_items, n_parts = get_number(parameters, "items"), get_number(parameters, "parts")
    flats = flatten_output_and_sum(einsum, einsum.extents)
    assert flats is not None
    result, summed = flats
    itemsize, n_rows = get_itemsize(einsum), einsum.batch_size
    # ``n_terms`` of each work-item, rounded up: the last step may not be full
    n_groups, n_terms = (
        result.n_values * n_parts,
        -(-summed.n_values // (n_items * n_parts)),
    )
    lanes = [summed.unravel_number(k) for k in range(min(WARP, summed.n_values))]
    read = n_terms * count_group_bytes(einsum, summed.box_of(n_items))
    halvings = log2(n_items)
    cycles = count_warp_cycles(einsum, lanes, n_terms) + BARRIER_CYCLES * halvings
    first = LaunchWork(
        n_groups=n_groups,
        n_items=n_items,
        itemsize=itemsize,
        multiply_adds=n_groups * n_items * n_terms * count_factors(einsum),
        requests=n_groups * n_items / WARP * cycles,
        cached_bytes=n_groups * read,
        distinct_bytes=sum(count_distinct_bytes(einsum)),
        steps=n_terms + halvings,
        shared_bytes=n_items * itemsize * n_rows,
    )
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
    return predict_launch_s(machine.gpu, first) + predict_launch_s(machine.gpu, second)


GPU_SPLIT_SUM = register(
    Transform(
        "gpu_split_sum",
        1,
        "few results of long sums, which work-groups share",
        _make_space,
        apply_gpu_split_sum,
        _predict_s,
        devices=GPUS,
    )
)
