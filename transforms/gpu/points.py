"""Pointwise products and all else: one work-item for an entry of the output."""

from __future__ import annotations

from math import prod

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    WARP,
    Launch,
    factors_of,
    group_bytes,
    itemsize_of,
    launch_s,
    warp_cycles,
)
from feinsum.transforms.gpu.grid import GPUS, has_plain_dtype, parts_of
from feinsum.transforms.primitives import NestWriter, begin
from feinsum.transforms.primitives.schedule import calls_product
from feinsum.transforms.registry import Parameters, Table, Transform, register
from feinsum.transforms.roles import number


def gpu_points(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Give every entry of the output to a work-item, the last index the fastest.

    Rewrite, for ``ij->ji`` with 5 values of i::

        for j, i:  out[j,i] = A[i,j]

        for group, item in parallel, entry = block*group + item:
            out[entry // 5, entry % 5] = A[entry % 5, entry // 5]

    Sums are loops of one work-item.

    Parameters:
        block: work-items of a group.
    """
    schedule = begin(t_unit, nest)
    writer, block = NestWriter(schedule), number(parameters, "block")
    parts = parts_of(schedule.output, schedule.extents)
    if parts is None:
        raise TransformError("the output has more run-time extents than a grid axes")
    first, *others = parts
    group = writer.loop("group", f"{block}*{{}} < {first.size}", tag="g.0")
    item = writer.loop(
        "item", f"{block}*{group} + {{}} < {first.size}", size=block, tag="l.0"
    )
    points = first.points(p.Sum((block * var(group), var(item))))
    around = [group, item]
    for axis, part in enumerate(others, start=1):
        around.append(writer.loop("group", size=part.extents[0], tag=f"g.{axis}"))
        points[part.indices[0]] = var(around[-1])
    for k, row in enumerate(schedule.rows):
        sums = {i: writer.loop(i, size=schedule.extents[i]) for i in schedule.summed}
        at = {**points, **{i: var(name) for i, name in sums.items()}}
        product = calls_product(schedule, row, at)
        if not sums:
            writer.store(k, product, points, around)
            continue
        dtype = schedule.dtype_of_row(k)
        total = var(writer.array("total", (), dtype))
        zero = writer.assign("zero", total, dtype.type(0), around)
        step = writer.assign(
            "add", total, p.Sum((total, product)), [*around, *sums.values()], [zero]
        )
        writer.store(k, total, points, around, [step])
    return writer.finished().t_unit


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    if not has_plain_dtype(einsum) or parts_of(einsum.output, einsum.extents) is None:
        return None
    return {"block": (256, 128, 64, 512)}


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Every work-item reads its terms; those of neighbours are shared in the cache."""
    assert machine.gpu is not None
    parts, block = parts_of(einsum.output, einsum.extents), number(parameters, "block")
    assert parts is not None
    first, *others = parts
    n_groups = -(-first.number() // block) * prod(part.number() for part in others)
    lanes = [first.at(k) for k in range(min(WARP, first.number()))]
    summed = einsum.summation_indices
    n_terms, n_warps = points(einsum, summed), n_groups * block / WARP
    held = {**first.held(block), **{i: points(einsum, (i,)) for i in summed}}
    return launch_s(
        machine.gpu,
        Launch(
            n_groups=n_groups,
            n_items=block,
            itemsize=itemsize_of(einsum),
            multiply_adds=n_groups * block * n_terms * factors_of(einsum),
            requests=n_warps * warp_cycles(einsum, lanes, n_terms),
            cached_bytes=n_groups * group_bytes(einsum, held),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=n_terms,
        ),
    )


GPU_POINTS = register(
    Transform(
        "gpu_points",
        1,
        "one work-item for an entry of the output",
        _space,
        gpu_points,
        _cost,
        devices=GPUS,
    )
)
