"""Operators with one matrix for all elements: a product of matrices in registers.

Source: paper, section 7 (loop permutation, hoisting, tiles of the elements and of the
reference matrices in shared memory), with the blocks in registers of Nath, Tomov and
Dongarra, An Improved MAGMA GEMM for Fermi GPUs (2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import loopy as lp
import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.grid import GPUS, MOST_ITEMS, Flat
from feinsum.transforms.gpu_cost import (
    LINE_BYTES,
    OVERHEAD_CYCLES,
    WARP,
    Launch,
    group_bytes,
    itemsize_of,
    launch_s,
    request_cycles,
)
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, calls_product
from feinsum.transforms.registry import Parameters, Space, Transform, every, register
from feinsum.transforms.roles import (
    element_indices,
    has_real_dtype,
    number,
    text,
    typical,
)

__all__ = ["GPU_OPERATOR", "Steps"]

SHARED_BYTES = 96 << 10
"""Of a work-group: more than what a kernel may declare, and what GPUs from Volta on
give to a launch that asks for it, but for Turing.
"""
MOST_SUMS = 64
"""Of a work-item in registers."""
FEWEST_ITEMS = 32
STEPS_OF_ROW = 8
"""What a row waits for its tile and its sums, in loads."""


@dataclass(frozen=True)
class Steps:
    """An operator as a product of matrices, with what comes before and after it.

    For the gradient ``xre,rij,ej->xei``, D is the matrix, u comes early, J late. For
    the divergence ``xre,rij,xej->ei``, J and u both come early.

    Attributes:
        matrix: the position of the operand without elements.
        early: positions that are multiplied into a tile of the elements.
        late: positions that the sums in registers are multiplied with.
        rows: of the matrix, in the output.
        kept: of the matrix, in registers until ``late`` sums over them.
        contracted: of the matrix, summed with it.
        tile: of the tile, but for the element.
        gathered: summed in the tile.
        outer: of the tile and the output.
        fan: of the output, and late alone.
    """

    element: str
    matrix: int
    early: tuple[int, ...]
    late: tuple[int, ...]
    rows: tuple[str, ...]
    kept: tuple[str, ...]
    contracted: tuple[str, ...]
    tile: tuple[str, ...]
    gathered: tuple[str, ...]
    outer: tuple[str, ...]
    fan: tuple[str, ...]

    @classmethod
    def of(cls, einsum: BatchedEinsum, element: str) -> Steps | None:
        """Those of the fewest operations; None if the einsum is no such operator.

        >>> from feinsum import array, einsum
        >>> e = einsum("xre,rij,ej->xei", array("J", (3, 3, "N")),
        ...            array("D", (3, 10, 10)), array("u", ("N", 10)))
        >>> steps = Steps.of(e, "e")
        >>> steps.early, steps.late, steps.rows, steps.kept, steps.contracted, steps.fan
        ((2,), (0,), ('i',), ('r',), ('j',), ('x',))
        """
        without = [k for k, t in enumerate(einsum.inputs) if element not in t]
        if len(without) != 1:
            return None
        (matrix,) = without
        others = [k for k in range(einsum.n_operands) if k != matrix]
        found = [
            steps
            for n in range(1, len(others) + 1)
            for early in combinations(others, n)
            if (steps := cls._split(einsum, element, matrix, early)) is not None
        ]
        cost = {steps: steps.operations(einsum) for steps in found}
        return min(found, key=cost.__getitem__, default=None)

    @classmethod
    def _split(
        cls, einsum: BatchedEinsum, element: str, matrix: int, early: tuple[int, ...]
    ) -> Steps | None:
        late = tuple(
            k for k in range(einsum.n_operands) if k != matrix and k not in early
        )
        of_matrix, output = einsum.inputs[matrix], einsum.output
        of_early = _joint(einsum, early)
        of_late = _joint(einsum, late)
        rest = {*of_matrix, *output, *of_late}
        tile = tuple(i for i in of_early if i in rest and i != element)
        rows = tuple(i for i in output if i in of_matrix)
        kept = tuple(i for i in of_matrix if i in of_late and i not in output)
        outer = tuple(i for i in tile if i in output)
        inner = {*of_matrix} - {*rows}
        is_product = (
            bool(rows)
            and not {*rows} & {*tile}
            and {*tile} - {*outer} <= inner
            and {*of_late} - {element} <= {*of_matrix, *output}
        )
        if not is_product:
            return None
        return cls(
            element,
            matrix,
            early,
            late,
            rows,
            kept,
            tuple(i for i in of_matrix if i not in rows and i not in kept),
            tile,
            tuple(i for i in of_early if i not in rest),
            outer,
            tuple(i for i in output if i not in {*rows, *tile, element}),
        )

    def operations(self, einsum: BatchedEinsum) -> int:
        """Additions and multiplications of an element, about."""
        sums = {*self.rows, *self.kept, *self.outer}
        steps = [
            (len(self.early), {*self.tile, *self.gathered}),
            (2, {*sums, *self.contracted}),
            (2 * len(self.late), {*sums, *self.fan}),
        ]
        return sum(
            n * prod(typical(einsum.extents[i]) for i in indices)
            for n, indices in steps
        )


def _joint(einsum: BatchedEinsum, positions: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(i for k in positions for i in einsum.inputs[k]))


def gpu_operator(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply a tile of elements with the matrix, by blocks of sums in registers.

    Rewrite, for the gradient ``xre,rij,ej->xei``::

        for x, e, i:  out[x,e,i] = sum((r,j), J[x,r,e]*D[r,i,j]*u[e,j])

        for group, i_item, e_item in parallel:
            D_tile[:,:,:], u_tile[:,:] = D(...), u(...)          # all work-items
            (barrier)
            acc[:,:,:] = 0
            for j:  for r, i, e of the block:
                acc[r,i,e] += D_tile[j,r,i] * u_tile[j,e]
            for x:
                for e, i of the block:
                    result[e,i] = sum(r, J[x,r,e]*acc[r,i,e])
                (barrier)
                out[x,:,:] = result[:,:]                         # all work-items
                (barrier)

    A batch goes through the same tiles row after row.

    Parameters:
        element: the long index.
        lanes: work-items along the elements.
        columns: elements of a work-item.
        rows: rows of the matrix of a work-item.
        stage_matrix: copy the matrix to shared memory.
        stage_output: write results by way of shared memory, in the order in which
            they lie.
    """
    schedule = begin(t_unit, nest)
    steps = Steps.of(nest.einsum, text(parameters, "element"))
    if steps is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is no product of elements with one matrix"
        )
    return _Operator(schedule, steps, parameters).written().t_unit


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


class _Operator:
    """Writes the loops; see :func:`gpu_operator`."""

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
            writer.array("tile", (*shape, self.n_elements + 1), dtype, is_shared=True)
        )
        result = None
        if self.is_output_staged:
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
        last += self.schedule.instructions[:k][-1:]  # which reads it
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


def _space(workload: Workload) -> Space | None:
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    fits = {i: s for i in element_indices(einsum) if (s := Steps.of(einsum, i))}
    if not fits:
        return None
    in_order = all(_lies_in_order(einsum, steps) for steps in fits.values())
    return {
        "element": tuple(fits),
        "lanes": (32, 16, 64),
        "columns": (2, 1, 4),
        "rows": (4, 2, 5, 1, 3, 7, 8),
        "stage_matrix": (True, False),
        "stage_output": (True, False) if in_order else (False,),
    }


def _lies_in_order(einsum: BatchedEinsum, steps: Steps) -> bool:
    """Whether the rows of an element lie side by side, and elements after another."""
    tail = (steps.element, *steps.rows)
    return einsum.output[-len(tail) :] == tail


def _constraint(workload: Workload, parameters: Parameters) -> str | None:
    """Groups and sums for which every GPU since Volta has room."""
    einsum = workload.einsum
    steps = Steps.of(einsum, text(parameters, "element"))
    if steps is None:
        return "no product of elements with one matrix"
    lanes, columns, rows = (
        number(parameters, name) for name in ("lanes", "columns", "rows")
    )

    def volume(indices: Sequence[str]) -> int:
        return prod(typical(einsum.extents[i]) for i in indices)

    n_rows = volume(steps.rows)
    n_workers = -(-n_rows // rows)
    if not FEWEST_ITEMS <= lanes * n_workers <= MOST_ITEMS:
        return (
            f"{lanes * n_workers} work-items in a group, expected {FEWEST_ITEMS} to "
            f"{MOST_ITEMS}"
        )
    n_sums = volume(steps.kept) * rows * columns
    if n_sums > MOST_SUMS:
        return f"{n_sums} sums of a work-item, of {MOST_SUMS}"
    n_bytes = _shared_bytes(einsum, steps, parameters)
    if n_bytes > SHARED_BYTES:
        return f"{n_bytes} bytes of shared memory, of {SHARED_BYTES}"
    return None


def _shared_bytes(einsum: BatchedEinsum, steps: Steps, parameters: Parameters) -> int:
    """Of a work-group."""
    lanes, columns, rows = (
        number(parameters, name) for name in ("lanes", "columns", "rows")
    )

    def volume(indices: Sequence[str]) -> int:
        return prod(typical(einsum.extents[i]) for i in indices)

    n_rows, n_elements = volume(steps.rows), lanes * columns
    entries = volume(steps.tile) * (n_elements + 1)
    if parameters["stage_matrix"]:
        n_matrices = len({row[steps.matrix] for row in einsum.rows})
        inner = volume((*steps.contracted, *steps.kept))
        entries += n_matrices * inner * -(-n_rows // rows) * rows
    if parameters["stage_output"]:
        entries += n_elements * (n_rows | 1)
    return entries * einsum.operands[0].dtype.itemsize


def _starts(workload: Workload) -> Iterator[Parameters]:
    space = _space(workload)
    if space is None:
        return
    names = ("lanes", "columns", "rows", "stage_matrix")
    tried = ((32, 2, 5, True), (32, 1, 4, True), (32, 2, 4, False), (32, 4, 2, True),
             (16, 2, 2, True), (64, 1, 2, True), (32, 1, 2, False), (32, 4, 5, True),
             (16, 4, 4, True), (32, 2, 7, True), (64, 2, 4, True))  # fmt: skip
    for values in tried:
        yield {
            "element": space["element"][0],
            **dict(zip(names, values, strict=True)),
            "stage_output": space["stage_output"][0],
        }


def _fitting_starts(workload: Workload) -> tuple[Parameters, ...]:
    return tuple(s for s in _starts(workload) if _constraint(workload, s) is None)


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """A step of a sum reads a row of the matrix and a column of the tile."""
    assert machine.gpu is not None
    element = text(parameters, "element")
    steps = Steps.of(einsum, element)
    assert steps is not None
    lanes, columns, rows = (
        number(parameters, name) for name in ("lanes", "columns", "rows")
    )
    n_workers = -(-points(einsum, steps.rows) // rows)
    n_elements, n_items = lanes * columns, lanes * n_workers
    n_groups = -(-points(einsum, (element,)) // n_elements)
    itemsize, n_rows = itemsize_of(einsum), einsum.batch_size
    held = {i: points(einsum, (i,)) for i in einsum.indices} | {element: n_elements}
    n_bytes = group_bytes(einsum, held)
    n_sums = points(einsum, steps.kept) * rows * columns
    n_steps = points(einsum, (*steps.outer, *steps.contracted))
    of_step = points(einsum, steps.kept) * rows + columns * itemsize / 4
    filled = n_elements * points(einsum, (*steps.tile, *steps.gathered))
    near = [{element: k} for k in range(min(WARP, lanes))]
    n_results = points(einsum, (*steps.outer, *steps.fan)) * rows * columns
    late = sum(request_cycles(einsum, einsum.inputs[k], itemsize, near)
               for k in steps.late)  # fmt: skip
    stored = 1.0
    if not parameters["stage_output"]:
        stored = request_cycles(einsum, einsum.output, itemsize, near)
    of_results = n_results * (points(einsum, steps.kept) * late + 2 * stored)
    of_item = n_steps * (of_step + OVERHEAD_CYCLES) + of_results
    cycles = n_items / WARP * of_item + (len(steps.early) + 1) * filled / WARP
    written = n_items / WARP * n_results * stored * LINE_BYTES
    return launch_s(
        machine.gpu,
        Launch(
            n_groups=n_groups,
            n_items=n_items,
            itemsize=itemsize,
            multiply_adds=n_groups * n_items * n_rows
            * (n_steps * n_sums + n_results * points(einsum, steps.kept)),
            requests=n_groups * (n_rows * cycles + 2 * n_bytes / LINE_BYTES),
            cached_bytes=n_groups * (n_bytes + n_rows * written),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=STEPS_OF_ROW * n_rows,
            shared_bytes=_shared_bytes(einsum, steps, parameters),
            registers=min(255, 40 + itemsize // 4 * (n_sums + rows + columns)),
            chains=n_sums,
        ),
    )  # fmt: skip


GPU_OPERATOR = register(
    Transform(
        "gpu_operator",
        1,
        "one matrix for all elements, by blocks of sums in registers",
        _space,
        gpu_operator,
        _constraint,
        devices=GPUS,
        starts=_fitting_starts,
        cost=_cost,
        proposals=every(_space),
    )
)
