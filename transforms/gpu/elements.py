"""Short contractions over many elements, with operands and products in shared memory.

A group has a few elements; its work-items are a grid of elements by workers. It
multiplies operands pair by pair.

If neighbouring work-items differ in the element, tiles have the elements last, else
first: neighbours then read neighbours, in different banks of shared memory. When a tile
is loaded, neighbours are along the last index of its operand. The workers share the
longest index of a product::

    lane = "element"   worker 0:  e0 e1 e2 ..      rows i, i + workers, ... of each
                       worker 1:  e0 e1 e2 ..      ``rows`` at a time in registers

Source: paper, section 7 (loop permutation, hoisting, tiles of the elements and of the
reference matrices in shared memory).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple

import loopy as lp
import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.contraction import Step, find_steps
from feinsum.contraction.paths import find_pairwise_path
from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.raising.expressions import make_product
from feinsum.transforms.cost import Gpu, list_loads
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
from feinsum.transforms.gpu.tiles import GroupWriter, Point
from feinsum.transforms.primitives import Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters, Space, with_starts
from feinsum.transforms.roles import (
    count_points,
    find_element_indices,
    get_typical_extent,
    has_real_dtype,
)

LANES = ("element", "row")
"""The indices in which neighbouring work-items may differ."""


def apply_gpu_elements(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Contract pairs of operands for the elements of a group, in shared memory.

    Rewrite, for the gradient ``xre,rij,ej->xei``, as ``D u`` and then J::

        for x, e, i:  out[x,e,i] = sum((r,j), J[x,r,e]*D[r,i,j]*u[e,j])

        for group, worker, e in parallel:       # elements of them are in a group
            J_tile[:,:,:], D_tile[:,:,:], u_tile[:,:] = J(...), D(...), u(...)
            (barrier)
            for i in worker, worker + workers, ...:  for r:
                t_tile[r,i,e] = sum(j, D_tile[r,i,j]*u_tile[j,e])
            (barrier)
            for i in worker, worker + workers, ...:  for x:
                out[x,e,i] = sum(r, J_tile[x,r,e]*t_tile[r,i,e])

    Parameters:
        element: the long index.
        elements: elements of a work-group.
        workers: work-items of an element.
        rows: sums of a work-item in registers, over the longest free index.
        lane: whether neighbouring work-items differ in the element or in the row.
        stage_matrices: copy operands without elements to shared memory.
    """
    return _Elements(begin(t_unit, nest), parameters).written().t_unit


def _list_steps(
    terms: Sequence[IndexList], output: IndexList, extents: Mapping[str, int]
) -> tuple[Step, ...]:
    """List the products of pairs with the fewest operations; the last is the output.

    >>> for step in _list_steps(["xre", "rij", "ej"], "xei",
    ...     dict(zip("xreij", [9] * 5))):
    ...     print(step.operands, *map("".join, step.inputs), "->", *step.output)
    (1, 2) rij ej -> r i e
    (0, 3) xre rie -> x e i
    """
    path = (
        find_pairwise_path(tuple(terms), output, tuple(extents.items()))
        if len(terms) > 1
        else ((0,),)
    )
    return find_steps(terms, output, path, is_pairwise=False, has_sums_first=False)


def _list_summed(step: Step) -> Names:
    """Return the indices over which a step sums, in the order of their first use."""
    indices = dict.fromkeys(i for term in step.inputs for i in term)
    return tuple(i for i in indices if i not in step.output)


def _split_off_longest(
    indices: Sequence[str], element: str, length: Callable[[str], int]
) -> tuple[str, list[str]]:
    """Return the longest index, which workers share, and the others; empty for none."""
    candidates = (i for i in indices if i != element)
    longest, *shorter = sorted(candidates, key=lambda i: (-length(i), i)) or [""]
    return longest, shorter


class _Value(NamedTuple):
    """An operand or product as a function of indices.

    Attributes:
        dtype: its dtype.
        at: maps values of indices to an expression; elements are counted within their
            group.
        after: ids of the statements that compute it.
    """

    dtype: np.dtype[Any]
    at: Callable[[Point], Expression]
    after: Names


class _Axis(NamedTuple):
    """Work-items of a group along one axis."""

    tag: str
    n_items: int


class _Elements(GroupWriter):
    """Writes the loops; see :func:`apply_gpu_elements`."""

    def __init__(self, schedule: Schedule, parameters: Parameters) -> None:
        n_elements = parameters["elements"]
        super().__init__(schedule, parameters["element"], n_elements)
        self.n_sums: int = parameters["rows"]
        self.is_staged = bool(parameters["stage_matrices"])
        self.is_by_element = parameters["lane"] == LANES[0]
        fast, slow = ("l.0", "l.1") if self.is_by_element else ("l.1", "l.0")
        self.elements = _Axis(fast, n_elements)
        self.workers = _Axis(slow, parameters["workers"])
        self.items: dict[str, str] = {}
        self.loop_over_groups()

    def written(self) -> Schedule:
        """Return the schedule with the nest replaced."""
        schedule = self.schedule
        # count the elements of a group only: the fewer, the more matrices cost
        extents = {
            i: get_typical_extent(extent) for i, extent in schedule.extents.items()
        }
        extents[self.element] = self.n_elements
        *inner, last = _list_steps(schedule.terms, schedule.output, extents)
        # rows of the batch share products of equal factors
        computed: dict[Names, _Value] = {}
        for operand in schedule.operands:
            computed[operand,] = self._stage_operand(operand)
        for k, row in enumerate(schedule.rows):
            names: list[Names] = [(name,) for name in row]
            left = [*names]
            for step in inner:
                first, second = (names[number] for number in step.operands)
                left = [n for n in left if n not in (first, second)]
                # the remaining factors decide over which indices this product sums
                key = sorted("".join(name) for name in left)
                name = (*first, "*", *second, "|", *key)
                if name not in computed:
                    factors = [computed[first], computed[second]]
                    computed[name] = self._write_product(factors, step)
                names.append(name)
                left.append(name)
            self._store(k, [computed[names[n]] for n in last.operands], last)
        return self.build()

    # shared memory

    def _stage_operand(self, name: str) -> _Value:
        """Copy an operand to shared memory, except for matrices read from the cache."""
        schedule = self.schedule
        span, dtype = schedule.spans[name], schedule.dtypes[name]

        def in_global_memory(points: Point) -> Expression:
            return schedule.multiply((name,), self.points_of_all(points))

        # all groups read a matrix, so it is in the cache
        if not span or not (self.element in span or self.is_staged):
            return _Value(dtype, in_global_memory, ())
        entry = self._declare_tile(f"{name}_tile", span, dtype)
        loops, points_loaded = self._make_load_loops(span)
        load = self.assign(
            "load", entry(points_loaded), in_global_memory(points_loaded), loops
        )
        return _Value(dtype, entry, (load,))

    def _declare_tile(
        self, stem: str, span: Names, dtype: np.dtype[Any]
    ) -> Callable[[Point], Expression]:
        """Declare a shared array; return a function from points to its entries.

        Neighbouring work-items have neighbouring entries.
        """
        other_indices = tuple(index for index in span if index != self.element)
        elements = (self.element,) if self.element in span else ()
        axes = (
            (*other_indices, *elements)
            if self.is_by_element
            else (*elements, *other_indices)
        )
        shape = [self.length(index) for index in axes]
        array = var(self.array(stem, shape, dtype, is_shared=True))
        return lambda points: array[tuple(points[index] for index in axes)]

    def _make_load_loops(self, span: Names) -> tuple[list[str], dict[str, Expression]]:
        """Loop over a tile: work-items along ``l.0`` read along the last index."""
        # `l.0` first: its neighbours get the last index, which is contiguous in memory
        axes = sorted((self.elements, self.workers), key=lambda axis: axis.tag)
        second, sequential = _split_off_longest(span[:-1], "", self.length)
        indices = (span[-1], second) if second else span[-1:]
        axis_of = dict(zip(indices, axes, strict=False))
        loops: list[str] = [self.group]
        points: dict[str, Expression] = {}
        for index, axis in axis_of.items():
            item, limits = self._get_item_loop(axis), self._format_limits(index, "{}")
            step, points[index] = self.strided("step", item, axis.n_items, *limits)
            loops += [item, step]
        # one row of work-items loads an operand of one axis
        loops += [self._enter_first_item(axis) for axis in axes[len(axis_of) :]]
        for index in sequential:
            loops.append(self.loop(index, *self._format_limits(index, "{0}")))
            points[index] = var(loops[-1])
        return loops, points

    def _get_item_loop(self, axis: _Axis) -> str:
        """Return the loop over work-items of an axis, the same for all statements.

        Each further loop over work-items would slow down Loopy's code generator.
        """
        if axis.tag not in self.items:
            self.items[axis.tag] = self.loop("item", size=axis.n_items, tag=axis.tag)
        return self.items[axis.tag]

    def _enter_first_item(self, axis: _Axis) -> str:
        """Make a loop that only the first work-item of an axis enters."""
        return self.loop("item", size=1, tag=axis.tag)

    def _format_limits(self, index: str, value: str) -> list[str]:
        """Return conditions that a value, counted within the group, is in range."""
        limits = [f"{value} < {self.length(index)}"]
        if index == self.element:
            start = f"{self.n_elements}*{self.group}"
            limits.append(f"{start} + {value} < {self.extent}")
        return limits

    # sums

    def _write_product(self, factors: Sequence[_Value], product: Step) -> _Value:
        """Write a product to shared memory."""
        dtype = np.dtype(np.result_type(*(value.dtype for value in factors)))
        entry = self._declare_tile("product_tile", product.output, dtype)
        value, points, loops, last = self._sum(factors, product, dtype)
        stored = self.assign("share", entry(points), value, loops, [last])
        return _Value(dtype, entry, (stored,))

    def _store(self, row: int, factors: Sequence[_Value], product: Step) -> None:
        """Write the last product to the output."""
        dtype = self.schedule.get_row_dtype(row)
        value, points, loops, last = self._sum(factors, product, dtype, is_last=True)
        self.store(row, value, self.points_of_all(points), loops, [last])

    def _sum(
        self,
        values: Sequence[_Value],
        product: Step,
        dtype: np.dtype[Any],
        *,
        is_last: bool = False,
    ) -> tuple[Expression, Point, list[str], str]:
        """Write a sum for each value of the free indices, several of them at a time.

        Work-items share elements and the longest other index; the rest are loops.

        Returns:
            A sum, its point, the loops over all sums, and the id of the last statement.
        """
        points: dict[str, Expression] = {}
        loops = [self.group]
        if self.element not in product.output:
            loops.append(self._enter_first_item(self.elements))
        else:
            item = self._get_item_loop(self.elements)
            points[self.element] = var(item)
            loops.append(item)
            if is_last:
                # elements beyond the last are summed as well, but not stored
                limits = self._format_limits(self.element, f"{item} + {{0}}")
                loops.append(self.loop("once", *limits, size=1))
        dealt, sequential = _split_off_longest(
            product.output, self.element, self.length
        )
        # workers share the longest index, which leaves the fewest of them idle
        worker = (
            self._get_item_loop(self.workers)
            if dealt
            else self._enter_first_item(self.workers)
        )
        loops.append(worker)
        n_sums, stride = self.n_sums, self.workers.n_items * self.n_sums
        if dealt:
            length = self.length(dealt)
            step = self.loop("step", f"{worker} + {stride}*{{}} < {length}")
            inames, of_others = self.loop_over(sequential)
            points |= of_others
            loops += [step, *inames]
            start = p.Sum((var(worker), stride * var(step)))
        else:
            n_sums = 1

        def block() -> tuple[str, dict[str, Expression]]:
            if not dealt:
                return self.loop("r", size=1, tag="unr"), {}
            # the rows of a work-item are ``n`` apart, so that neighbouring workers have
            # neighbouring rows
            n = self.workers.n_items
            limit = f"{worker} + {stride}*{step} + {n}*{{}} < {length}"
            r = self.loop("r", limit, size=n_sums, tag="unr")
            return r, {dealt: p.Sum((start, n * var(r)))}

        acc = var(self.array("acc", (n_sums,), dtype))
        # all sums of a block, including those beyond the end, which are not stored
        all_sums = self.loop("r", size=n_sums, tag="unr")
        zero = self.assign(
            "zero", acc[var(all_sums)], dtype.type(0), [*loops, all_sums]
        )
        sums, of_sums = self.loop_over(_list_summed(product))
        r, of_block = block()
        at = {**points, **of_block, **of_sums}
        term = make_product([value.at(at) for value in values])
        add = self.assign(
            "add", acc[var(r)], p.Sum((acc[var(r)], term)), [*loops, *sums, r],
            [zero, *(insn for value in values for insn in value.after)],
        )  # fmt: skip
        r, of_block = block()
        return acc[var(r)], {**points, **of_block}, [*loops, r], add


def _make_space(workload: Workload) -> Space | None:
    """Fit einsums with one long output index, if all tiles fit shared memory."""
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    elements = tuple(
        i
        for i in find_element_indices(einsum)
        if _count_shared_bytes(einsum, i, h.MIN_ELEMENTS, False) <= h.SHARED_BYTES
    )
    if not elements:
        return None
    table = {
        "element": elements,
        "elements": (32, 16, 64, 8, 128),
        "workers": (4, 8, 2, 16, 32, 1),
        "rows": (2, 1, 4, 5, 8),
        "lane": LANES,
        "stage_matrices": (True, False),
    }
    starts = partial(list_starts, table, [*table][1:], h.ELEMENT_STARTS)
    return with_starts(Space(table, partial(_find_excess, einsum)), starts)


def _find_excess(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    """Explain which limit of every GPU is exceeded; None if none is."""
    element, n_elements = parameters["element"], parameters["elements"]
    n_items = n_elements * parameters["workers"]
    is_staged = parameters["stage_matrices"]
    return explain_items(n_items, h.WARP) or explain_shared_bytes(
        _count_shared_bytes(einsum, element, n_elements, is_staged), h.SHARED_BYTES
    )


def _count_shared_bytes(
    einsum: BatchedEinsum, element: str, n_elements: int, is_staged: bool
) -> int:
    """Count the bytes of a work-group: operands, and products of the chosen path."""
    # run-time extents count with a typical value, the element index with a group's
    extents = {i: get_typical_extent(extent) for i, extent in einsum.extents.items()}
    extents[element] = n_elements
    used = [term for term, _ in list_loads(einsum)]
    # tiles of operands: those with elements, and matrices if they are copied
    tiles = [term for term in used if term and (element in term or is_staged)]
    # the last product goes to the output; those before it to shared memory
    inner = _list_steps(einsum.inputs, einsum.output, extents)[:-1]
    tiles += einsum.batch_size * [step.output for step in inner]
    n_entries = sum(prod(extents[index] for index in span) for span in tiles)
    return n_entries * einsum.operands[0].dtype.itemsize


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; sums read shared memory, or matrices from the cache."""
    element, rows = parameters["element"], parameters["rows"]
    n_elements: int = parameters["elements"]
    workers: int = parameters["workers"]
    is_staged = bool(parameters["stage_matrices"])
    is_by_element = parameters["lane"] == LANES[0]
    itemsize = get_itemsize(einsum)
    n_groups = -(-count_points(einsum, (element,)) // n_elements)
    extents = {i: count_points(einsum, (i,)) for i in einsum.indices} | {
        element: n_elements
    }

    def load_cycles(value: IndexList, dealt: str) -> float:
        """Count the cycles of a load of a warp; a broadcast entry takes one."""
        words = itemsize / 4
        if is_by_element:
            # neighbouring elements are contiguous; without elements, lanes read one
            # entry
            return max(1.0, words) if element in value else 1.0
        if dealt not in value:
            return 1.0
        stride = prod(extents[i] for i in value[value.index(dealt) + 1 :])
        if element in value or is_staged:
            # a stride that shares a divisor with 32 hits only some of the 32 banks
            return max(words, min(workers, gcd(int(stride * words), h.WARP)))
        # from the cache: as many sectors as the workers of a warp touch
        return max(1.0, min(workers * stride * words * 4 / h.LINE_BYTES, workers / 4))

    products = _list_steps(einsum.inputs, einsum.output, extents)
    multiply_adds, requests = 0.0, 0.0
    for product in products:
        # a product without elements is computed by the first item of each worker
        n_lanes = n_elements if element in product.output else 1
        dealt, other_indices = _split_off_longest(
            product.output, element, extents.__getitem__
        )
        length = extents[dealt] if dealt else 1
        busy = min(workers, length)
        n_terms = float(-(-length // busy) * busy * n_lanes)
        n_terms *= prod(extents[i] for i in (*other_indices, *_list_summed(product)))
        # a factor without the shared index is read once for all rows of a work-item
        cycles = sum(
            load_cycles(value, dealt) / (1 if dealt in value else rows)
            for value in product.inputs
        )
        # partial warps take as long as full ones
        n_terms *= h.WARP / min(h.WARP, n_lanes * busy)
        multiply_adds += n_terms * max(1, len(product.inputs) - 1)
        requests += n_terms / h.WARP * (cycles + h.OVERHEAD_CYCLES / rows)
    n_bytes = count_group_bytes(einsum, extents)
    # a warp that writes scattered entries moves a sector for each
    output, n_rows = einsum.output, einsum.batch_size
    other_indices = [i for i in output if i != element]
    longest = max(other_indices, key=extents.__getitem__, default=element)
    lanes: list[dict[str, int]] = [{element: k} for k in range(h.WARP)]
    if not is_by_element:
        n = min(workers, extents[longest])
        lanes = [{longest: k % n, element: k // n} for k in range(h.WARP)]
    n_results = prod(extents[i] for i in output) * n_rows
    stored = count_request_cycles(einsum, output, itemsize, lanes) * n_results / h.WARP
    # sums of a work-item along the longest index, which compilers unroll
    n_dealt = -(-max((extents[i] for i in other_indices), default=1) // workers)
    return predict_kernel_s(
        gpu,
        einsum,
        n_groups=n_groups,
        n_items=n_elements * workers,
        multiply_adds=n_groups * n_rows * multiply_adds,
        requests=n_groups * (n_rows * requests + stored + 2 * n_bytes / h.LINE_BYTES),
        cached_bytes=n_groups * (n_bytes + stored * h.LINE_BYTES),
        steps=h.STEPS_OF_SUM * (1 + len(products)),
        shared_bytes=_count_shared_bytes(einsum, element, n_elements, is_staged),
        # 44 for addresses and counters; unrolled sums stay in registers
        registers=min(h.MAX_REGISTERS, 44 + 2 * (itemsize // 4) * n_dealt),
        chains=rows,
    )


GPU_ELEMENTS = register_family(
    "gpu_elements",
    1,
    "short contractions over many elements, in shared memory",
    _make_space,
    apply_gpu_elements,
    _predict_s,
)
