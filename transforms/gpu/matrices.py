"""Products of two operands by cuBLAS, and what brings them in the order that it takes.

Source: Springer and Bientinesi 2018, section 2 (transpose, transpose, multiply,
transpose; loops over matrix products).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from typing import Any

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper.evaluator import evaluate

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.targets.cuda.products import MatrixProduct
from feinsum.transforms.cost import Gpu, Machine, points
from feinsum.transforms.gpu.cost import itemsize_of, loads
from feinsum.transforms.gpu.grid import GPUS
from feinsum.transforms.gpu.packing import each_entry, extent_of, packed
from feinsum.transforms.gpu.sides import LEAST_REUSE, sides_of
from feinsum.transforms.primitives import NestWriter, begin
from feinsum.transforms.primitives.multiply_fragments import MATRICES, multiply_matrices
from feinsum.transforms.primitives.schedule import Expression, Names, Schedule
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import has_real_dtype, number, reuse, volume

MOST_RUNNING = 2
"""Extents of an array that are known at run time only, beside that of the loop over
entries that lie side by side.
"""

PACKING_SHARE = 0.75
"""Of the bandwidth, by launches that bring arrays in order."""


def gpu_matrices(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Evaluate operands once, as matrices, which cuBLAS multiplies.

    Rewrite, for ``acd,dbc->ab``::

        for a, b:  out[a,b] = sum([c, d], A(a,c,d)*B(d,b,c))

        (launch)   right[b,c,d] = B(d,b,c)
        (launch)   left[a,c,d] = A(a,c,d)
        (cuBLAS)   product[a,b] = left[a,(c,d)] @ right[b,(c,d)].T
        (launch)   out[a,b] = shift + scale*product[a,b]

    An operand that is an array in such an order is read where it is, and a result that
    is the sum itself is written where it belongs.

    A warp reads and writes neighbours, in either order.

    Parameters:
        stacked: how many of the first output indices, beside those of both operands,
            have a product for each value.
    """
    kernel = t_unit[nest.kernel_name]
    ids = {insn.id for insn in kernel.instructions}
    if ids != set(nest.instructions):
        raise TransformError(
            "a library computes whole kernels; this one does more than the einsum"
        )
    schedule = begin(t_unit, nest)
    plan = Plan.of(nest.einsum, schedule.extents, number(parameters, "stacked"))
    if plan is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is not a stack of products of matrices"
        )
    return _Products(schedule, plan).written().with_preamble(MATRICES).t_unit


@dataclass(frozen=True)
class Plan:
    """Which indices count products, rows, columns, and terms of sums.

    Attributes:
        rows, columns: the output indices of one operand, and of the other one, which
            has the last of them.
        right: the position of the latter.
        are_single: whether left and right have no index of the stack.
    """

    stack: IndexList
    rows: IndexList
    columns: IndexList
    summed: IndexList
    right: int
    are_single: tuple[bool, bool]

    @classmethod
    def of(
        cls, einsum: BatchedEinsum, extents: Mapping[str, Extent], n_stacked: int
    ) -> Plan | None:
        """None if one step from a product to the next one does not fit an operand.

        >>> from feinsum.ir import array, einsum
        >>> e = einsum("bd,adc->abc", array("B", (9, 8)), array("A", (7, 8, 6)))
        >>> plan = Plan.of(e, e.extents, 1)
        >>> plan.stack, plan.rows, plan.columns, plan.summed, plan.are_single
        (('a',), ('b',), ('c',), ('d',), (True, False))
        """
        sides = sides_of(einsum, extents)
        if sides is None:
            return None
        output, both = einsum.output, sides.batch.indices
        stack = (*both, *[i for i in output if i not in both][:n_stacked])
        rows, columns = (
            tuple(i for i in output if i in flat.indices and i not in stack)
            for flat in (sides.along, sides.across)
        )
        terms = einsum.inputs[1 - sides.first], einsum.inputs[sides.first]
        has = [{*stack} & {*term} for term in terms]
        is_step = all(not h or h == {*stack} for h in has)
        larger = max(einsum.inputs, key=lambda term: volume(einsum, term))
        summed = tuple(i for i in dict.fromkeys(larger) if i not in output)
        is_whole = {*summed} == {*einsum.summation_indices} <= {*terms[0]} & {*terms[1]}
        if not (rows and columns and is_step and is_whole):
            return None
        if _has_many_running(einsum, extents):
            return None
        return cls(stack, rows, columns, summed, sides.first, (not has[0], not has[1]))

    @property
    def result(self) -> IndexList:
        """The indices of the products, in their order."""
        return (*self.stack, *self.rows, *self.columns)

    def order(self, term: IndexList, *, is_right: bool) -> tuple[IndexList, bool]:
        """In which an operand is wanted, and whether its matrices are turned there."""
        length = self.columns if is_right else self.rows
        own = () if self.are_single[is_right] else self.stack
        deep, wide = (*own, *length, *self.summed), (*own, *self.summed, *length)
        is_deep = term == deep or (term != wide and term[-1:] == deep[-1:])
        return (deep, is_right) if is_deep else (wide, not is_right)

    def moved(self, einsum: BatchedEinsum) -> Iterator[IndexList]:
        """The index lists of arrays that are not in order."""
        for position, term in enumerate(einsum.inputs):
            if self.order(term, is_right=position == self.right)[0] != term:
                yield term
        if self.result != einsum.output:
            yield einsum.output


def _has_many_running(einsum: BatchedEinsum, extents: Mapping[str, Extent]) -> bool:
    """Whether an array has more extents that are known at run time only than loops."""
    return any(
        sum(not isinstance(extents[i], int) for i in term) > MOST_RUNNING
        for term in (*einsum.inputs, einsum.output)
    )


class _Products:
    """Writes the launches; see :func:`gpu_matrices`."""

    def __init__(self, schedule: Schedule, plan: Plan) -> None:
        self.schedule, self.plan = schedule, plan
        self.writer = NestWriter(schedule)
        self.made: dict[str, tuple[str, bool]] = {}
        self.after: Names = ()

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        for row in self.schedule.rows:
            for position, operand in enumerate(row):
                if operand not in self.made:
                    self.made[operand] = self._matrices(operand, position)
        for k, row_id in enumerate(self.schedule.instructions):
            self._product(k)
            if k + 1 < len(self.schedule.rows):
                self.after = (*self.after, row_id, self.writer.launch_end([row_id]))
        return self.writer.finished()

    def _matrices(self, operand: str, position: int) -> tuple[str, bool]:
        """The array of an operand, and whether the matrices in it are turned."""
        schedule, span = self.schedule, self.schedule.spans[operand]
        order, is_turned = self.plan.order(span, is_right=position == self.plan.right)
        rule = schedule.kernel.substitutions[schedule.rules[operand]]
        extents = [schedule.extents[i] for i in span]
        whole = whole_array(schedule.kernel, rule.expression, rule.arguments, extents)
        if whole is None or order != span:
            whole, done = packed(self.writer, operand, order, self.after)
            self.after = (*self.after, *done)
        return whole, is_turned

    def _product(self, k: int) -> None:
        """A row, in its place or on the way to it."""
        schedule, writer, order = self.schedule, self.writer, self.plan.result
        direct = self._result_of(k)
        shape = [extent_of(schedule.extents[i]) for i in order]
        result = direct or writer.array(
            "product", shape, schedule.dtype_of_row(k), is_global=True
        )
        build = partial(multiply_matrices, self._call(k, result), len(order))
        if direct:
            writer.replace(k, build, (), self.after)
            return
        step = writer.add("multiply", build, (), self.after)
        self.after = (*self.after, step, writer.launch_end([step]))
        entries = each_entry(writer, schedule.output, order[-1], self.after)
        value = var(result)[tuple(entries.points[i] for i in order)]
        writer.store(
            k, value, entries.points, entries.loops, entries.before,
            predicates=entries.inside,
        )  # fmt: skip
        writer.note_apart(schedule.instructions[k])

    def _call(self, k: int, result: str) -> MatrixProduct:
        plan = self.plan
        row = self.schedule.rows[k]
        left, right = (self.made[row[n]] for n in (1 - plan.right, plan.right))
        sizes = plan.stack, plan.rows, plan.columns, plan.summed
        n_products, rows, columns, terms = map(self._size, sizes)
        return MatrixProduct(
            left[0], right[0], result, (n_products, rows, columns, terms),
            (left[1], right[1]), plan.are_single,
        )  # fmt: skip

    def _size(self, indices: IndexList) -> Expression:
        size: Expression = 1
        for index in indices:
            size = size * extent_of(self.schedule.extents[index])
        return size

    def _result_of(self, k: int) -> str | None:
        """The array that takes the products of a row as they are."""
        schedule, order = self.schedule, self.plan.result
        if not schedule.is_sum(k):
            return None
        statement = schedule.kernel.id_to_insn[schedule.instructions[k]]
        inames = [schedule.inames[i] for i in order]
        extents = [schedule.extents[i] for i in order]
        return whole_array(schedule.kernel, statement.assignee, inames, extents)


def whole_array(
    kernel: lp.LoopKernel,
    entry: Expression,
    at: Names | list[str],
    extents: list[Extent],
) -> str | None:
    """The argument whose entries in C order are those at all points; None if none is.

    Args:
        entry: of the array.
        at: the variables of a point.
        extents: theirs.
    """
    if not isinstance(entry, p.Subscript) or entry.index_tuple != tuple(map(var, at)):
        return None
    array = kernel.arg_dict.get(entry.aggregate.name)
    if array is None or array.offset:
        return None
    wanted: Any = 1
    for tag, extent in zip(array.dim_tags[::-1], extents[::-1], strict=True):
        stride = getattr(tag, "stride", None)
        if stride is None or not _are_equal(stride, wanted):
            return None
        wanted = wanted * extent_of(extent)
    return str(array.name)


def _are_equal(one: Expression, other: Expression) -> bool:
    """Whether two products of sizes are the same."""
    # pymbolic does not simplify: products with one value at odd sizes are the same
    names = sorted(lp.symbolic.get_dependencies((one, other)))
    values = {name: 10007 + 2 * k for k, name in enumerate(names)}
    return bool(evaluate(one, values) == evaluate(other, values))


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    if not has_real_dtype(einsum) or reuse(einsum) < LEAST_REUSE:
        return None
    plans = [Plan.of(einsum, einsum.extents, n) for n in range(3)]
    return {"stacked": tuple(n for n, plan in enumerate(plans) if plan is not None)}


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """What is not in order is read and written once more, in a launch of its own."""
    gpu = machine.gpu
    assert gpu is not None
    plan = Plan.of(einsum, einsum.extents, number(parameters, "stacked"))
    itemsize = itemsize_of(einsum)
    if plan is None or gpu.matrix_multiply_adds[8] <= gpu.multiply_adds[8]:
        return inf
    n, rows, columns, summed = (
        points(einsum, x) for x in (plan.stack, plan.rows, plan.columns, plan.summed)
    )
    sizes = n, rows, columns, summed
    moved = [points(einsum, term) * itemsize for term in plan.moved(einsum)]
    rate = PACKING_SHARE * gpu.bandwidth_bytes_per_s
    arrays = sum(points(einsum, term) * size for term, size in loads(einsum))
    arrays += points(einsum, einsum.output) * itemsize
    return (
        einsum.batch_size * product_s(sizes, arrays, itemsize, gpu)
        + 2 * sum(moved) / rate
        + gpu.launch_s * len(moved)
    )


GPU_MATRICES = register(
    Transform(
        "gpu_matrices",
        1,
        "products of two operands by cuBLAS, after launches that bring them in order",
        space_of_parts(_space, proposes_all=True),
        gpu_matrices,
        _cost,
        devices=GPUS,
    )
)

CALL_S = 6e-6
"""To find and begin a product or a kernel."""

PEAK_SHARE = 0.85
"""Of the rate, by large products."""

BANDWIDTH_SHARE = 0.6
"""Of the bandwidth, by products with a short side."""

COPY_SHARE = 0.6
"""Of the bandwidth, by copies with axes in another order."""

TILE = 64
"""Sides that are shorter than that leave a part of the multiprocessor idle."""

CHUNK = 1024
"""Of a sum; several multiprocessors share longer ones."""


def product_s(sizes: Sequence[int], n_bytes: float, itemsize: int, gpu: Gpu) -> float:
    """Seconds of a stack of matrix products by cuBLAS or its like.

    Args:
        sizes: of the stack, the rows, the columns and the sum.
        n_bytes: of all arrays.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {}, {8: 128.0})
    >>> 0.002 < product_s((1, 4096, 4096, 4096), 3 * 8 * 4096**2, 8, gpu) < 0.004
    True
    """
    n_products, m, n, k = sizes
    n_tiles = n_products * -(-m // TILE) * -(-n // TILE) * max(1.0, k / CHUNK)
    share = m / (m + TILE / 4) * n / (n + TILE / 4) * k / (k + TILE / 4)
    share *= PEAK_SHARE * min(1.0, n_tiles / gpu.n_multiprocessors)
    rate = gpu.matrix_multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s
    moved = n_bytes / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return CALL_S + max(moved, prod(sizes) / (rate * share))


def streamed_s(n_points: float, n_bytes: float, itemsize: int, gpu: Gpu) -> float:
    """Seconds of an einsum that is no product, by a kernel that reads everything once.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {8: 64.0}, {})
    >>> streamed_s(1e6, 8e6, 8, gpu) < streamed_s(1e6, 8e7, 8, gpu)
    True
    """
    rate = gpu.multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s / 2
    moved = n_bytes / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return CALL_S + max(moved, n_points / rate)


def copied_s(n_bytes: float, gpu: Gpu) -> float:
    """Seconds of a copy of so many bytes with its axes in another order."""
    return CALL_S + 2 * n_bytes / (COPY_SHARE * gpu.bandwidth_bytes_per_s)
