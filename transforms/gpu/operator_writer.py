"""Writes the loops of a product of elements with a matrix, by blocks in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, calls_product
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number


@dataclass(frozen=True)
class _Block:
    """Loops over the sums of a work-item.

    Attributes:
        loops: over kept indices, rows and elements.
        sums: the place of a sum in its array.
        points: of kept indices, rows and the element, which counts within its group.
    """

    loops: list[str]
    sums: tuple[Expression, ...]
    points: dict[str, Expression]


class OperatorWriter:
    """Writes the loops; see :func:`feinsum.transforms.gpu.operators.gpu_operator`."""

    def __init__(
        self, schedule: Schedule, steps: Steps, parameters: Parameters
    ) -> None:
        self.schedule, self.steps = schedule, steps
        self.writer = writer = NestWriter(schedule)
        self.n_lanes = number(parameters, "lanes")
        self.n_columns = number(parameters, "columns")
        self.n_rows = number(parameters, "rows")
        self.is_matrix_staged = bool(parameters["stage_matrix"])
        self.is_output_staged = bool(parameters["stage_output"])
        self.flat_rows = Flat(
            steps.rows, tuple(schedule.extents[i] for i in steps.rows)
        )
        self.n_matrix_rows = self._volume(steps.rows)
        self.n_workers = -(-self.n_matrix_rows // self.n_rows)
        self.n_items = self.n_lanes * self.n_workers
        self.n_elements = self.n_lanes * self.n_columns
        self.extent = schedule.extents[steps.element]
        self.group = writer.loop(
            "group", f"{self.n_elements}*{{}} < {self.extent}", tag="g.0"
        )
        self.lane = writer.loop("lane", size=self.n_lanes, tag="l.0")
        self.worker = writer.loop("worker", size=self.n_workers, tag="l.1")
        self.around = [self.group, self.worker, self.lane]
        self.item = p.Sum((var(self.lane), self.n_lanes * var(self.worker)))

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        writer, steps = self.writer, self.steps
        matrices: dict[str, tuple[str, str]] = {}
        if self.is_matrix_staged:
            for row in self.schedule.rows:
                name = row[steps.matrix]
                if name not in matrices:
                    matrices[name] = self._staged_matrix(name)
        dtype = self.schedule.dtype_of_row(0)
        shape = [self._length(i) for i in steps.tile]
        tile = var(
            # an odd stride: neighbours along other indices are in other banks
            writer.array("tile", (*shape, self.n_elements + 1), dtype, is_shared=True)
        )
        result = None
        if self.is_output_staged:
            # odd, so that lanes write one row of several elements to several banks
            shape = [self.n_elements, self.n_matrix_rows | 1]
            result = var(writer.array("result", shape, dtype, is_shared=True))
        before: list[str] = []
        for k, row in enumerate(self.schedule.rows):
            filled = self._fill(row, tile, dtype, before)
            before = [self._product(k, row, tile, result, matrices, [filled, *before])]
        return writer.finished()

    # what lies in shared memory

    def _staged_matrix(self, name: str) -> tuple[str, str]:
        """The array of a matrix, rows side by side, and what fills it."""
        writer, schedule, steps = self.writer, self.schedule, self.steps
        span = schedule.spans[name]
        inner = (*steps.contracted, *steps.kept)
        array = writer.array(
            f"{name}_tile",
            (*(self._length(i) for i in inner), self.n_workers * self.n_rows),
            schedule.dtypes[name],
            is_shared=True,
        )
        *outside, slow, fast = ("", *span)[-max(len(span), 2) :]
        extra = {i: writer.loop(i, size=self._length(i)) for i in outside}
        loops, points = self._dealt(slow, [fast])
        points |= {i: var(iname) for i, iname in extra.items()}
        value = var(schedule.rules[name])(*(points[i] for i in span))
        place = (*(points[i] for i in inner), self._row(points))
        loops = [*self.around, *extra.values(), *loops]
        return array, writer.assign("load", var(array)[place], value, loops)

    def _row(self, points: Mapping[str, Expression]) -> Expression:
        """The indices of rows as one, the last the fastest."""
        value: Expression = 0
        for index in self.steps.rows:
            value = value * self._length(index) + points[index]
        return value

    def _dealt(
        self, slow: str, fast: Sequence[str]
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loops in which work-items take points, neighbours along the last index.

        As many values of ``slow`` are taken at a time as there are work-items for:
        then no index is divided in a loop.
        """
        writer, volume = self.writer, self._volume(fast)
        item = f"({self.lane} + {self.n_lanes}*{self.worker})"
        flat = Flat(tuple(fast), tuple(self._length(i) for i in fast))
        at_once = self.n_items // volume
        if not at_once:
            own = self._steps(slow, "{0}")
            turn = writer.loop("turn", f"{item} + {self.n_items}*{{}} < {volume}")
            points = flat.points(p.Sum((self.item, self.n_items * var(turn))))
            return [*own, turn], {**points, slow: var(own[0])}
        idle = f"{item} + 0*{{0}} < {at_once * volume}"
        loops = self._steps(slow, f"{item} + {at_once * volume}*{{0}}", volume, idle)
        value = p.Sum((p.FloorDiv(self.item, volume), at_once * var(loops[0])))
        return loops, {**flat.points(p.Remainder(self.item, volume)), slow: value}

    def _steps(self, index: str, value: str, times: int = 1, *limits: str) -> list[str]:
        """A loop while an index is one within the group, and below its extent.

        The extent of elements has a loop of its own, which is entered once or not at
        all: else Loopy takes it for the bound of the loop, and most steps do nothing.

        Args:
            value: so many times the index, rounded up, with ``{0}`` for the loop.
        """
        writer = self.writer
        within = f"{value} < {times * self._length(index)}"
        step = writer.loop("step", *limits, within)
        if index != self.steps.element:
            return [step]
        start = f"{times * self.n_elements}*{self.group}"
        below = f"{start} + {value.format(step)} + 0*{{}} < {times}*{self.extent}"
        return [step, writer.loop("once", below, size=1)]

    def _fill(
        self,
        row: Sequence[str],
        tile: Expression,
        dtype: np.dtype[np.generic],
        before: Sequence[str],
    ) -> str:
        """Multiply what comes early, in the order in which most of it lies."""
        writer, schedule, steps = self.writer, self.schedule, self.steps
        early = tuple(row[k] for k in steps.early)
        loops, points = self._dealt_tile(early)
        others = [i for i in steps.tile if i not in points]
        sums = [self._length(i) for i in others]
        total = var(writer.array("total", sums or (), dtype))

        def of_others() -> tuple[list[str], dict[str, Expression], Expression]:
            inames = [writer.loop(i, size=self._length(i), tag="unr") for i in others]
            at = tuple(map(var, inames))
            own = dict(zip(others, at, strict=True))
            return inames, {**points, **own}, total[at] if at else total

        def placed(at: Mapping[str, Expression]) -> Expression:
            return tile[(*(at[i] for i in steps.tile), at[steps.element])]

        inames, at, entry = of_others()
        if not steps.gathered:
            value = calls_product(schedule, early, self._global(at))
            return writer.assign("fill", placed(at), value, [*loops, *inames], before)
        last = writer.assign("zero", entry, dtype.type(0), [*loops, *inames], before)
        gathered = {i: writer.loop(i, size=self._length(i)) for i in steps.gathered}
        inames, at, entry = of_others()
        at |= {i: var(iname) for i, iname in gathered.items()}
        value = p.Sum((entry, calls_product(schedule, early, self._global(at))))
        inside = [*loops, *gathered.values(), *inames]
        last = writer.assign("add", entry, value, inside, [last])
        inames, at, entry = of_others()
        return writer.assign("fill", placed(at), entry, [*loops, *inames], [last])

    def _dealt_tile(
        self, early: Sequence[str]
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loops over a tile, and the points in them.

        Of the indices of the largest operand those from the element on are dealt out as
        one. If the element is the last, it goes to the lanes, and the one before to the
        workers.
        """
        writer, steps = self.writer, self.steps
        spans = [self.schedule.spans[name] for name in early]
        span = max(spans, key=lambda s: prod(map(self._length, s)))
        own = [i for i in span if i in steps.tile or i == steps.element]
        at = own.index(steps.element)
        tail = own[at:]
        if len(tail) > 1:
            outside = own[:at]
            loops, points = self._dealt(steps.element, tail[1:])
        else:
            outside, nearest = own[: max(at - 1, 0)], own[max(at - 1, 0) : at]
            loops = self._steps(steps.element, self._lane_of("{0}"))
            value = var(self.lane) + self.n_lanes * var(loops[0])
            points = {steps.element: value}
            for index in nearest:
                of_worker = f"{self.worker} + {self.n_workers}*{{}}"
                turn = writer.loop("turn", f"{of_worker} < {self._length(index)}")
                points[index] = var(self.worker) + self.n_workers * var(turn)
                loops.append(turn)
        extra = {i: writer.loop(i, size=self._length(i)) for i in outside}
        points |= {i: var(iname) for i, iname in extra.items()}
        return [*self.around, *extra.values(), *loops], points

    def _lane_of(self, step: str) -> str:
        return f"{self.lane} + {self.n_lanes}*{step}"

    # the product

    def _product(
        self,
        k: int,
        row: Sequence[str],
        tile: Expression,
        result: Expression | None,
        matrices: Mapping[str, tuple[str, str]],
        before: Sequence[str],
    ) -> str:
        """Add up the blocks of a row, and store them; the last use of the tile."""
        writer, schedule, steps = self.writer, self.schedule, self.steps
        name, dtype = row[steps.matrix], schedule.dtype_of_row(k)
        outer = {i: writer.loop(i, size=self._length(i)) for i in steps.outer}
        around = [*self.around, *outer.values()]
        shape = [self._length(i) for i in steps.kept]
        shape += [self.n_rows, self.n_columns]
        acc = var(writer.array("acc", shape, dtype))
        block = self._block()
        zero = writer.assign(
            "zero", acc[block.sums], dtype.type(0), [*around, *block.loops]
        )
        sums = {i: writer.loop(i, size=self._length(i)) for i in steps.contracted}
        block = self._block()
        at = {
            **block.points,
            **{i: var(iname) for i, iname in {**outer, **sums}.items()},
        }
        entry = tile[(*(at[i] for i in steps.tile), at[steps.element])]
        after = [zero, *before]
        if name in matrices:
            array, load = matrices[name]
            inner = (*steps.contracted, *steps.kept)
            factor = var(array)[(*(at[i] for i in inner), block.points[""])]
            after.append(load)
        else:
            at |= self.flat_rows.points(self._clamped(block.points[""]))
            factor = var(schedule.rules[name])(*(at[i] for i in schedule.spans[name]))
        pair = (factor, entry) if steps.matrix < steps.early[0] else (entry, factor)
        add = writer.assign(
            "add",
            acc[block.sums],
            p.Sum((acc[block.sums], p.Product(pair))),
            [*around, *sums.values(), *block.loops],
            after,
        )
        self._store(k, row, acc, result, outer, [add])
        return add

    def _block(self, *, is_bounded: bool = False) -> _Block:
        """Unrolled loops over the sums of a work-item; bounded, those that exist."""
        writer, steps = self.writer, self.steps
        kept = {i: writer.loop(i, size=self._length(i), tag="unr") for i in steps.kept}
        start = f"{self.n_elements}*{self.group}"
        limits = [f"{start} + {self._lane_of('{}')} < {self.extent}"]
        limits = limits if is_bounded else []
        column = writer.loop("column", *limits, size=self.n_columns, tag="unr")
        own = f"{self.n_rows}*{self.worker} + {{}}"
        limits = [f"{own} < {self.n_matrix_rows}"] if is_bounded else []
        row = writer.loop("row", *limits, size=self.n_rows, tag="unr")
        points: dict[str, Expression] = {i: var(iname) for i, iname in kept.items()}
        points[steps.element] = var(self.lane) + self.n_lanes * var(column)
        points[""] = self.n_rows * var(self.worker) + var(row)
        return _Block(
            [*kept.values(), column, row],
            (*map(var, kept.values()), var(row), var(column)),
            points,
        )

    def _store(
        self,
        k: int,
        row: Sequence[str],
        acc: Expression,
        result: Expression | None,
        outer: Mapping[str, str],
        after: Sequence[str],
    ) -> None:
        """Multiply with what comes late, and write results where they belong."""
        writer, steps = self.writer, self.steps
        fan = {i: writer.loop(i, size=self._length(i)) for i in steps.fan}
        around = [*self.around, *outer.values(), *fan.values()]
        named = {i: var(iname) for i, iname in {**outer, **fan}.items()}
        block = self._block(is_bounded=True)
        n_kept = len(steps.kept)
        kept, inside = block.loops[:n_kept], block.loops[n_kept:]
        points = {**block.points, **named, **self.flat_rows.points(block.points[""])}
        value, last = acc[block.sums], list(after)
        late = tuple(row[k] for k in steps.late)
        if late:
            dtype = self.schedule.dtype_of_row(k)
            at = self._global(points)
            value = p.Product((value, calls_product(self.schedule, late, at)))
            if kept:
                total = var(writer.array("total", (), dtype))
                zero = writer.assign(
                    "zero", total, dtype.type(0), [*around, *inside], last
                )
                loops = [*around, *inside, *kept]
                add = writer.assign(
                    "add", total, p.Sum((total, value)), loops, [zero, *last]
                )
                value, last = total, [add]
        if result is None:
            writer.store(k, value, self._global(points), [*around, *inside], last)
            return
        place = result[points[steps.element], block.points[""]]
        last += self.schedule.instructions[:k][-1:]  # the row before reads `result`
        share = writer.assign("share", place, value, [*around, *inside], last)
        loops, dealt = self._dealt(steps.element, steps.rows)
        of_row = self._row(dealt)
        points = {**named, **dealt}
        loops = [*around, *loops]
        writer.store(
            k,
            result[points[steps.element], of_row],
            self._global(points),
            loops,
            [share],
        )

    def _clamped(self, row: Expression) -> Expression:
        """The row, or the last one for a work-item that has none."""
        n = self.n_matrix_rows
        if self.n_workers * self.n_rows == n:
            return row
        return p.If(p.Comparison(row, "<", n), row, n - 1)

    def _global(self, points: Mapping[str, Expression]) -> dict[str, Expression]:
        """The points, elements counted from the first of all."""
        start = self.n_elements * var(self.group)
        element = points[self.steps.element]
        return {**points, self.steps.element: p.Sum((start, element))}

    def _length(self, index: str) -> int:
        """How many values an index has within a group."""
        extent = self.schedule.extents[index]
        if index == self.steps.element:
            return self.n_elements
        assert isinstance(extent, int)
        return extent

    def _volume(self, indices: Sequence[str]) -> int:
        return prod(map(self._length, indices))
