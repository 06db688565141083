"""Writes the loops of batches over one long index, all that is shared in tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.paths import pairwise_path
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, text, typical

LANES = ("element", "row")
"""What neighbouring work-items differ in."""


class _Dealt(NamedTuple):
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


@dataclass(frozen=True)
class _Axis:
    """Work-items of a group along one axis."""

    tag: str
    n_items: int


class ElementWriter:
    """Writes the loops; see :func:`feinsum.transforms.gpu.elements.gpu_elements`."""

    def __init__(self, schedule: Schedule, parameters: Parameters) -> None:
        self.schedule, self.writer = schedule, NestWriter(schedule)
        self.element = text(parameters, "element")
        self.n_elements = number(parameters, "elements")
        self.rows = number(parameters, "rows")
        self.is_staged = bool(parameters["stage_matrices"])
        self.is_by_element = parameters["lane"] == LANES[0]
        fast, slow = ("l.0", "l.1") if self.is_by_element else ("l.1", "l.0")
        self.of_elements = _Axis(fast, self.n_elements)
        self.of_workers = _Axis(slow, number(parameters, "workers"))
        self.items: dict[str, str] = {}
        self.extent = schedule.extents[self.element]
        self.group = self.writer.loop(
            "group", f"{self.n_elements}*{{}} < {self.extent}", tag="g.0"
        )

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        known: dict[tuple[str, ...], _Value] = {}
        for operand in self.schedule.operands:
            known[operand,] = self._operand(operand)
        for k, row in enumerate(self.schedule.rows):
            values: list[tuple[str, ...]] = [(operand,) for operand in row]
            for first, second in self._path()[:-1]:
                pair = values[first], values[second]
                rest = [v for at, v in enumerate(values) if at not in (first, second)]
                # what is left decides over which indices this product is summed
                name = (*pair[0], "*", *pair[1], "|", *self._spans(rest))
                if name not in known:
                    known[name] = self._product([known[v] for v in pair], rest, known)
                values = [*rest, name]
            self._store(k, [known[value] for value in values])
        return self.writer.finished()

    def _path(self) -> Sequence[tuple[int, int]]:
        """Pairs in the order of fewest operations for the elements of a group."""
        schedule = self.schedule
        if len(schedule.terms) < 2:
            return [(0, 0)]
        extents = {i: typical(extent) for i, extent in schedule.extents.items()}
        extents[self.element] = self.n_elements
        path = pairwise_path(schedule.terms, schedule.output, tuple(extents.items()))
        return [(first, second) for first, second in path]

    def _spans(self, values: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted("".join(value) for value in values))

    def _operand(self, name: str) -> _Value:
        """In shared memory, unless it has no element and is not to be copied."""
        schedule = self.schedule
        span, dtype = schedule.spans[name], schedule.dtypes[name]
        rule = var(schedule.rules[name])

        def given(points: Mapping[str, Expression]) -> Expression:
            return rule(*(self._global(points)[index] for index in span))

        if not span or not (self.element in span or self.is_staged):
            return _Value(span, dtype, given, ())
        array, place = self._tile(f"{name}_tile", span, dtype)
        loops, points = self._load_loops(span)
        load = self.writer.assign("load", array[place(points)], given(points), loops)
        return _Value(span, dtype, lambda points: array[place(points)], (load,))

    def _global(self, points: Mapping[str, Expression]) -> dict[str, Expression]:
        """The points, elements counted from the first of all."""
        found = dict(points)
        if self.element in found:
            start = self.n_elements * var(self.group)
            found[self.element] = p.Sum((start, found[self.element]))
        return found

    def _tile(
        self, stem: str, span: Names, dtype: np.dtype[np.generic]
    ) -> tuple[
        Expression, Callable[[Mapping[str, Expression]], tuple[Expression, ...]]
    ]:
        """A shared array; neighbouring work-items have neighbouring entries."""
        others = tuple(index for index in span if index != self.element)
        own = (self.element,) if self.element in span else ()
        axes = (*others, *own) if self.is_by_element else (*own, *others)
        shape = [self._length(index) for index in axes]
        array = var(self.writer.array(stem, shape, dtype, is_shared=True))
        return array, lambda points: tuple(points[index] for index in axes)

    def _length(self, index: str) -> int:
        """How many values an index has within a group."""
        extent = self.schedule.extents[index]
        if index == self.element:
            return self.n_elements
        assert isinstance(extent, int)
        return extent

    def _load_loops(self, span: Names) -> tuple[list[str], dict[str, Expression]]:
        """Loops over a tile: work-items along ``l.0`` read along the last index."""
        axes = sorted((self.of_elements, self.of_workers), key=lambda a: a.tag)
        others = sorted(span[:-1], key=lambda i: (-self._length(i), i))
        dealt = dict(zip((span[-1], *others[:1]), axes, strict=False))
        loops, points = [self.group], {}
        for index, axis in dealt.items():
            item = self._item(axis)
            value = f"{item} + {axis.n_items}*{{0}}"
            step = self.writer.loop("step", *self._limits(index, value))
            loops += [item, step]
            points[index] = p.Sum((var(item), axis.n_items * var(step)))
        for axis in axes[len(dealt) :]:
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
        limits = [f"{value} < {self._length(index)}"]
        if index == self.element:
            start = f"{self.n_elements}*{self.group}"
            limits.append(f"{start} + {value} < {self.extent}")
        return limits

    def _product(
        self,
        pair: Sequence[_Value],
        rest: Sequence[tuple[str, ...]],
        known: Mapping[tuple[str, ...], _Value],
    ) -> _Value:
        """The product of two values in shared memory, summed where nobody else asks."""
        outside = set(self.schedule.output).union(*(known[v].span for v in rest))
        joint = dict.fromkeys(i for value in pair for i in value.span)
        kept = tuple(index for index in joint if index in outside)
        dtype = np.dtype(np.result_type(*(value.dtype for value in pair)))
        array, place = self._tile("product_tile", kept, dtype)
        done: list[str] = []

        def store(
            value: Expression,
            points: Mapping[str, Expression],
            loops: list[str],
            after: list[str],
        ) -> None:
            done.append(
                self.writer.assign("share", array[place(points)], value, loops, after)
            )

        summed = tuple(index for index in joint if index not in outside)
        self._sum(pair, kept, summed, dtype, store, is_last=False)
        return _Value(kept, dtype, lambda points: array[place(points)], tuple(done))

    def _store(self, row: int, values: Sequence[_Value]) -> None:
        """The last product, stored in the output."""
        schedule = self.schedule

        def store(
            value: Expression,
            points: Mapping[str, Expression],
            loops: list[str],
            after: list[str],
        ) -> None:
            self.writer.store(row, value, self._global(points), loops, after)

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
        dealt = self._dealt(free, is_last=is_last)
        acc = var(writer.array("acc", (dealt.n_sums,), dtype))
        every = writer.loop("r", size=dealt.n_sums, tag="unr")
        zero = writer.assign(
            "zero", acc[var(every)], dtype.type(0), [*dealt.loops, every]
        )
        sums = {i: writer.loop(i, size=self._length(i)) for i in summed}
        r, own = dealt.block()
        at = {**dealt.points, **own, **{i: var(iname) for i, iname in sums.items()}}
        factors = tuple(value.at(at) for value in values)
        term = factors[0] if len(factors) == 1 else p.Product(factors)
        add = writer.assign(
            "add",
            acc[var(r)],
            p.Sum((acc[var(r)], term)),
            [*dealt.loops, *sums.values(), r],
            [zero, *(insn for value in values for insn in value.after)],
        )
        r, own = dealt.block()
        store(acc[var(r)], {**dealt.points, **own}, [*dealt.loops, r], [add])

    def _dealt(self, free: Names, *, is_last: bool) -> _Dealt:
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
            (i for i in free if i != self.element), key=lambda i: (-self._length(i), i)
        )
        if not others:
            loops.append(self._first_of(self.of_workers))
            return _Dealt(
                loops, points, 1, lambda: (writer.loop("r", size=1, tag="unr"), {})
            )
        worker = self._item(self.of_workers)
        loops.append(worker)
        length, stride = self._length(others[0]), n_workers * self.rows
        step = writer.loop("step", f"{worker} + {stride}*{{}} < {length}")
        rest = {
            index: writer.loop(index, size=self._length(index)) for index in others[1:]
        }
        points |= {index: var(iname) for index, iname in rest.items()}
        start = p.Sum((var(worker), stride * var(step)))

        def block() -> tuple[str, dict[str, Expression]]:
            limit = f"{worker} + {stride}*{step} + {n_workers}*{{}} < {length}"
            r = writer.loop("r", limit, size=self.rows, tag="unr")
            return r, {others[0]: p.Sum((start, n_workers * var(r)))}

        return _Dealt([*loops, step, *rest.values()], points, self.rows, block)
