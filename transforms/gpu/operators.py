"""Operators with one matrix for all elements: a product of matrices in registers.

Operands that are best multiplied first fill a tile of elements. The matrix multiplies
the tile, and the other operands multiply these sums.

Lanes are along the elements, workers along the rows of the matrix. A work-item has
``columns`` elements, ``lanes`` apart, and ``rows`` adjacent rows::

                 elements    l0  l1  l2 ... | l0  l1  l2 ...       columns = 2
    rows of D   worker 0     ##  .   .      | ##  .   .            rows = 2
                             ##  .   .      | ##  .   .
                worker 1     .   .   .      | .   .   .

In each step of the sum, it reads ``rows`` entries of the matrix, which are the same for
all lanes, and ``columns`` entries of the tile, which are contiguous across lanes. The
rows of a batch are computed one after another in each tile.

Source: paper, section 7 (loop permutation, hoisting, tiles of the elements and of the
reference matrices in shared memory), with the blocks in registers of Nath, Tomov and
Dongarra, An Improved MAGMA GEMM for Fermi GPUs (2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Gpu
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import (
    count_group_bytes,
    count_request_cycles,
    get_itemsize,
    predict_kernel_s,
)
from feinsum.transforms.gpu.families import (
    explain_items,
    explain_shared_bytes,
    list_starts,
    register_family,
)
from feinsum.transforms.gpu.layouts import clamp
from feinsum.transforms.gpu.operator_steps import OperatorSteps
from feinsum.transforms.gpu.tiles import GroupWriter, Point
from feinsum.transforms.primitives import Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters, Space, with_starts
from feinsum.transforms.roles import count_points, find_element_indices, has_real_dtype


def apply_gpu_operator(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply a tile of elements by the matrix, with blocks of sums in registers.

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

    Parameters:
        element: the long index.
        lanes: work-items along the elements.
        columns: elements of a work-item.
        rows: rows of the matrix of a work-item.
        stage_matrix: copy the matrix to shared memory.
        stage_output: write results through shared memory, in their order in memory.
    """
    schedule = begin(t_unit, nest)
    steps = OperatorSteps.of(nest.einsum, parameters["element"])
    if steps is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is no product of elements with one matrix"
        )
    return _Operator(schedule, steps, parameters).written().t_unit


class _Block(NamedTuple):
    """Loops over the sums of a work-item.

    Attributes:
        deferred: loops over deferred indices.
        inside: loops over elements and rows.
        sums: subscripts of a sum in its array.
        points: values of deferred indices and of the element, counted in its group.
        row: the row of the matrix.
    """

    deferred: list[str]
    inside: list[str]
    sums: tuple[Expression, ...]
    points: dict[str, Expression]
    row: Expression

    @property
    def loops(self) -> list[str]:
        return [*self.deferred, *self.inside]


class _Operator(GroupWriter):
    """Writes the loops; see :func:`apply_gpu_operator`."""

    def __init__(
        self, schedule: Schedule, steps: OperatorSteps, parameters: Parameters
    ) -> None:
        self.n_lanes, self.n_columns, self.n_rows = (
            parameters[name] for name in ("lanes", "columns", "rows")
        )
        super().__init__(schedule, steps.element, self.n_lanes * self.n_columns)
        self.steps = steps
        self.is_matrix_staged = bool(parameters["stage_matrix"])
        self.is_output_staged = bool(parameters["stage_output"])
        self.flat_rows = self.flat(steps.rows)
        self.n_matrix_rows = self.volume(steps.rows)
        self.n_workers = -(-self.n_matrix_rows // self.n_rows)
        self.n_items = self.n_lanes * self.n_workers
        self.loop_over_groups()
        self.lane = self.loop("lane", size=self.n_lanes, tag="l.0")
        self.worker = self.loop("worker", size=self.n_workers, tag="l.1")
        self.around = [self.group, self.worker, self.lane]
        self.item = p.Sum((var(self.lane), self.n_lanes * var(self.worker)))

    def written(self) -> Schedule:
        """Return the schedule with the nest replaced."""
        schedule, steps = self.schedule, self.steps
        matrices: dict[str, tuple[str, str]] = {}
        if self.is_matrix_staged:
            for name in dict.fromkeys(row[steps.matrix] for row in schedule.rows):
                matrices[name] = self._stage_matrix(name)
        dtype = schedule.get_row_dtype(0)
        shape = [self.length(i) for i in steps.tile]
        # an odd stride, so that neighbours along other indices are in different banks
        shape.append(self.n_elements + 1)
        self.tile = var(self.array("tile", shape, dtype, is_shared=True))
        self.result = None
        if self.is_output_staged:
            # odd, so that lanes write a row of several elements to different banks
            shape = [self.n_elements, self.n_matrix_rows | 1]
            self.result = var(self.array("result", shape, dtype, is_shared=True))
        before: list[str] = []
        for k, row in enumerate(schedule.rows):
            filled = self._fill(row, dtype, before)
            before = [self._multiply(k, row, matrices, [filled, *before])]
        return self.build()

    def _get_tile_entry(self, points: Point) -> Expression:
        return self.tile[(*(points[i] for i in self.steps.tile), points[self.element])]

    # shared memory

    def _stage_matrix(self, name: str) -> tuple[str, str]:
        """Copy a matrix to shared memory; return the array and the statement's id."""
        schedule, steps, span = self.schedule, self.steps, self.schedule.spans[name]
        inner = (*steps.contracted, *steps.deferred)
        shape = (*map(self.length, inner), self.n_workers * self.n_rows)
        array = self.array(f"{name}_tile", shape, schedule.dtypes[name], is_shared=True)
        *outside, slow, fast = ("", *span)[-max(len(span), 2) :]
        extra, of_extra = self.loop_over(outside)
        loops, points = self._loop_over_points(slow, (fast,))
        points |= of_extra
        value = schedule.multiply((name,), points)
        entry = var(array)[(*(points[i] for i in inner), self.flat_rows.ravel(points))]
        return array, self.assign("load", entry, value, [*self.around, *extra, *loops])

    def _loop_over_points(
        self, slow: str, fast: Names
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loop over points that work-items share, neighbours along the last index.

        Work-items cover as many values of ``slow`` at a time as they can: the indices
        of a work-item are then computed once, and not in the loop.
        """
        volume, flat = self.volume(fast), self.flat(fast)
        item = f"({self.lane} + {self.n_lanes}*{self.worker})"
        at_once = self.n_items // volume
        if not at_once:
            steps = self._loop_below_extent(slow, "{0}")
            turn = self.loop("turn", f"{item} + {self.n_items}*{{}} < {volume}")
            points = flat.unravel(p.Sum((self.item, self.n_items * var(turn))))
            return [*steps, turn], {**points, slow: var(steps[0])}
        # work-items beyond a whole number of values are idle
        idle = f"{item} + 0*{{0}} < {at_once * volume}"
        loops = self._loop_below_extent(
            slow, f"{item} + {at_once * volume}*{{0}}", volume, idle
        )
        value = p.Sum((p.FloorDiv(self.item, volume), at_once * var(loops[0])))
        return loops, {**flat.unravel(p.Remainder(self.item, volume)), slow: value}

    def _loop_below_extent(
        self, index: str, value: str, times: int = 1, *limits: str
    ) -> list[str]:
        """Loop while an index is within the group, and below its extent.

        A separate loop, entered at most once, checks the extent of elements: otherwise
        Loopy makes this extent the bound of the loop, and most steps do nothing.

        Args:
            index: the index.
            value: ``times`` times the index, rounded up, in isl's syntax, with ``{0}``
                for the iname of the loop.
            times: the factor of ``value``.
            limits: further conditions of the loop.
        """
        # a matrix of one axis has no slow index
        length = self.length(index) if index else 1
        within = f"{value} < {times * length}"
        step = self.loop("step", *limits, within)
        if index != self.element:
            return [step]
        start = f"{times * self.n_elements}*{self.group}"
        below = f"{start} + {value.format(step)} + 0*{{}} < {times}*{self.extent}"
        return [step, self.loop("once", below, size=1)]

    def _fill(self, row: Names, dtype: Any, before: Sequence[str]) -> str:
        """Fill the tile with the product of early operands; the largest is in order."""
        schedule, steps = self.schedule, self.steps
        early = tuple(row[k] for k in steps.early)
        loops, points = self._loop_over_tile(early)
        unrolled = [i for i in steps.tile if i not in points]
        inames, of_others = self.loop_over(unrolled, "unr")
        all_points = {**points, **of_others}
        if not steps.gathered:
            value = schedule.multiply(early, self.points_of_all(all_points))
            entry = self._get_tile_entry(all_points)
            return self.assign("fill", entry, value, [*loops, *inames], before)
        shape = tuple(map(self.length, unrolled))
        total = var(self.array("total", shape, dtype))

        def total_at(of_others: Point) -> Expression:
            return total[tuple(of_others.values())] if unrolled else total

        zero = self.assign(
            "zero", total_at(of_others), dtype.type(0), [*loops, *inames], before
        )
        gathered, of_gathered = self.loop_over(steps.gathered)
        inames, of_others = self.loop_over(unrolled, "unr")
        all_points = self.points_of_all({**points, **of_others, **of_gathered})
        entry = total_at(of_others)
        value = p.Sum((entry, schedule.multiply(early, all_points)))
        last = self.assign("add", entry, value, [*loops, *gathered, *inames], [zero])
        inames, of_others = self.loop_over(unrolled, "unr")
        target = self._get_tile_entry({**points, **of_others})
        return self.assign(
            "fill", target, total_at(of_others), [*loops, *inames], [last]
        )

    def _loop_over_tile(self, early: Names) -> tuple[list[str], dict[str, Expression]]:
        """Loop over a work-item's entries of a tile; return the loops and the point.

        Work-items share the indices of the largest operand from the element on. If the
        element is the last, lanes share it, and workers share the index before it.
        """
        steps = self.steps
        span = max((self.schedule.spans[name] for name in early), key=self.volume)
        span = tuple(i for i in span if i in steps.tile or i == self.element)
        axis = span.index(self.element)
        if len(span) > axis + 1:
            outside = span[:axis]
            loops, points = self._loop_over_points(self.element, span[axis + 1 :])
        else:
            outside, nearest = span[: max(axis - 1, 0)], span[max(axis - 1, 0) : axis]
            loops = self._loop_below_extent(self.element, self._format_lane("{0}"))
            points = {self.element: var(self.lane) + self.n_lanes * var(loops[0])}
            for index in nearest:
                limit = f"{{}} < {self.length(index)}"
                turn, points[index] = self.strided(
                    "turn", self.worker, self.n_workers, limit
                )
                loops.append(turn)
        extra, of_extra = self.loop_over(outside)
        return [*self.around, *extra, *loops], points | of_extra

    def _format_lane(self, step: str) -> str:
        return f"{self.lane} + {self.n_lanes}*{step}"

    # the product

    def _multiply(
        self,
        k: int,
        row: Names,
        matrices: Mapping[str, tuple[str, str]],
        before: Sequence[str],
    ) -> str:
        """Sum and store the blocks of a row; return the last statement on the tile."""
        schedule, steps = self.schedule, self.steps
        name, dtype = row[steps.matrix], schedule.get_row_dtype(k)
        outer, of_outer = self.loop_over(steps.outer)
        around = [*self.around, *outer]
        shape = [*map(self.length, steps.deferred), self.n_rows, self.n_columns]
        acc = var(self.array("acc", shape, dtype))
        block = self._loop_over_block()
        zero = self.assign(
            "zero", acc[block.sums], dtype.type(0), [*around, *block.loops]
        )
        sums, of_sums = self.loop_over(steps.contracted)
        block = self._loop_over_block()
        points = {**block.points, **of_outer, **of_sums}
        after = [zero, *before]
        if name in matrices:
            array, load = matrices[name]
            inner = (*steps.contracted, *steps.deferred)
            factor = var(array)[(*(points[i] for i in inner), block.row)]
            after.append(load)
        else:
            # work-items beyond the last row read that row
            is_full = self.n_workers * self.n_rows == self.n_matrix_rows
            existing = block.row if is_full else clamp(block.row, self.n_matrix_rows)
            of_matrix = points | self.flat_rows.unravel(existing)
            factor = schedule.multiply((name,), of_matrix)
        # in the order of the operands
        pair = (factor, self._get_tile_entry(points))
        pair = pair if steps.matrix < steps.early[0] else pair[::-1]
        add = self.assign(
            "add", acc[block.sums], p.Sum((acc[block.sums], p.Product(pair))),
            [*around, *sums, *block.loops], after,
        )  # fmt: skip
        self._store(k, row, acc, (outer, of_outer), [add])
        return add

    def _loop_over_block(self, *, is_bounded: bool = False) -> _Block:
        """Loop over the sums of a work-item; if bounded, only over those that exist."""
        sums, points = self.loop_over(self.steps.deferred, "unr")
        start = f"{self.n_elements}*{self.group}"
        limits = [f"{start} + {self._format_lane('{}')} < {self.extent}"]
        limits = limits if is_bounded else []
        column = self.loop("column", *limits, size=self.n_columns, tag="unr")
        of_worker = f"{self.n_rows}*{self.worker} + {{}}"
        limits = [f"{of_worker} < {self.n_matrix_rows}"] if is_bounded else []
        row = self.loop("row", *limits, size=self.n_rows, tag="unr")
        points[self.element] = var(self.lane) + self.n_lanes * var(column)
        return _Block(
            sums, [column, row], (*map(var, sums), var(row), var(column)), points,
            self.n_rows * var(self.worker) + var(row),
        )  # fmt: skip

    def _store(
        self,
        k: int,
        row: Names,
        acc: Expression,
        outer: tuple[list[str], Point],
        after: Sequence[str],
    ) -> None:
        """Multiply sums by the late operands, and store the results."""
        steps = self.steps
        fan, of_fan = self.loop_over(steps.fan)
        around = [*self.around, *outer[0], *fan]
        named = {**outer[1], **of_fan}
        block = self._loop_over_block(is_bounded=True)
        inside = [*around, *block.inside]
        points = {**block.points, **named, **self.flat_rows.unravel(block.row)}
        value, last = acc[block.sums], list(after)
        late = tuple(row[position] for position in steps.late)
        if late:
            calls = self.schedule.multiply(late, self.points_of_all(points))
            value = p.Product((value, calls))
            if block.deferred:
                dtype = self.schedule.get_row_dtype(k)
                value, add = self.add_up(dtype, value, inside, block.deferred, last)
                last = [add]
        if self.result is None:
            self.store(k, value, self.points_of_all(points), inside, last)
            return
        entry = self.result[points[self.element], block.row]
        last += self.schedule.instructions[:k][-1:]  # the row before reads `result`
        share = self.assign("share", entry, value, inside, last)
        loops, of_store = self._loop_over_points(self.element, steps.rows)
        stored = self.result[of_store[self.element], self.flat_rows.ravel(of_store)]
        store_points = self.points_of_all({**named, **of_store})
        self.store(k, stored, store_points, [*around, *loops], [share])


NAMES = ("lanes", "columns", "rows", "stage_matrix", "stage_output")


def _make_space(workload: Workload) -> Space | None:
    """Fit operators with a long element index and one matrix."""
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    fits = {
        i: s for i in find_element_indices(einsum) if (s := OperatorSteps.of(einsum, i))
    }
    if not fits:
        return None
    in_order = all(steps.has_results_in_order(einsum) for steps in fits.values())
    table = {
        "element": tuple(fits),
        "lanes": (32, 16, 64),
        "columns": (2, 1, 4),
        "rows": (4, 2, 5, 1, 3, 7, 8),
        "stage_matrix": (True, False),
        "stage_output": (True, False) if in_order else (False,),
    }

    def constraint(parameters: Parameters) -> str | None:
        return _find_excess(einsum, fits[parameters["element"]], parameters)

    starts = partial(list_starts, table, NAMES[:-1], h.OPERATOR_STARTS)
    return with_starts(Space(table, constraint), starts)


def _find_excess(
    einsum: BatchedEinsum, steps: OperatorSteps, parameters: Parameters
) -> str | None:
    """Explain which limit of GPUs since Volta is exceeded; None if none is."""
    lanes, columns, rows = (parameters[name] for name in NAMES[:3])
    n_items = lanes * -(-count_points(einsum, steps.rows) // rows)
    # more sums would spill to memory
    n_sums = count_points(einsum, steps.deferred) * rows * columns
    if n_sums > h.MAX_SUMS:
        return f"{n_sums} sums of a work-item, of {h.MAX_SUMS}"
    return explain_items(n_items, h.WARP) or explain_shared_bytes(
        _count_shared_bytes(einsum, steps, parameters), h.SHARED_BYTES_SM70
    )


def _count_shared_bytes(
    einsum: BatchedEinsum, steps: OperatorSteps, parameters: Parameters
) -> int:
    """Return the shared memory of a work-group, in bytes."""
    lanes, columns, rows = (parameters[name] for name in NAMES[:3])
    n_rows, n_elements = count_points(einsum, steps.rows), lanes * columns
    # one entry more, and an odd number of rows below: see `_Operator.written`
    entries: int = count_points(einsum, steps.tile) * (n_elements + 1)
    if parameters["stage_matrix"]:
        n_matrices = len({row[steps.matrix] for row in einsum.rows})
        inner = count_points(einsum, (*steps.contracted, *steps.deferred))
        entries += n_matrices * inner * -(-n_rows // rows) * rows
    if parameters["stage_output"]:
        entries += n_elements * (n_rows | 1)
    return entries * einsum.operands[0].dtype.itemsize


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; a step reads a row of the matrix and a column of a tile."""
    element = parameters["element"]
    steps = OperatorSteps.of(einsum, element)
    assert steps is not None
    lanes, columns, rows = (parameters[name] for name in NAMES[:3])
    # the last worker may have fewer rows, but takes as long
    n_workers = -(-count_points(einsum, steps.rows) // rows)
    n_elements, n_items = lanes * columns, lanes * n_workers
    n_groups = -(-count_points(einsum, (element,)) // n_elements)
    itemsize, n_rows = get_itemsize(einsum), einsum.batch_size
    box = {i: count_points(einsum, (i,)) for i in einsum.indices} | {
        element: n_elements
    }
    n_bytes = count_group_bytes(einsum, box)
    n_deferred = count_points(einsum, steps.deferred)
    n_sums = n_deferred * rows * columns
    n_steps = count_points(einsum, (*steps.outer, *steps.contracted))
    # lanes read the same entries of the matrix, but different ones of the tile
    of_step = n_deferred * rows + columns * itemsize / 4
    filled = n_elements * count_points(einsum, (*steps.tile, *steps.gathered))
    # reads and stores of neighbouring lanes are at neighbouring elements
    near = [{element: k} for k in range(min(h.WARP, lanes))]
    n_results = count_points(einsum, (*steps.outer, *steps.fan)) * rows * columns
    late = sum(
        count_request_cycles(einsum, einsum.inputs[k], itemsize, near)
        for k in steps.late
    )
    # through shared memory, stores are contiguous
    stored = 1.0
    if not parameters["stage_output"]:
        stored = count_request_cycles(einsum, einsum.output, itemsize, near)
    of_results = n_results * (n_deferred * late + 2 * stored)
    of_item = n_steps * (of_step + h.OVERHEAD_CYCLES) + of_results
    # each entry of the tile takes a load for each early operand, and a store
    cycles = n_items / h.WARP * of_item + (len(steps.early) + 1) * filled / h.WARP
    written = n_items / h.WARP * n_results * stored * h.LINE_BYTES
    n_products = n_steps * n_sums + n_results * n_deferred
    return predict_kernel_s(
        gpu,
        einsum,
        n_groups=n_groups,
        n_items=n_items,
        multiply_adds=n_groups * n_items * n_rows * n_products,
        requests=n_groups * (n_rows * cycles + 2 * n_bytes / h.LINE_BYTES),
        cached_bytes=n_groups * (n_bytes + n_rows * written),
        steps=h.STEPS_OF_ROW * n_rows,
        shared_bytes=_count_shared_bytes(einsum, steps, parameters),
        registers=min(h.MAX_REGISTERS, 40 + itemsize // 4 * (n_sums + rows + columns)),
        chains=n_sums,
    )


GPU_OPERATOR = register_family(
    "gpu_operator",
    1,
    "one matrix for all elements, by blocks of sums in registers",
    _make_space,
    apply_gpu_operator,
    _predict_s,
)
