"""Long sums: the work-items of a group share a row, and add up in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log2, prod

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
from feinsum.transforms.gpu.grid import (
    GPUS,
    MOST_ITEMS,
    has_plain_dtype,
    parts_of,
    strided,
)
from feinsum.transforms.primitives import NestWriter, begin
from feinsum.transforms.primitives.schedule import Expression, calls_product
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import number, text

BARRIER_CYCLES = 8
"""Of a warp, to wait for the others of its group."""


def gpu_rows(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Deal the terms of a sum out to work-items, and add their sums in a tree.

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
        summed: the index that is dealt out.
        items: work-items of a row, a power of two.
        rows: of a work-group.
    """
    items, rows = number(parameters, "items"), number(parameters, "rows")
    return shared_sums(t_unit, nest, text(parameters, "summed"), items, rows, (0, 1))


def shared_sums(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    summed: str,
    items: int,
    rows: int,
    axes: tuple[int, int],
) -> lp.TranslationUnit:
    """Rows of work-items that each share a sum.

    Args:
        axes: of the group, those of the items and of the rows; 0 is the fastest.
    """
    schedule = begin(t_unit, nest)
    writer = NestWriter(schedule)
    of_item, of_row = (f"l.{axis}" for axis in axes)
    parts = parts_of(schedule.output, schedule.extents)
    if parts is None:
        raise TransformError("the output has more run-time extents than a grid axes")
    first, *others = parts
    group = writer.loop("group", f"{rows}*{{}} < {first.size}", tag="g.0")
    row_of = writer.loop(
        "row", f"{rows}*{group} + {{}} < {first.size}", size=rows, tag=of_row
    )
    points = first.points(p.Sum((rows * var(group), var(row_of))))
    grid = [group]
    for axis, part in enumerate(others, start=1):
        grid.append(writer.loop("group", size=part.extents[0], tag=f"g.{axis}"))
        points[part.indices[0]] = var(grid[-1])
    for k, row in enumerate(schedule.rows):
        item = writer.loop("item", size=items, tag=of_item)
        dtype = schedule.dtype_of_row(k)
        own = [*grid, row_of]
        shape = (rows, items) if axes == (0, 1) else (items, rows)
        part = var(writer.array("part", shape, dtype, is_shared=True))
        total = var(writer.array("total", (), dtype))
        extent = schedule.extents[summed]
        dealt = strided(writer, summed, item, items, f"{{}} < {extent}")
        inner = {
            i: writer.loop(i, size=schedule.extents[i])
            for i in schedule.summed
            if i != summed
        }
        at = {**points, summed: dealt.value, **{i: var(n) for i, n in inner.items()}}
        product = calls_product(schedule, row, at)
        last = writer.assign("zero", total, dtype.type(0), [*own, item])
        loops = [*own, item, *inner.values(), *dealt.inames]
        last = writer.assign("add", total, p.Sum((total, product)), loops, [last])
        place = partial(_place, part, axes, var(row_of))
        last = writer.assign("share", place(var(item)), total, [*own, item], [last])
        last = halved(writer, place, items, own, last, of_item)
        only = writer.loop("lane", size=1, tag=of_item)
        writer.store(k, place(0), points, [*own, only], [last])
    return writer.finished().t_unit


def _place(
    part: Expression, axes: tuple[int, int], row: Expression, item: Expression
) -> Expression:
    """A partial sum: neighbours on the fastest axis are neighbours in memory."""
    return part[row, item] if axes == (0, 1) else part[item, row]


def halved(
    writer: NestWriter,
    place: Callable[[Expression], Expression],
    n: int,
    around: Sequence[str],
    last: str,
    tag: str = "l.0",
) -> str:
    """The first of ``n`` shared numbers becomes their sum; the id of the last step.

    Args:
        place: of a number.
        tag: the axis of the group whose work-items add.
    """
    while n := n // 2:
        lane = writer.loop("lane", size=n, tag=tag)
        own, other = place(var(lane)), place(p.Sum((var(lane), n)))
        last = writer.assign("halve", own, p.Sum((own, other)), [*around, lane], [last])
    return last


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    summed = _dealt(einsum)
    fits = has_plain_dtype(einsum) and summed
    if not fits or parts_of(einsum.output, einsum.extents) is None:
        return None
    return {"summed": summed, "items": (32, 64, 128, 256), "rows": (4, 1, 8, 2)}


def _dealt(einsum: BatchedEinsum) -> tuple[str, ...]:
    """The summed indices, those first along which operands lie."""
    last = [term[-1] for term in einsum.inputs if term]
    return tuple(sorted(einsum.summation_indices, key=lambda i: (-last.count(i), i)))


def _constraint(_workload: Workload, parameters: Parameters) -> str | None:
    n_items = number(parameters, "items") * number(parameters, "rows")
    if n_items > MOST_ITEMS:
        return f"{n_items} work-items in a group, of {MOST_ITEMS}"
    return None


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """A warp reads neighbours of the sum; a group has all terms of few rows."""
    summed = text(parameters, "summed")
    lanes = [{summed: k} for k in range(min(WARP, points(einsum, (summed,))))]
    items, rows = number(parameters, "items"), number(parameters, "rows")
    return shared_sums_s(einsum, machine, summed, items, rows, lanes)


def shared_sums_s(
    einsum: BatchedEinsum,
    machine: Machine,
    summed: str,
    items: int,
    sums: int,
    lanes: Sequence[Mapping[str, int]],
) -> float:
    """The seconds of :func:`shared_sums`.

    Args:
        summed: the index that is dealt out.
        items: work-items of a sum.
        sums: of a work-group.
        lanes: the indices of a warp's first reads.
    """
    assert machine.gpu is not None
    parts = parts_of(einsum.output, einsum.extents)
    assert parts is not None
    first, *others = parts
    n_groups = -(-first.number() // sums) * prod(part.number() for part in others)
    extent = points(einsum, (summed,))
    inner = points(einsum, einsum.summation_indices) // extent
    n_terms = -(-extent // items) * inner
    held = {
        **first.held(sums),
        **{i: points(einsum, (i,)) for i in einsum.summation_indices},
    }
    halvings = log2(items)
    work = warp_cycles(einsum, lanes, n_terms) + BARRIER_CYCLES * halvings
    return launch_s(
        machine.gpu,
        Launch(
            n_groups=n_groups,
            n_items=items * sums,
            itemsize=itemsize_of(einsum),
            multiply_adds=n_groups * items * sums * n_terms * factors_of(einsum),
            requests=n_groups * items * sums / WARP * work,
            cached_bytes=n_groups * group_bytes(einsum, held),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=n_terms + halvings,
            shared_bytes=items * sums * itemsize_of(einsum) * einsum.batch_size,
        ),
    )


GPU_ROWS = register(
    Transform(
        "gpu_rows",
        1,
        "sums that are shared by the work-items of a group",
        space_of_parts(_space, _constraint, proposes_all=True),
        gpu_rows,
        _cost,
        devices=GPUS,
    )
)
