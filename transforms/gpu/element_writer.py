"""Writes the loops of batches over one long index, all that is shared in tiles.

A group has a few elements; its work-items are a grid of elements by workers. For the
gradient ``xre,rij,ej->xei``, contracted as ``D u`` and then with J::

    J_tile, u_tile (and D_tile)      loaded by all, neighbours along the last index
    barrier
    product_tile[r, i, e]            sums over j: element e, worker i, i + workers, ...
    barrier
    out[x, e, i]                     sums over r, of ``rows`` sums in registers at once

Tiles have the elements last if neighbouring work-items differ in the element, else
first: so neighbours read neighbours, in other banks of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.contraction.paths import pairwise_path
from feinsum.transforms.gpu.grid import ElementGroup
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, text, typical

LANES = ("element", "row")
"""The index in which neighbouring work-items differ."""


class _SumLoops(NamedTuple):
    """How the free indices of a sum are dealt out.

    Attributes:
        loops: around a block of sums that a work-item has in registers.
        points: the values of indices in them.
        n_sums: of a block.
        block: makes a loop over a block, and the value of its index.
    """

    loops: list[str]
    points: dict[str, Expression]
    n_sums: int
    block: Callable[[], tuple[str, dict[str, Expression]]]


@dataclass(frozen=True)
class _Value:
    """An operand, or a product of some, as a function of indices.

    Attributes:
        at: from the value of each index to an expression; elements are counted
            within their group.
        after: what computes it.
    """

    span: Names
    dtype: np.dtype[np.generic]
    at: Callable[[Mapping[str, Expression]], Expression]
    after: tuple[str, ...]


class _Axis(NamedTuple):
    """Work-items of a group along one axis."""

    tag: str
    n_items: int


class ElementWriter(ElementGroup):
    """Writes the loops; see :func:`feinsum.transforms.gpu.elements.gpu_elements`."""

    def __init__(self, schedule: Schedule, parameters: Parameters) -> None:
        super().__init__(
            schedule, text(parameters, "element"), number(parameters, "elements")
        )
        self.rows = number(parameters, "rows")
        self.is_staged = bool(parameters["stage_matrices"])
        self.is_by_element = parameters["lane"] == LANES[0]
        fast, slow = ("l.0", "l.1") if self.is_by_element else ("l.1", "l.0")
        self.of_elements = _Axis(fast, self.n_elements)
        self.of_workers = _Axis(slow, number(parameters, "workers"))
        self.items: dict[str, str] = {}
        self.group = self.writer.loop(
            "group", f"{self.n_elements}*{{}} < {self.extent}", tag="g.0"
        )

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        # products of the same values are computed once for all rows of the batch
        computed: dict[tuple[str, ...], _Value] = {}
        for operand in self.schedule.operands:
            computed[operand,] = self._operand(operand)
        for k, row in enumerate(self.schedule.rows):
            values: list[tuple[str, ...]] = [(operand,) for operand in row]
            for first, second in self._path()[:-1]:
                pair = values[first], values[second]
                rest = [v for at, v in enumerate(values) if at not in (first, second)]
                # what is left decides over which indices this product is summed
                name = (*pair[0], "*", *pair[1], "|", *self._spans(rest))
                if name not in computed:
                    factors = [computed[value] for value in pair]
                    others = [computed[value] for value in rest]
                    computed[name] = self._product(factors, others)
                values = [*rest, name]
            self._store(k, [computed[value] for value in values])
        return self.writer.finished()

    def _path(self) -> Sequence[tuple[int, int]]:
        """Pairs in the order of fewest operations for the elements of a group."""
        schedule = self.schedule
        if len(schedule.terms) < 2:
            return [(0, 0)]
        # the order depends on extents: with few elements a group, matrices count for
        # more
        extents = {i: typical(extent) for i, extent in schedule.extents.items()}
        extents[self.element] = self.n_elements
        path = pairwise_path(schedule.terms, schedule.output, tuple(extents.items()))
        return [(first, second) for first, second in path]

    def _spans(self, values: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted("".join(value) for value in values))

    def _operand(self, name: str) -> _Value:
        """Copy an operand to shared memory, but for matrices that stay in the cache."""
        schedule = self.schedule
        span, dtype = schedule.spans[name], schedule.dtypes[name]
        rule = var(schedule.rules[name])

        def in_global_memory(points: Mapping[str, Expression]) -> Expression:
            at = self.points_of_all(points, self.group)
            return rule(*(at[index] for index in span))

        # all groups read a matrix: it is in the cache, and may be read there
        if not span or not (self.element in span or self.is_staged):
            return _Value(span, dtype, in_global_memory, ())
        entry = self._tile(f"{name}_tile", span, dtype)
        loops, points = self._load_loops(span)
        load = self.writer.assign(
            "load", entry(points), in_global_memory(points), loops
        )
        return _Value(span, dtype, entry, (load,))

    def _tile(
        self, stem: str, span: Names, dtype: np.dtype[np.generic]
    ) -> Callable[[Mapping[str, Expression]], Expression]:
        """The entry of a new shared array at a point.

        Neighbouring work-items have neighbouring entries.
        """
        others = tuple(index for index in span if index != self.element)
        elements = (self.element,) if self.element in span else ()
        axes = (*others, *elements) if self.is_by_element else (*elements, *others)
        shape = [self.length(index) for index in axes]
        array = var(self.writer.array(stem, shape, dtype, is_shared=True))
        return lambda points: array[tuple(points[index] for index in axes)]

    def _load_loops(self, span: Names) -> tuple[list[str], dict[str, Expression]]:
        """Loops over a tile: work-items along ``l.0`` read along the last index."""
        # `l.0` first: its neighbours get the last index, along which operands lie
        axes = sorted((self.of_elements, self.of_workers), key=lambda a: a.tag)
        others = sorted(span[:-1], key=lambda i: (-self.length(i), i))
        axis_of = dict(zip((span[-1], *others[:1]), axes, strict=False))
        loops, points = [self.group], {}
        for index, axis in axis_of.items():
            item = self._item(axis)
            value = f"{item} + {axis.n_items}*{{0}}"
            step = self.writer.loop("step", *self._limits(index, value))
            loops += [item, step]
            points[index] = p.Sum((var(item), axis.n_items * var(step)))
        # an operand of one axis is loaded by one row of work-items
        for axis in axes[len(axis_of) :]:
            loops.append(self._first_of(axis))
        for index in others[1:]:
            iname = self.writer.loop(index, *self._limits(index, "{0}"))
            loops.append(iname)
            points[index] = var(iname)
        return loops, points

    def _item(self, axis: _Axis) -> str:
        """The work-items, in one loop for all statements: Loopy's code generator takes
        time for every loop of work-items.
        """
        if axis.tag not in self.items:
            item = self.writer.loop("item", size=axis.n_items, tag=axis.tag)
            self.items[axis.tag] = item
        return self.items[axis.tag]

    def _first_of(self, axis: _Axis) -> str:
        """A loop that the first work-item alone enters."""
        return self.writer.loop("item", size=1, tag=axis.tag)

    def _limits(self, index: str, value: str) -> list[str]:
        """That a value, counted within the group, is one of the index."""
        # within the group, and within the whole
        limits = [f"{value} < {self.length(index)}"]
        if index == self.element:
            start = f"{self.n_elements}*{self.group}"
            limits.append(f"{start} + {value} < {self.extent}")
        return limits

    def _product(self, pair: Sequence[_Value], rest: Sequence[_Value]) -> _Value:
        """The product of two values, in shared memory.

        It is summed over the indices that neither the output nor another value has.
        """
        outside = set(self.schedule.output).union(*(value.span for value in rest))
        joint = dict.fromkeys(i for value in pair for i in value.span)
        free = tuple(index for index in joint if index in outside)
        dtype = np.dtype(np.result_type(*(value.dtype for value in pair)))
        entry = self._tile("product_tile", free, dtype)
        stored: list[str] = []

        def store(
            value: Expression,
            points: Mapping[str, Expression],
            loops: list[str],
            after: list[str],
        ) -> None:
            stored.append(
                self.writer.assign("share", entry(points), value, loops, after)
            )

        summed = tuple(index for index in joint if index not in outside)
        self._sum(pair, free, summed, dtype, store, is_last=False)
        return _Value(free, dtype, entry, tuple(stored))

    def _store(self, row: int, values: Sequence[_Value]) -> None:
        """The last product, stored in the output."""
        schedule = self.schedule

        def store(
            value: Expression,
            points: Mapping[str, Expression],
            loops: list[str],
            after: list[str],
        ) -> None:
            at = self.points_of_all(points, self.group)
            self.writer.store(row, value, at, loops, after)

        joint = dict.fromkeys(i for value in values for i in value.span)
        summed = tuple(index for index in joint if index not in schedule.output)
        dtype = schedule.dtype_of_row(row)
        self._sum(values, schedule.output, summed, dtype, store, is_last=True)

    def _sum(
        self,
        values: Sequence[_Value],
        free: Names,
        summed: Names,
        dtype: np.dtype[np.generic],
        store: Callable[..., None],
        *,
        is_last: bool,
    ) -> None:
        """One sum for each value of the free indices, ``rows`` of them at a time."""
        writer = self.writer
        around = self._sum_loops(free, is_last=is_last)
        acc = var(writer.array("acc", (around.n_sums,), dtype))
        # all sums of a block, also those beyond the end, which are only not stored
        every = writer.loop("r", size=around.n_sums, tag="unr")
        zero = writer.assign(
            "zero", acc[var(every)], dtype.type(0), [*around.loops, every]
        )
        sums = {i: writer.loop(i, size=self.length(i)) for i in summed}
        r, of_block = around.block()
        of_sums = {i: var(iname) for i, iname in sums.items()}
        at = {**around.points, **of_block, **of_sums}
        factors = tuple(value.at(at) for value in values)
        term = factors[0] if len(factors) == 1 else p.Product(factors)
        add = writer.assign(
            "add",
            acc[var(r)],
            p.Sum((acc[var(r)], term)),
            [*around.loops, *sums.values(), r],
            [zero, *(insn for value in values for insn in value.after)],
        )
        r, of_block = around.block()
        store(acc[var(r)], {**around.points, **of_block}, [*around.loops, r], [add])

    def _sum_loops(self, free: Names, *, is_last: bool) -> _SumLoops:
        """Elements and the longest other index go to work-items, the rest to loops."""
        writer, n_workers = self.writer, self.of_workers.n_items
        points: dict[str, Expression] = {}
        loops = [self.group]
        if self.element not in free:
            loops.append(self._first_of(self.of_elements))
        else:
            item = self._item(self.of_elements)
            points[self.element] = var(item)
            loops.append(item)
            if is_last:
                # elements beyond the last are summed as well, and only not stored
                limits = self._limits(self.element, f"{item} + {{0}}")
                loops.append(writer.loop("once", *limits, size=1))
        others = sorted(
            (i for i in free if i != self.element), key=lambda i: (-self.length(i), i)
        )
        if not others:
            loops.append(self._first_of(self.of_workers))
            return _SumLoops(
                loops, points, 1, lambda: (writer.loop("r", size=1, tag="unr"), {})
            )
        # the longest index is dealt out, as it leaves the fewest workers idle
        worker = self._item(self.of_workers)
        loops.append(worker)
        length, stride = self.length(others[0]), n_workers * self.rows
        step = writer.loop("step", f"{worker} + {stride}*{{}} < {length}")
        rest = {
            index: writer.loop(index, size=self.length(index)) for index in others[1:]
        }
        points |= {index: var(iname) for index, iname in rest.items()}
        start = p.Sum((var(worker), stride * var(step)))

        def block() -> tuple[str, dict[str, Expression]]:
            # the rows of a work-item are n_workers apart, so that workers side by side
            # have neighbouring ones
            limit = f"{worker} + {stride}*{step} + {n_workers}*{{}} < {length}"
            r = writer.loop("r", limit, size=self.rows, tag="unr")
            return r, {others[0]: p.Sum((start, n_workers * var(r)))}

        return _SumLoops([*loops, step, *rest.values()], points, self.rows, block)
