"""Products of two operands by cuBLAS, with transposing copies where it needs them.

cuBLAS multiplies stacks of matrices whose rows or columns are contiguous. It reads
operands in place that are arrays in such an order, and writes a result in place that is
the unscaled sum in such an order. All others take a copy in a launch of its own, in
which a warp reads and writes contiguous entries.

Source: Springer and Bientinesi 2018, section 2 (transpose, transpose, multiply,
transpose; loops over matrix products).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper.evaluator import evaluate

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent, IndexList, Workload
from feinsum.raising import LoopNest, value_of
from feinsum.targets.cuda.products import MatrixProduct
from feinsum.transforms.cost import Gpu, list_loads
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import (
    get_itemsize,
    has_tensor_cores,
    predict_product_s,
)
from feinsum.transforms.gpu.families import has_half_dtype, register_family
from feinsum.transforms.gpu.layouts import split_into_grid_axes
from feinsum.transforms.gpu.sides import find_sides
from feinsum.transforms.gpu.tiles import GroupWriter
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.multiply_fragments import MATRICES
from feinsum.transforms.primitives.schedule import Expression, Names, Schedule
from feinsum.transforms.registry import Parameters, Space
from feinsum.transforms.roles import compute_reuse, count_points, has_real_dtype

MAX_RUNNING = 2
"""Run-time extents of an array that a copy can have: those of one axis of the grid and
of the loop over contiguous entries.
"""


def apply_gpu_matrices(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Evaluate operands once, as matrices, which cuBLAS multiplies.

    Rewrite, for ``acd,dbc->ab`` with A functional and B an array::

        for a, b:  out[a,b] = shift + scale*sum([c, d], A(a,c,d)*B[d,b,c])

        (launch)   right[b,c,d] = B[d,b,c]      so that (c, d) is one index, as in left
        (launch)   left[a,c,d] = A(a,c,d)       which evaluates the function
        (cuBLAS)   product[a,b] = left[a,(c,d)] @ right[b,(c,d)].T
        (launch)   out[a,b] = shift + scale*product[a,b]

    Parameters:
        stacked: number of the first output indices of one operand that become indices
            of the stack, in addition to those of both operands.
    """
    kernel = t_unit[nest.kernel_name]
    ids = {insn.id for insn in kernel.instructions}
    if ids != set(nest.instructions):
        raise TransformError(
            "a library computes whole kernels; this one does more than the einsum"
        )
    schedule = begin(t_unit, nest)
    plan = StackRoles.of(nest.einsum, schedule.extents, parameters["stacked"])
    if plan is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is not a stack of products of matrices"
        )
    return _Products(schedule, plan).written().with_preamble(MATRICES).t_unit


@dataclass(frozen=True)
class StackRoles:
    """The roles of indices in a stack of matrix products.

    Attributes:
        stack: output indices with a product for each value.
        rows: output indices of the left operand.
        columns: output indices of the right operand, which has the last one.
        summed: the summed indices.
        right: position of the right operand.
        are_single: whether the left and the right operand have no index of the stack.
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
    ) -> StackRoles | None:
        """Return the roles; None if an operand is not a stack with a single stride.

        >>> from feinsum.ir import array, einsum
        >>> e = einsum("bd,adc->abc", array("B", (9, 8)), array("A", (7, 8, 6)))
        >>> roles = StackRoles.of(e, e.extents, 1)
        >>> roles.stack, roles.rows, roles.columns, roles.summed, roles.are_single
        (('a',), ('b',), ('c',), ('d',), (True, False))
        """
        sides = find_sides(einsum, extents)
        if sides is None:
            return None
        output, shared = einsum.output, sides.batch.indices
        stack = (*shared, *[i for i in output if i not in shared][:n_stacked])
        rows, columns = (
            tuple(i for i in output if i in flat.indices and i not in stack)
            for flat in (sides.along, sides.across)
        )
        terms = einsum.inputs[1 - sides.first], einsum.inputs[sides.first]
        has = [{*stack} & {*term} for term in terms]
        # cuBLAS takes one stride from a matrix to the next, so an operand must have all
        # indices of the stack, or none
        is_step = all(not h or h == {*stack} for h in has)
        # sum in the order of the larger operand, which then needs a copy less often
        larger = max(einsum.inputs, key=lambda term: count_points(einsum, term))
        summed = tuple(i for i in dict.fromkeys(larger) if i not in output)
        is_whole = {*summed} == {*einsum.summation_indices} <= {*terms[0]} & {*terms[1]}
        if not (rows and columns and is_step and is_whole):
            return None
        arrays = (*einsum.inputs, einsum.output)
        n_running = [sum(not isinstance(extents[i], int) for i in x) for x in arrays]
        if max(n_running) > MAX_RUNNING:
            return None
        return cls(stack, rows, columns, summed, sides.first, (not has[0], not has[1]))

    @property
    def result(self) -> IndexList:
        """The indices of the products, in their order."""
        return (*self.stack, *self.rows, *self.columns)

    def order(self, term: IndexList, *, is_right: bool) -> tuple[IndexList, bool]:
        """Return the order in which to store an operand, and if that is transposed."""
        length = self.columns if is_right else self.rows
        stack = () if self.are_single[is_right] else self.stack
        deep, wide = (*stack, *length, *self.summed), (*stack, *self.summed, *length)
        # cuBLAS takes either order: choose the operand's own, or else one with the same
        # last index, for a copy that does not transpose
        is_deep = term == deep or (term != wide and term[-1:] == deep[-1:])
        return (deep, is_right) if is_deep else (wide, not is_right)

    def moved(self, einsum: BatchedEinsum) -> Iterator[IndexList]:
        """Yield the index lists of arrays that need a copy."""
        for position, term in enumerate(einsum.inputs):
            if self.order(term, is_right=position == self.right)[0] != term:
                yield term
        if self.result != einsum.output:
            yield einsum.output


class Entries(NamedTuple):
    """Loops over the entries of an array.

    Attributes:
        loops: the inames, outermost first.
        points: the value of each index.
        inside: conditions that an entry exists.
        before: ids of the statements that compute points.
    """

    loops: Names
    points: dict[str, Expression]
    inside: tuple[Expression, ...]
    before: Names


class _Products(GroupWriter):
    """Writes the launches; see :func:`apply_gpu_matrices`."""

    def __init__(self, schedule: Schedule, plan: StackRoles) -> None:
        super().__init__(schedule)
        self.plan = plan
        self.matrices: dict[str, tuple[str, bool]] = {}
        self.after: Names = ()

    def written(self) -> Schedule:
        """Replace the nest, and return the schedule."""
        for row in self.schedule.rows:
            for position, operand in enumerate(row):
                if operand not in self.matrices:
                    self.matrices[operand] = self._get_matrices(operand, position)
        for k, row_id in enumerate(self.schedule.instructions):
            self._write_product(k)
            # each product is a separate launch; the last one ends with the kernel
            if k + 1 < len(self.schedule.rows):
                self.after = (*self.after, row_id, self.end_launch([row_id]))
        return self.build()

    def _get_matrices(self, operand: str, position: int) -> tuple[str, bool]:
        """Return an operand's array, and whether the matrices in it are transposed."""
        schedule, span = self.schedule, self.schedule.spans[operand]
        order, is_transposed = self.plan.order(
            span, is_right=position == self.plan.right
        )
        rule = schedule.kernel.substitutions[schedule.rules[operand]]
        array = self._find_whole_array(rule.expression, rule.arguments, span)
        if array is None or order != span:
            array = self._pack(operand, order)
        return array, is_transposed

    def _write_product(self, k: int) -> None:
        """Write the products of a row, in place or in a temporary."""
        schedule, order = self.schedule, self.plan.result
        direct = self._find_result(k)
        dtype = schedule.get_row_dtype(k)
        result = direct or self.array(
            "product", self._list_sizes(order), dtype, is_global=True
        )
        step = self.state(
            "multiply", self._make_call(k, result), (), self.after,
            row=k if direct else None, n_axes=len(order),
        )  # fmt: skip
        # cuBLAS writes the result itself if it needs neither scaling nor a copy
        if direct:
            return
        self.after = (*self.after, step, self.end_launch([step]))
        entries = self._visit(schedule.output, order[-1])
        value = var(result)[tuple(entries.points[i] for i in order)]
        self.store(
            k, value, entries.points, entries.loops, entries.before,
            predicates=entries.inside,
        )  # fmt: skip
        self.note_apart(schedule.instructions[k])

    def _make_call(self, k: int, result: str) -> MatrixProduct:
        plan = self.plan
        row = self.schedule.rows[k]
        left, right = (self.matrices[row[n]] for n in (1 - plan.right, plan.right))
        sizes = plan.stack, plan.rows, plan.columns, plan.summed
        n_products, rows, columns, terms = (prod(self._list_sizes(x)) for x in sizes)
        return MatrixProduct(
            left[0], right[0], result, (n_products, rows, columns, terms),
            (left[1], right[1]), plan.are_single,
        )  # fmt: skip

    def _list_sizes(self, indices: IndexList) -> list[Expression]:
        return [value_of(self.schedule.extents[i]) for i in indices]

    def _find_result(self, k: int) -> str | None:
        """Return the array that can receive a row's products unchanged; else None."""
        schedule, order = self.schedule, self.plan.result
        if not schedule.is_sum(k):
            return None
        statement = schedule.kernel.id_to_insn[schedule.instructions[k]]
        inames = [schedule.inames[i] for i in order]
        return self._find_whole_array(statement.assignee, inames, order)

    def _find_whole_array(
        self, entry: Expression, variables: Sequence[str], indices: IndexList
    ) -> str | None:
        """Return the argument that an operand is, if it is contiguous in C order.

        Args:
            entry: the value of the operand at a point.
            variables: variables of the point.
            indices: their indices.

        Returns:
            Its name; None if the operand is another function.
        """
        point = tuple(map(var, variables))
        if not isinstance(entry, p.Subscript) or entry.index_tuple != point:
            return None
        array = self.schedule.kernel.arg_dict.get(entry.aggregate.name)
        if array is None or array.offset:
            return None
        # in C order, each stride is the product of the extents after it
        wanted: Any = 1
        sizes = self._list_sizes(indices)
        for tag, size in zip(array.dim_tags[::-1], sizes[::-1], strict=True):
            stride = getattr(tag, "stride", None)
            if stride is None or not _are_equal(stride, wanted):
                return None
            wanted = wanted * size
        return str(array.name)

    def _visit(self, order: Names, near: str) -> Entries:
        """Loop over entries such that a warp accesses two arrays contiguously.

        Rewrite, for the order ``kij`` with k near::

            for k, i, j:  packed[k,i,j] = A[i,j,k]

            for group, chunk, item, lane in parallel:
                i, j = (32*group + item) / J, (32*group + item) % J
                for step:
                    k = 8*(steps*chunk + step) + lane
                    packed[k,i,j] = A[i,j,k]

        Args:
            order: indices of one array, the fastest last.
            near: the fastest index of the other array.
        """
        extents = self.schedule.extents
        extent = extents[near]
        # if both arrays end in the same index, a warp reads and writes one run
        is_wide = order[-1] == near and isinstance(extent, int) and extent % h.WARP == 0
        lanes = h.WARP if is_wide else h.PACKING_LANES
        steps, n_rows = _choose_steps(extent, lanes), h.PACKING_ITEMS // lanes
        chunk = self.loop("chunk", f"{lanes * steps}*{{}} < {extent}", tag="g.1")
        lane = self.loop("lane", size=lanes, tag="l.0")
        # groups and their rows have the other indices
        axes = split_into_grid_axes([i for i in order if i != near], extents)
        # plans refuse arrays with more run-time extents than axes
        assert axes is not None
        first, *alone = axes
        group = self.loop("group", f"{n_rows}*{{}} < {first.size}", tag="g.0")
        single = {
            flat.indices[0]: self.loop("group", size=flat.extents[0], tag=f"g.{axis}")
            for axis, flat in enumerate(alone, start=2)
        }
        item = self.loop("item", size=n_rows, tag="l.1")
        loops = (group, chunk, *single.values(), item, lane)
        row = p.Sum((n_rows * var(group), var(item)))
        rows = self.compute_points(
            first, 1, lambda _: row, loops, self.after, tile=n_rows
        )
        step = self.loop("step", size=steps, tag="unr")
        of_lanes = p.Sum((steps * var(chunk), var(step)))
        value, inside = p.Sum((lanes * of_lanes, var(lane))), rows.inside(0)
        if not isinstance(extent, int) or extent % (lanes * steps):
            inside = (*inside, p.Comparison(value, "<", value_of(extent)))
        points = {**rows.at(0), **{i: var(x) for i, x in single.items()}, near: value}
        return Entries((*loops, step), points, inside, (*self.after, *rows.statements))

    def _pack(self, operand: str, order: Names) -> str:
        """Copy an operand, array or function, to an array with another order."""
        schedule = self.schedule
        entries = self._visit(order, schedule.spans[operand][-1])
        shape, dtype = self._list_sizes(order), schedule.dtypes[operand]
        array = self.array(f"{operand}_packed", shape, dtype, is_global=True)
        packed = self.assign(
            "pack",
            var(array)[tuple(entries.points[i] for i in order)],
            schedule.multiply((operand,), entries.points),
            entries.loops,
            entries.before,
            predicates=entries.inside,
        )
        self.note_apart(packed)
        self.after = (*self.after, packed, self.end_launch([packed]))
        return array


def _choose_steps(extent: Extent, lanes: int) -> int:
    """Choose the steps of a work-item so that few work-items idle.

    >>> [_choose_steps(n, 8) for n in (5, 40, 72, 296)]
    [1, 5, 5, 8]
    """
    if not isinstance(extent, int):
        return h.MAX_PACKING_STEPS
    n = -(-extent // lanes)
    # as few chunks as possible, and these as short as possible
    return -(-n // -(-n // h.MAX_PACKING_STEPS))


def _are_equal(left: Expression, right: Expression) -> bool:
    """Return whether two products of sizes are equal."""
    # pymbolic does not simplify, so compare the values for unusual sizes
    names = sorted(lp.symbolic.get_dependencies((left, right)))
    values = {name: 10007 + 2 * k for k, name in enumerate(names)}
    return bool(evaluate(left, values) == evaluate(right, values))


def _make_space(workload: Workload) -> Space | None:
    """Fit products of two real operands that use each entry several times."""
    einsum = workload.einsum
    has_dtype = has_real_dtype(einsum) or has_half_dtype(einsum)
    if not has_dtype or compute_reuse(einsum) < h.MIN_REUSE:
        return None
    plans = [StackRoles.of(einsum, einsum.extents, n) for n in range(3)]
    stacked = tuple(n for n, plan in enumerate(plans) if plan is not None)
    return Space({"stacked": stacked})


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds of the products and of the copies before and after them.

    Arrays that are not in order are read and written once more, in separate launches.
    """
    plan = StackRoles.of(einsum, einsum.extents, parameters["stacked"])
    itemsize = get_itemsize(einsum)
    # OpenCL has no such library: there, products are no faster than other code
    if plan is None or not has_tensor_cores(gpu, 2 if itemsize == 2 else 8):
        return inf
    n, rows, columns, summed = (
        count_points(einsum, x)
        for x in (plan.stack, plan.rows, plan.columns, plan.summed)
    )
    sizes = n, rows, columns, summed
    # each copy reads and writes its array, in a separate launch
    moved = [count_points(einsum, term) * itemsize for term in plan.moved(einsum)]
    rate = h.PACKING_SHARE * gpu.bandwidth_bytes_per_s
    arrays = sum(count_points(einsum, term) * size for term, size in list_loads(einsum))
    arrays += count_points(einsum, einsum.output) * itemsize
    return (
        einsum.batch_size * predict_product_s(sizes, arrays, itemsize, gpu)
        + 2 * sum(moved) / rate
        + gpu.launch_s * len(moved)
    )


GPU_MATRICES = register_family(
    "gpu_matrices",
    1,
    "products of two operands by cuBLAS, after launches that bring them in order",
    _make_space,
    apply_gpu_matrices,
    _predict_s,
)
