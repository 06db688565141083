"""Long sums: shared by the work-items of a group, and by groups.

Work-items that share a sum add up a part of its terms each, and then all parts in a
tree, in shared memory. Of the einsum ``ij->i``, ``gpu_rows`` gives a row of
work-items to each i, since neighbours along j are neighbours in memory; ``ij->j`` is
for ``gpu_columns``, where a warp reads neighbouring results::

    gpu_rows      item   0  1  2  3          gpu_columns   item   0  1  2  3
    A[i, :]              j  j  j  j  | j     A[0, :]              j  j  j  j
    A[i+1, :]            j  j  j  j  | j     A[1, :]              j  j  j  j    y = 1

    part    p0  p1  p2  p3     half = 2, then 1:
            p0+p2  p1+p3       a barrier after each
            p0+p1+p2+p3

A sum that is too long for one group goes to several, and a second launch adds theirs
(``gpu_split_sum``): only between launches do all groups wait for each other.

Source: Harris, Optimizing Parallel Reduction in CUDA (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log2

import loopy as lp
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    WARP,
    LaunchWork,
    factors_of,
    group_bytes,
    itemsize_of,
    launch_s,
    warp_cycles,
)
from feinsum.transforms.gpu.grid import (
    GPUS,
    MAX_ITEMS,
    OutputGrid,
    add_up,
    has_plain_dtype,
    n_output_groups,
    strided,
)
from feinsum.transforms.gpu.layouts import Flat, flat_of, grid_axes
from feinsum.transforms.gpu.sides import operand_order
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import number, text, volume

BARRIER_CYCLES = 8
"""Cycles for which a warp waits for the others of its group."""

MIN_SPLIT_TERMS = 4096
"""Fewest terms of a sum that are worth a second launch."""


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
    return _share_sums(t_unit, nest, text(parameters, "summed"), items, rows, (0, 1))


def gpu_columns(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Deal the terms of neighbouring sums out to columns of work-items.

    Rewrite, for ``ij->j`` with the summed index i::

        for j:  out[j] = sum(i, A[i,j])

        for group, y, x in parallel, j = columns*group + x:
            part[y,x] = sum(step, A[y + items*step, j])
            (barrier)
            for half in items/2, ..., 1:  if y < half:
                part[y,x] = part[y,x] + part[y + half, x]
                (barrier)
            if y == 0:  out[j] = part[0,x]

    Parameters:
        summed: the index that is dealt out.
        items: work-items of a column, a power of two.
        columns: of a work-group.
    """
    items, columns = number(parameters, "items"), number(parameters, "columns")
    return _share_sums(t_unit, nest, text(parameters, "summed"), items, columns, (1, 0))


def _share_sums(
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
    tag_of_item, tag_of_row = (f"l.{axis}" for axis in axes)
    grid = OutputGrid.of(writer, "row", rows, tag_of_row)
    around = [*grid.groups, grid.item]
    limit = f"{{}} < {schedule.extents[summed]}"
    # neighbours on the fastest axis are neighbours in memory: no bank conflicts
    shape = (rows, items) if axes == (0, 1) else (items, rows)
    for k, row in enumerate(schedule.rows):
        item = writer.loop("item", size=items, tag=tag_of_item)
        dtype = schedule.dtype_of_row(k)
        part = var(writer.array("part", shape, dtype, is_shared=True))
        step = strided(writer, summed, item, items, limit)
        inner = {
            i: writer.loop(i, size=schedule.extents[i])
            for i in schedule.summed
            if i != summed
        }
        at = {
            **grid.points,
            summed: step.value,
            **{i: var(n) for i, n in inner.items()},
        }
        product = calls_product(schedule, row, at)
        total, last = add_up(
            writer, dtype, product, [*around, item], [*inner.values(), step.iname]
        )
        entry = partial(_part_of_item, part, axes, var(grid.item))
        last = writer.assign("share", entry(var(item)), total, [*around, item], [last])
        last = _halve(writer, entry, items, around, last, tag_of_item)
        # the first work-item of each row stores its sum
        only = writer.loop("lane", size=1, tag=tag_of_item)
        writer.store(k, entry(0), grid.points, [*around, only], [last])
    return writer.finished().t_unit


def _part_of_item(
    part: Expression, axes: tuple[int, int], row: Expression, item: Expression
) -> Expression:
    return part[row, item] if axes == (0, 1) else part[item, row]


def _halve(
    writer: NestWriter,
    entry: Callable[[Expression], Expression],
    n: int,
    around: Sequence[str],
    last: str,
    tag: str = "l.0",
) -> str:
    """The first of ``n`` shared numbers becomes their sum; the id of the last step.

    Args:
        entry: one of the numbers.
        tag: the axis of the group whose work-items add.
    """
    # Loopy puts a barrier between two steps, of which one reads what the other writes
    while n := n // 2:
        lane = writer.loop("lane", size=n, tag=tag)
        near, far = entry(var(lane)), entry(p.Sum((var(lane), n)))
        last = writer.assign("halve", near, p.Sum((near, far)), [*around, lane], [last])
    return last


def _rows_space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    last = [term[-1] for term in einsum.inputs if term]
    # first those along which operands lie
    summed = tuple(sorted(einsum.summation_indices, key=lambda i: (-last.count(i), i)))
    fits = has_plain_dtype(einsum) and summed
    if not fits or grid_axes(einsum.output, einsum.extents) is None:
        return None
    return {"summed": summed, "items": (32, 64, 128, 256), "rows": (4, 1, 8, 2)}


def _columns_space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    summed = einsum.summation_indices
    fits = has_plain_dtype(einsum) and summed and einsum.output
    if not fits or grid_axes(einsum.output, einsum.extents) is None:
        return None
    return {
        "summed": tuple(sorted(summed)),
        "items": (8, 16, 32, 4),
        "columns": (32, 64, 128),
    }


def _rows_constraint(_workload: Workload, parameters: Parameters) -> str | None:
    return _too_many_items(number(parameters, "items") * number(parameters, "rows"))


def _columns_constraint(_workload: Workload, parameters: Parameters) -> str | None:
    return _too_many_items(number(parameters, "items") * number(parameters, "columns"))


def _too_many_items(n_items: int) -> str | None:
    if n_items > MAX_ITEMS:
        return f"{n_items} work-items in a group, of {MAX_ITEMS}"
    return None


def _rows_cost(
    einsum: BatchedEinsum, parameters: Parameters, machine: Machine
) -> float:
    """A warp reads neighbours of the sum; a group has all terms of few rows."""
    summed = text(parameters, "summed")
    lanes = [{summed: k} for k in range(min(WARP, points(einsum, (summed,))))]
    items, rows = number(parameters, "items"), number(parameters, "rows")
    return _shared_sums_s(einsum, machine, summed, items, rows, lanes)


def _columns_cost(
    einsum: BatchedEinsum, parameters: Parameters, machine: Machine
) -> float:
    """A warp reads neighbouring columns; a group has a part of each term of a few."""
    items, columns = number(parameters, "items"), number(parameters, "columns")
    first, _ = n_output_groups(einsum, columns)
    lanes = [first.unravel_number(k) for k in range(min(WARP, first.n_values))]
    summed = text(parameters, "summed")
    return _shared_sums_s(einsum, machine, summed, items, columns, lanes)


def _shared_sums_s(
    einsum: BatchedEinsum,
    machine: Machine,
    summed: str,
    items: int,
    sums: int,
    lanes: Sequence[Mapping[str, int]],
) -> float:
    """The seconds of :func:`_share_sums`.

    Args:
        summed: the index that is dealt out.
        items: work-items of a sum.
        sums: of a work-group.
        lanes: the indices of a warp's first reads.
    """
    assert machine.gpu is not None
    first, n_groups = n_output_groups(einsum, sums)
    extent = points(einsum, (summed,))
    # the other summed indices are loops of each work-item
    inner = points(einsum, einsum.summation_indices) // extent
    n_terms = -(-extent // items) * inner
    box = {
        **first.box_of(sums),
        **{i: points(einsum, (i,)) for i in einsum.summation_indices},
    }
    halvings = log2(items)
    # each halving has a barrier
    work = warp_cycles(einsum, lanes, n_terms) + BARRIER_CYCLES * halvings
    return launch_s(
        machine.gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=items * sums,
            itemsize=itemsize_of(einsum),
            multiply_adds=n_groups * items * sums * n_terms * factors_of(einsum),
            requests=n_groups * items * sums / WARP * work,
            cached_bytes=n_groups * group_bytes(einsum, box),
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
        space_of_parts(_rows_space, _rows_constraint, proposes_all=True),
        gpu_rows,
        _rows_cost,
        devices=GPUS,
    )
)

GPU_COLUMNS = register(
    Transform(
        "gpu_columns",
        1,
        "neighbouring sums, each shared by a column of the group",
        space_of_parts(_columns_space, _columns_constraint, proposes_all=True),
        gpu_columns,
        _columns_cost,
        devices=GPUS,
    )
)


def gpu_split_sum(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Deal the terms of a sum out to work-groups, and add what they have.

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
    flats = _output_and_sum(nest.einsum, schedule.extents)
    if flats is None:
        raise TransformError(
            f"{nest.einsum.subscripts} has no sum, or two run-time extents in it or in "
            "the output"
        )
    return _SplitSum(schedule, *flats, parameters).written().t_unit


def _output_and_sum(
    einsum: BatchedEinsum, extents: Mapping[str, Extent]
) -> tuple[Flat, Flat] | None:
    """The output and the sum, each as one index; None if either is not.

    >>> from feinsum.ir import array, einsum
    >>> norm = einsum("ij,ij->", array("A", (9, 8)), array("B", (9, 8)))
    >>> [flat.indices for flat in _output_and_sum(norm, norm.extents)]
    [(), ('i', 'j')]
    """
    summed = sorted(einsum.summation_indices, key=operand_order(einsum))
    flats = flat_of(einsum.output, extents), flat_of(summed, extents)
    if flats[0] is None or flats[1] is None or not summed:
        return None
    return flats[0], flats[1]


class _SplitSum:
    """Writes the loops; see :func:`gpu_split_sum`."""

    def __init__(
        self, schedule: Schedule, result: Flat, summed: Flat, parameters: Parameters
    ) -> None:
        self.schedule, self.writer = schedule, NestWriter(schedule)
        self.result, self.summed = result, summed
        self.items = number(parameters, "items")
        self.parts = number(parameters, "parts")

    def written(self) -> Schedule:
        """The schedule with the nest replaced; all rows share both launches."""
        rows = range(len(self.schedule.rows))
        group = self._group()
        part = self.writer.loop("part", size=self.parts, tag="g.1")
        # all arrays first: the loops of the first launch are in one order for all rows
        partials = [self._partials(k) for k in rows]
        stored = [self._add_part(k, (group, part), partials[k]) for k in rows]
        end, group = self.writer.launch_end(stored), self._group()
        for k in rows:
            self._add_parts(k, group, partials[k], [stored[k], end])
        return self.writer.finished()

    def _group(self) -> str:
        return self.writer.loop("group", f"{{}} < {self.result.size}", tag="g.0")

    def _partials(self, row: int) -> Expression:
        """What one launch hands to the next."""
        shape = self.parts, parse(self.result.size)
        dtype = self.schedule.dtype_of_row(row)
        return var(self.writer.array("partial", shape, dtype, is_global=True))

    def _add_part(self, row: int, grid: Names, partials: Expression) -> str:
        """The sum of the terms of one group."""
        writer, schedule = self.writer, self.schedule
        group, part = grid
        dtype = schedule.dtype_of_row(row)
        item = writer.loop("item", size=self.items, tag="l.0")
        # all items of all groups take neighbouring terms at each step
        n_items, first = self.items * self.parts, f"{item} + {self.items}*{part}"
        step = writer.loop("step", f"{first} + {n_items}*{{}} < {self.summed.size}")
        value = p.Sum((var(item), self.items * var(part), n_items * var(step)))
        at = {**self.result.unravel(var(group)), **self.summed.unravel(value)}
        product = calls_product(schedule, schedule.rows[row], at)
        total, last = add_up(writer, dtype, product, [*grid, item], [step])
        total, last = self._add_in_tree(row, self.items, item, grid, total, [last])
        only = writer.loop("lane", size=1, tag="l.0")
        entry = partials[var(part), var(group)]
        return writer.assign("part", entry, total, [*grid, only], [last])

    def _add_parts(
        self, row: int, group: str, partials: Expression, after: list[str]
    ) -> None:
        """The sum of the parts, stored in the output."""
        item = self.writer.loop("item", size=self.parts, tag="l.0")
        value = partials[var(item), var(group)]
        total, last = self._add_in_tree(row, self.parts, item, (group,), value, after)
        only = self.writer.loop("lane", size=1, tag="l.0")
        at = self.result.unravel(var(group))
        self.writer.store(row, total, at, [group, only], [last])

    def _add_in_tree(
        self,
        row: int,
        n_items: int,
        item: str,
        grid: Names,
        value: Expression,
        after: list[str],
    ) -> tuple[Expression, str]:
        """The sum of a value of every work-item, and the id of the last step."""
        writer, dtype = self.writer, self.schedule.dtype_of_row(row)
        values = var(writer.array("own", (n_items,), dtype, is_shared=True))
        last = writer.assign("share", values[var(item)], value, [*grid, item], after)
        last = _halve(writer, lambda lane: values[lane], n_items, grid, last)
        return values[0], last


def _split_space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    is_long = volume(einsum, tuple(einsum.summation_indices)) >= MIN_SPLIT_TERMS
    fits = is_long and has_plain_dtype(einsum)
    if not fits or _output_and_sum(einsum, einsum.extents) is None:
        return None
    return {"items": (256, 128, 512), "parts": (128, 32, 512, 8)}


def _split_cost(
    einsum: BatchedEinsum, parameters: Parameters, machine: Machine
) -> float:
    """Two launches; the second one reads what the first one wrote."""
    assert machine.gpu is not None
    items, parts = number(parameters, "items"), number(parameters, "parts")
    flats = _output_and_sum(einsum, einsum.extents)
    assert flats is not None
    result, summed = flats
    itemsize, n_rows = itemsize_of(einsum), einsum.batch_size
    # of a work-item, rounded up: the last step may not be full
    n_groups, n_terms = result.n_values * parts, -(-summed.n_values // (items * parts))
    lanes = [summed.unravel_number(k) for k in range(min(WARP, summed.n_values))]
    read = n_terms * group_bytes(einsum, summed.box_of(items))
    halvings = log2(items)
    cycles = warp_cycles(einsum, lanes, n_terms) + BARRIER_CYCLES * halvings
    first = LaunchWork(
        n_groups=n_groups,
        n_items=items,
        itemsize=itemsize,
        multiply_adds=n_groups * items * n_terms * factors_of(einsum),
        requests=n_groups * items / WARP * cycles,
        cached_bytes=n_groups * read,
        distinct_bytes=sum(distinct_bytes(einsum)),
        steps=n_terms + halvings,
        shared_bytes=items * itemsize * n_rows,
    )
    n_bytes = n_groups * itemsize * n_rows
    second = LaunchWork(
        n_groups=result.n_values,
        n_items=parts,
        itemsize=itemsize,
        multiply_adds=n_groups * n_rows,
        requests=n_groups / WARP * BARRIER_CYCLES * log2(parts),
        cached_bytes=n_bytes,
        distinct_bytes=n_bytes,
        steps=1 + log2(parts),
        shared_bytes=parts * itemsize * n_rows,
    )
    return launch_s(machine.gpu, first) + launch_s(machine.gpu, second)


GPU_SPLIT_SUM = register(
    Transform(
        "gpu_split_sum",
        1,
        "few results of long sums, which work-groups share",
        space_of_parts(_split_space, proposes_all=True),
        gpu_split_sum,
        _split_cost,
        devices=GPUS,
    )
)
