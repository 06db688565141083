"""Few results of long sums: work-groups share a sum, and a second launch adds theirs.

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
from feinsum.transforms.cost import Machine, distinct_bytes
from feinsum.transforms.gpu.cost import (
    WARP,
    Launch,
    factors_of,
    group_bytes,
    itemsize_of,
    launch_s,
    warp_cycles,
)
from feinsum.transforms.gpu.grid import GPUS, Flat, flat_of, has_plain_dtype
from feinsum.transforms.gpu.rows import BARRIER_CYCLES, halved
from feinsum.transforms.gpu.sides import place_in
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, calls_product
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import number, volume

LONG = 4096
"""Terms of a sum that are worth a second launch."""


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
    flats = flats_of(nest.einsum, schedule.extents)
    if flats is None:
        raise TransformError(
            f"{nest.einsum.subscripts} has no sum, or two run-time extents in it or in "
            "the output"
        )
    return _Split(schedule, *flats, parameters).written().t_unit


def flats_of(
    einsum: BatchedEinsum, extents: Mapping[str, Extent]
) -> tuple[Flat, Flat] | None:
    """The output and the sum, each as one index; None if either is not.

    >>> from feinsum.ir import array, einsum
    >>> norm = einsum("ij,ij->", array("A", (9, 8)), array("B", (9, 8)))
    >>> [flat.indices for flat in flats_of(norm, norm.extents)]
    [(), ('i', 'j')]
    """
    summed = sorted(einsum.summation_indices, key=place_in(einsum))
    flats = flat_of(einsum.output, extents), flat_of(summed, extents)
    if flats[0] is None or flats[1] is None or not summed:
        return None
    return flats[0], flats[1]


class _Split:
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
        partials = [self._partials(k) for k in rows]
        done = [self._part(k, [group, part], partials[k]) for k in rows]
        end, group = self.writer.launch_end(done), self._group()
        for k in rows:
            self._result(k, group, partials[k], [done[k], end])
        return self.writer.finished()

    def _group(self) -> str:
        return self.writer.loop("group", f"{{}} < {self.result.size}", tag="g.0")

    def _partials(self, row: int) -> Expression:
        """What one launch hands to the next."""
        shape = self.parts, parse(self.result.size)
        dtype = self.schedule.dtype_of_row(row)
        return var(self.writer.array("partial", shape, dtype, is_global=True))

    def _part(self, row: int, grid: list[str], partials: Expression) -> str:
        """The sum of the terms of one group."""
        writer, schedule = self.writer, self.schedule
        group, part = grid
        dtype = schedule.dtype_of_row(row)
        item = writer.loop("item", size=self.items, tag="l.0")
        n_items, own = self.items * self.parts, f"{item} + {self.items}*{part}"
        step = writer.loop("step", f"{own} + {n_items}*{{}} < {self.summed.size}")
        value = p.Sum((var(item), self.items * var(part), n_items * var(step)))
        at = {**self.result.points(var(group)), **self.summed.points(value)}
        product = calls_product(schedule, schedule.rows[row], at)
        total = var(writer.array("total", (), dtype))
        around = [*grid, item]
        last = writer.assign("zero", total, dtype.type(0), around)
        more = p.Sum((total, product))
        last = writer.assign("add", total, more, [*around, step], [last])
        first, last = self._added(row, self.items, item, grid, total, [last])
        only = writer.loop("lane", size=1, tag="l.0")
        place = partials[var(part), var(group)]
        return writer.assign("part", place, first, [*grid, only], [last])

    def _result(
        self, row: int, group: str, partials: Expression, after: list[str]
    ) -> None:
        """The sum of the parts, stored in the output."""
        item = self.writer.loop("item", size=self.parts, tag="l.0")
        value = partials[var(item), var(group)]
        first, last = self._added(row, self.parts, item, [group], value, after)
        only = self.writer.loop("lane", size=1, tag="l.0")
        at = self.result.points(var(group))
        self.writer.store(row, first, at, [group, only], [last])

    def _added(
        self,
        row: int,
        n_items: int,
        item: str,
        grid: list[str],
        value: Expression,
        after: list[str],
    ) -> tuple[Expression, str]:
        """The sum of a value of every work-item, and the id of the last step."""
        writer, dtype = self.writer, self.schedule.dtype_of_row(row)
        own = var(writer.array("own", (n_items,), dtype, is_shared=True))
        last = writer.assign("share", own[var(item)], value, [*grid, item], after)
        last = halved(writer, lambda lane: own[lane], n_items, grid, last)
        return own[0], last


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    is_long = volume(einsum, tuple(einsum.summation_indices)) >= LONG
    fits = is_long and has_plain_dtype(einsum)
    if not fits or flats_of(einsum, einsum.extents) is None:
        return None
    return {"items": (256, 128, 512), "parts": (128, 32, 512, 8)}


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Two launches; the second one reads what the first one wrote."""
    assert machine.gpu is not None
    items, parts = number(parameters, "items"), number(parameters, "parts")
    flats = flats_of(einsum, einsum.extents)
    assert flats is not None
    result, summed = flats
    itemsize, n_rows = itemsize_of(einsum), einsum.batch_size
    n_groups, n_terms = result.number() * parts, -(-summed.number() // (items * parts))
    lanes = [summed.at(k) for k in range(min(WARP, summed.number()))]
    read = n_terms * group_bytes(einsum, summed.held(items))
    halvings = log2(items)
    cycles = warp_cycles(einsum, lanes, n_terms) + BARRIER_CYCLES * halvings
    first = Launch(
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
    second = Launch(
        n_groups=result.number(),
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
        space_of_parts(_space, proposes_all=True),
        gpu_split_sum,
        _cost,
        devices=GPUS,
    )
)
