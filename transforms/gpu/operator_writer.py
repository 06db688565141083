"""Writes the loops of a product of elements with a matrix, by blocks in registers.

Lanes go along the elements, workers along the rows of the matrix; a work-item has
``columns`` elements, ``lanes`` apart, and ``rows`` neighbouring rows::

                 elements    l0  l1  l2 ... | l0  l1  l2 ...       columns = 2
    rows of D   worker 0     ##  .   .      | ##  .   .            rows = 2
                             ##  .   .      | ##  .   .
                worker 1     .   .   .      | .   .   .

At each step of the sum it reads ``rows`` entries of the matrix, the same for all lanes,
and ``columns`` of the tile, neighbours for neighbouring lanes, for their product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu.grid import ElementGroup, add_up
from feinsum.transforms.gpu.layouts import clamped
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number


@dataclass(frozen=True)
class _Block:
    """Loops over the sums of a work-item.

    Attributes:
        loops: over deferred indices, rows and elements.
        sums: the place of a sum in its array.
        points: of these; the element counts within its group.
    """

    loops: list[str]
    sums: tuple[Expression, ...]
    points: dict[str, Expression]


class OperatorWriter(ElementGroup):
    """Writes the loops; see :func:`feinsum.transforms.gpu.operators.gpu_operator`."""

    def __init__(
        self, schedule: Schedule, steps: Steps, parameters: Parameters
    ) -> None:
        self.n_lanes = number(parameters, "lanes")
        self.n_columns = number(parameters, "columns")
        super().__init__(schedule, steps.element, self.n_lanes * self.n_columns)
        self.steps, writer = steps, self.writer
        self.n_rows = number(parameters, "rows")
        self.is_matrix_staged = bool(parameters["stage_matrix"])
        self.is_output_staged = bool(parameters["stage_output"])
        self.flat_rows = self.flat(steps.rows)
        self.n_matrix_rows = self.volume(steps.rows)
        self.n_workers = -(-self.n_matrix_rows // self.n_rows)
        self.n_items = self.n_lanes * self.n_workers
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
                    matrices[name] = self._stage_matrix(name)
        dtype = self.schedule.dtype_of_row(0)
        shape = [self.length(i) for i in steps.tile]
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

    def _stage_matrix(self, name: str) -> tuple[str, str]:
        """The array of a matrix, rows side by side, and what fills it."""
        writer, schedule, steps = self.writer, self.schedule, self.steps
        span = schedule.spans[name]
        inner = (*steps.contracted, *steps.deferred)
        array = writer.array(
            f"{name}_tile",
            (*(self.length(i) for i in inner), self.n_workers * self.n_rows),
            schedule.dtypes[name],
            is_shared=True,
        )
        *outside, slow, fast = ("", *span)[-max(len(span), 2) :]
        extra = {i: writer.loop(i, size=self.length(i)) for i in outside}
        loops, points = self._share_points(slow, (fast,))
        points |= {i: var(iname) for i, iname in extra.items()}
        value = var(schedule.rules[name])(*(points[i] for i in span))
        entry = var(array)[(*(points[i] for i in inner), self.flat_rows.ravel(points))]
        loops = [*self.around, *extra.values(), *loops]
        return array, writer.assign("load", entry, value, loops)

    def _share_points(
        self, slow: str, fast: Names
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loops in which work-items take points, neighbours along the last index.

        As many values of ``slow`` are taken at a time as there are work-items for:
        then no index is divided in a loop.
        """
        writer, volume = self.writer, self.volume(fast)
        item = f"({self.lane} + {self.n_lanes}*{self.worker})"
        flat = self.flat(fast)
        at_once = self.n_items // volume
        if not at_once:
            steps = self._steps(slow, "{0}")
            turn = writer.loop("turn", f"{item} + {self.n_items}*{{}} < {volume}")
            points = flat.unravel(p.Sum((self.item, self.n_items * var(turn))))
            return [*steps, turn], {**points, slow: var(steps[0])}
        # work-items beyond a whole number of values idle
        idle = f"{item} + 0*{{0}} < {at_once * volume}"
        loops = self._steps(slow, f"{item} + {at_once * volume}*{{0}}", volume, idle)
        value = p.Sum((p.FloorDiv(self.item, volume), at_once * var(loops[0])))
        return loops, {**flat.unravel(p.Remainder(self.item, volume)), slow: value}

    def _steps(self, index: str, value: str, times: int = 1, *limits: str) -> list[str]:
        """A loop while an index is one within the group, and below its extent.

        The extent of elements has a loop of its own, which is entered once or not at
        all: else Loopy takes it for the bound of the loop, and most steps do nothing.

        Args:
            value: so many times the index, rounded up, with ``{0}`` for the loop.
        """
        writer = self.writer
        within = f"{value} < {times * self.length(index)}"
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
        loops, points = self._share_tile(early)
        others = [i for i in steps.tile if i not in points]
        sums = [self.length(i) for i in others]
        total = var(writer.array("total", sums or (), dtype))

        def of_others() -> tuple[list[str], dict[str, Expression], Expression]:
            inames = [writer.loop(i, size=self.length(i), tag="unr") for i in others]
            at = tuple(map(var, inames))
            of_total = dict(zip(others, at, strict=True))
            return inames, {**points, **of_total}, total[at] if at else total

        def of_tile(at: Mapping[str, Expression]) -> Expression:
            return tile[(*(at[i] for i in steps.tile), at[steps.element])]

        inames, at, entry = of_others()
        if not steps.gathered:
            value = calls_product(schedule, early, self._of_all(at))
            return writer.assign("fill", of_tile(at), value, [*loops, *inames], before)
        last = writer.assign("zero", entry, dtype.type(0), [*loops, *inames], before)
        gathered = {i: writer.loop(i, size=self.length(i)) for i in steps.gathered}
        inames, at, entry = of_others()
        at |= {i: var(iname) for i, iname in gathered.items()}
        value = p.Sum((entry, calls_product(schedule, early, self._of_all(at))))
        inside = [*loops, *gathered.values(), *inames]
        last = writer.assign("add", entry, value, inside, [last])
        inames, at, entry = of_others()
        return writer.assign("fill", of_tile(at), entry, [*loops, *inames], [last])

    def _share_tile(
        self, early: Sequence[str]
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loops over a tile, and the points in them.

        Of the indices of the largest operand those from the element on are dealt out as
        one. If the element is the last, it goes to the lanes, and the one before to the
        workers.
        """
        writer, steps = self.writer, self.steps
        spans = [self.schedule.spans[name] for name in early]
        span = max(spans, key=lambda s: prod(map(self.length, s)))
        span = tuple(i for i in span if i in steps.tile or i == steps.element)
        at = span.index(steps.element)
        tail = span[at:]
        if len(tail) > 1:
            outside = span[:at]
            loops, points = self._share_points(steps.element, tail[1:])
        else:
            outside, nearest = span[: max(at - 1, 0)], span[max(at - 1, 0) : at]
            loops = self._steps(steps.element, self._lane_of("{0}"))
            value = var(self.lane) + self.n_lanes * var(loops[0])
            points = {steps.element: value}
            for index in nearest:
                of_worker = f"{self.worker} + {self.n_workers}*{{}}"
                turn = writer.loop("turn", f"{of_worker} < {self.length(index)}")
                points[index] = var(self.worker) + self.n_workers * var(turn)
                loops.append(turn)
        extra = {i: writer.loop(i, size=self.length(i)) for i in outside}
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
        outer = {i: writer.loop(i, size=self.length(i)) for i in steps.outer}
        around = [*self.around, *outer.values()]
        shape = [self.length(i) for i in steps.deferred]
        shape += [self.n_rows, self.n_columns]
        acc = var(writer.array("acc", shape, dtype))
        block = self._block()
        zero = writer.assign(
            "zero", acc[block.sums], dtype.type(0), [*around, *block.loops]
        )
        sums = {i: writer.loop(i, size=self.length(i)) for i in steps.contracted}
        block = self._block()
        at = {
            **block.points,
            **{i: var(iname) for i, iname in {**outer, **sums}.items()},
        }
        entry = tile[(*(at[i] for i in steps.tile), at[steps.element])]
        after = [zero, *before]
        if name in matrices:
            array, load = matrices[name]
            inner = (*steps.contracted, *steps.deferred)
            factor = var(array)[(*(at[i] for i in inner), block.points[""])]
            after.append(load)
        else:
            at |= self.flat_rows.unravel(self._existing(block.points[""]))
            factor = var(schedule.rules[name])(*(at[i] for i in schedule.spans[name]))
        # in the order of the operands
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
        sums = {
            i: writer.loop(i, size=self.length(i), tag="unr") for i in steps.deferred
        }
        start = f"{self.n_elements}*{self.group}"
        limits = [f"{start} + {self._lane_of('{}')} < {self.extent}"]
        limits = limits if is_bounded else []
        column = writer.loop("column", *limits, size=self.n_columns, tag="unr")
        of_worker = f"{self.n_rows}*{self.worker} + {{}}"
        limits = [f"{of_worker} < {self.n_matrix_rows}"] if is_bounded else []
        row = writer.loop("row", *limits, size=self.n_rows, tag="unr")
        points: dict[str, Expression] = {i: var(iname) for i, iname in sums.items()}
        points[steps.element] = var(self.lane) + self.n_lanes * var(column)
        points[""] = self.n_rows * var(self.worker) + var(row)
        return _Block(
            [*sums.values(), column, row],
            (*map(var, sums.values()), var(row), var(column)),
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
        fan = {i: writer.loop(i, size=self.length(i)) for i in steps.fan}
        around = [*self.around, *outer.values(), *fan.values()]
        named = {i: var(iname) for i, iname in {**outer, **fan}.items()}
        block = self._block(is_bounded=True)
        n_deferred = len(steps.deferred)
        sums, inside = block.loops[:n_deferred], block.loops[n_deferred:]
        points = {**block.points, **named, **self.flat_rows.unravel(block.points[""])}
        value, last = acc[block.sums], list(after)
        late = tuple(row[k] for k in steps.late)
        if late:
            dtype = self.schedule.dtype_of_row(k)
            at = self._of_all(points)
            value = p.Product((value, calls_product(self.schedule, late, at)))
            if sums:
                of_entry = [*around, *inside]
                value, add = add_up(writer, dtype, value, of_entry, sums, last)
                last = [add]
        if result is None:
            writer.store(k, value, self._of_all(points), [*around, *inside], last)
            return
        entry = result[points[steps.element], block.points[""]]
        last += self.schedule.instructions[:k][-1:]  # the row before reads `result`
        share = writer.assign("share", entry, value, [*around, *inside], last)
        loops, of_store = self._share_points(steps.element, steps.rows)
        points = {**named, **of_store}
        writer.store(
            k, result[points[steps.element], self.flat_rows.ravel(of_store)],
            self._of_all(points), [*around, *loops], [share],
        )  # fmt: skip

    def _existing(self, row: Expression) -> Expression:
        """The row, or the last one for a work-item that has none."""
        n = self.n_matrix_rows
        return row if self.n_workers * self.n_rows == n else clamped(row, n)

    def _of_all(self, points: Mapping[str, Expression]) -> dict[str, Expression]:
        return self.points_of_all(points, self.group)
