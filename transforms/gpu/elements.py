"""Batches over one long index: short contractions, all that is shared in shared memory.

A group has a few elements; its work-items are a grid of elements by workers. Operands
are multiplied pair by pair.

Tiles have the elements last if neighbouring work-items differ in the element, else
first: so neighbours read neighbours, in other banks of shared memory. Neighbours load
along the last index of an operand. The longest index of a result goes to the workers::

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

from feinsum.contraction.paths import pairwise_path
from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.targets.cuda.figures import MAX_REGISTERS
from feinsum.transforms.cost import MachineModel, distinct_bytes, points
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import (
    LaunchWork,
    group_bytes,
    itemsize_of,
    launch_s,
    request_cycles,
)
from feinsum.transforms.gpu.tiles import GPUS, GroupWriter, Point
from feinsum.transforms.primitives import Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import (
    Parameters,
    Space,
    Transform,
    register,
    starting_with,
)
from feinsum.transforms.roles import (
    element_indices,
    has_real_dtype,
    number,
    text,
    typical,
)

LANES = ("element", "row")
"""The index in which neighbouring work-items differ."""

NAMES = ("elements", "workers", "rows", "lane", "stage_matrices")


def gpu_elements(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Contract in pairs for some elements a group, all that is shared in shared memory.

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
        elements: of a work-group.
        workers: work-items of an element.
        rows: sums of a work-item in registers, over the longest free index.
        lane: whether neighbouring work-items differ in the element or in the row.
        stage_matrices: copy operands without elements to shared memory.
    """
    return _Elements(begin(t_unit, nest), parameters).written().t_unit


class _Product(NamedTuple):
    """A product of values, in order.

    Attributes:
        positions: of its factors among the values that are left.
        factors: their indices.
        free, summed: its own indices, and those that nothing else has.
    """

    positions: tuple[int, ...]
    factors: list[IndexList]
    free: IndexList
    summed: Names


def _products(
    terms: Sequence[IndexList], output: IndexList, extents: Mapping[str, int]
) -> list[_Product]:
    """Multiply pairs in the order of fewest operations; the last product is the output.

    >>> for step in _products(["xre", "rij", "ej"], "xei", dict(zip("xreij", [9] * 5))):
    ...     print(step.positions, *step.factors, "->", *step.free)
    (1, 2) rij ej -> r i e
    (0, 1) xre ('r', 'i', 'e') -> x e i
    """
    terms, products = list(terms), []
    pairs = (
        pairwise_path(tuple(terms), output, tuple(extents.items()))
        if len(terms) > 1
        else ((0,),)
    )
    for pair in pairs[:-1]:
        factors = [terms[k] for k in pair]
        joint = dict.fromkeys(i for term in factors for i in term)
        terms = [term for k, term in enumerate(terms) if k not in pair]
        outside = {*output}.union(*terms)
        free = tuple(i for i in joint if i in outside)
        summed = tuple(i for i in joint if i not in outside)
        products.append(_Product(tuple(pair), factors, free, summed))
        terms.append(free)
    joint = dict.fromkeys(i for term in terms for i in term)
    summed = tuple(i for i in joint if i not in output)
    products.append(_Product(tuple(range(len(terms))), terms, output, summed))
    return products


def _longest_first(
    indices: Sequence[str], element: str, length: Callable[[str], int]
) -> tuple[str, list[str]]:
    """Choose the index that is dealt out to workers, if there is one; and the rest."""
    rest = (i for i in indices if i != element)
    longest, *others = sorted(rest, key=lambda i: (-length(i), i)) or [""]
    return longest, others


class _Value(NamedTuple):
    """An operand, or a product of some, as a function of indices.

    Attributes:
        at: from the value of each index to an expression; elements are counted
            within their group.
        after: what computes it.
    """

    span: Names
    dtype: np.dtype[Any]
    at: Callable[[Point], Expression]
    after: Names


class _Axis(NamedTuple):
    """Work-items of a group along one axis."""

    tag: str
    n_items: int


class _Elements(GroupWriter):
    """Writes the loops; see :func:`gpu_elements`."""

    def __init__(self, schedule: Schedule, parameters: Parameters) -> None:
        n_elements = number(parameters, "elements")
        super().__init__(schedule, text(parameters, "element"), n_elements)
        self.n_sums = number(parameters, "rows")
        self.is_staged = bool(parameters["stage_matrices"])
        self.is_by_element = parameters["lane"] == LANES[0]
        fast, slow = ("l.0", "l.1") if self.is_by_element else ("l.1", "l.0")
        self.elements = _Axis(fast, n_elements)
        self.workers = _Axis(slow, number(parameters, "workers"))
        self.items: dict[str, str] = {}
        self.extent = schedule.extents[self.element]
        self.group = self.loop("group", f"{n_elements}*{{}} < {self.extent}", tag="g.0")

    def written(self) -> Schedule:
        """Return the schedule with the nest replaced."""
        schedule = self.schedule
        # the order depends on extents: with few elements a group, matrices count more
        extents = {i: typical(extent) for i, extent in schedule.extents.items()}
        extents[self.element] = self.n_elements
        *inner, last = _products(schedule.terms, schedule.output, extents)
        # products of the same values are computed once for all rows of the batch
        computed: dict[Names, _Value] = {}
        for operand in schedule.operands:
            computed[operand,] = self._operand(operand)
        for k, row in enumerate(schedule.rows):
            names: list[Names] = [(name,) for name in row]
            for product in inner:
                first, second = (names[at] for at in product.positions)
                names = [n for n in names if n not in (first, second)]
                # what is left decides over which indices this product is summed
                rest = sorted("".join(name) for name in names)
                name = (*first, "*", *second, "|", *rest)
                if name not in computed:
                    factors = [computed[first], computed[second]]
                    computed[name] = self._product(factors, product)
                names.append(name)
            self._store(k, [computed[name] for name in names], last)
        return self.finished()

    # what lies in shared memory

    def _operand(self, name: str) -> _Value:
        """Copy an operand to shared memory, but for matrices that stay in the cache."""
        schedule = self.schedule
        span, dtype = schedule.spans[name], schedule.dtypes[name]
        rule = var(schedule.rules[name])

        def in_global_memory(points: Point) -> Expression:
            at = self.points_of_all(points, self.group)
            return rule(*(at[index] for index in span))

        # all groups read a matrix: it is in the cache, and may be read there
        if not span or not (self.element in span or self.is_staged):
            return _Value(span, dtype, in_global_memory, ())
        entry = self._tile(f"{name}_tile", span, dtype)
        loops, at = self._load_loops(span)
        load = self.assign("load", entry(at), in_global_memory(at), loops)
        return _Value(span, dtype, entry, (load,))

    def _tile(
        self, stem: str, span: Names, dtype: np.dtype[Any]
    ) -> Callable[[Point], Expression]:
        """Declare a shared array; return its entry at a point.

        Neighbouring work-items have neighbouring entries.
        """
        others = tuple(index for index in span if index != self.element)
        elements = (self.element,) if self.element in span else ()
        axes = (*others, *elements) if self.is_by_element else (*elements, *others)
        shape = [self.length(index) for index in axes]
        array = var(self.array(stem, shape, dtype, is_shared=True))
        return lambda points: array[tuple(points[index] for index in axes)]

    def _load_loops(self, span: Names) -> tuple[list[str], dict[str, Expression]]:
        """Loop over a tile: work-items along ``l.0`` read along the last index."""
        # `l.0` first: its neighbours get the last index, along which operands lie
        axes = sorted((self.elements, self.workers), key=lambda axis: axis.tag)
        second, others = _longest_first(span[:-1], "", self.length)
        indices = (span[-1], second) if second else span[-1:]
        axis_of = dict(zip(indices, axes, strict=False))
        loops, at = [self.group], {}
        for index, axis in axis_of.items():
            item = self._item(axis)
            value = f"{item} + {axis.n_items}*{{0}}"
            step = self.loop("step", *self._limits(index, value))
            loops += [item, step]
            at[index] = p.Sum((var(item), axis.n_items * var(step)))
        # an operand of one axis is loaded by one row of work-items
        loops += [self._first_of(axis) for axis in axes[len(axis_of) :]]
        for index in others:
            loops.append(self.loop(index, *self._limits(index, "{0}")))
            at[index] = var(loops[-1])
        return loops, at

    def _item(self, axis: _Axis) -> str:
        """Return the work-items, in one loop for all statements.

        Loopy's code generator takes time for every loop of work-items.
        """
        if axis.tag not in self.items:
            self.items[axis.tag] = self.loop("item", size=axis.n_items, tag=axis.tag)
        return self.items[axis.tag]

    def _first_of(self, axis: _Axis) -> str:
        """Make a loop that the first work-item alone enters."""
        return self.loop("item", size=1, tag=axis.tag)

    def _limits(self, index: str, value: str) -> list[str]:
        """Require that a value, counted within the group, is one of the index."""
        limits = [f"{value} < {self.length(index)}"]
        if index == self.element:
            start = f"{self.n_elements}*{self.group}"
            limits.append(f"{start} + {value} < {self.extent}")
        return limits

    # sums

    def _product(self, factors: Sequence[_Value], product: _Product) -> _Value:
        """Write a product to shared memory."""
        dtype = np.dtype(np.result_type(*(value.dtype for value in factors)))
        entry = self._tile("product_tile", product.free, dtype)

        def share(value: Expression, at: Point, loops: list[str], after: Names) -> str:
            return self.assign("share", entry(at), value, loops, after)

        stored = self._sum(factors, product, dtype, share)
        return _Value(product.free, dtype, entry, (stored,))

    def _store(self, row: int, factors: Sequence[_Value], product: _Product) -> None:
        """Write the last product to the output."""

        def store(value: Expression, at: Point, loops: list[str], after: Names) -> str:
            at_all = self.points_of_all(at, self.group)
            return self.store(row, value, at_all, loops, after)

        dtype = self.schedule.dtype_of_row(row)
        self._sum(factors, product, dtype, store, is_last=True)

    def _sum(
        self,
        values: Sequence[_Value],
        product: _Product,
        dtype: np.dtype[Any],
        store: Callable[[Expression, Point, list[str], Names], str],
        *,
        is_last: bool = False,
    ) -> str:
        """Write a sum for each value of the free indices, several of them at a time.

        Elements and the longest other index go to work-items, the rest to loops.
        """
        at: dict[str, Expression] = {}
        loops = [self.group]
        if self.element not in product.free:
            loops.append(self._first_of(self.elements))
        else:
            item = self._item(self.elements)
            at[self.element] = var(item)
            loops.append(item)
            if is_last:
                # elements beyond the last are summed as well, and only not stored
                limits = self._limits(self.element, f"{item} + {{0}}")
                loops.append(self.loop("once", *limits, size=1))
        dealt, others = _longest_first(product.free, self.element, self.length)
        # the longest index is dealt out, as it leaves the fewest workers idle
        worker = self._item(self.workers) if dealt else self._first_of(self.workers)
        loops.append(worker)
        n_sums, stride = self.n_sums, self.workers.n_items * self.n_sums
        if dealt:
            length = self.length(dealt)
            step = self.loop("step", f"{worker} + {stride}*{{}} < {length}")
            inames, of_others = self.loops_over(others)
            at |= of_others
            loops += [step, *inames]
            start = p.Sum((var(worker), stride * var(step)))
        else:
            n_sums = 1

        def block() -> tuple[str, dict[str, Expression]]:
            if not dealt:
                return self.loop("r", size=1, tag="unr"), {}
            # the rows of a work-item are as many apart as there are workers, so that
            # workers side by side have neighbouring ones
            n = self.workers.n_items
            limit = f"{worker} + {stride}*{step} + {n}*{{}} < {length}"
            r = self.loop("r", limit, size=n_sums, tag="unr")
            return r, {dealt: p.Sum((start, n * var(r)))}

        acc = var(self.array("acc", (n_sums,), dtype))
        # all sums of a block, also those beyond the end, which are only not stored
        every = self.loop("r", size=n_sums, tag="unr")
        zero = self.assign("zero", acc[var(every)], dtype.type(0), [*loops, every])
        sums, of_sums = self.loops_over(product.summed)
        r, of_block = block()
        factors = tuple(value.at({**at, **of_block, **of_sums}) for value in values)
        term = factors[0] if len(factors) == 1 else p.Product(factors)
        add = self.assign(
            "add", acc[var(r)], p.Sum((acc[var(r)], term)), [*loops, *sums, r],
            [zero, *(insn for value in values for insn in value.after)],
        )  # fmt: skip
        r, of_block = block()
        return store(acc[var(r)], {**at, **of_block}, [*loops, r], (add,))


def space(workload: Workload) -> Space | None:
    """Offer groups where one output index is long, and the tiles of all else small."""
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    elements = tuple(
        i
        for i in element_indices(einsum)
        if _shared_bytes(einsum, i, h.MIN_ELEMENTS, False) <= h.SHARED_BYTES
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
    constraint = partial(_excess, einsum)

    def starts() -> list[Parameters]:
        tried: list[Parameters] = [
            {"element": elements[0], **dict(zip(NAMES, values, strict=True))}
            for values in h.ELEMENT_STARTS
        ]
        return [start for start in tried if constraint(start) is None]

    return starting_with(Space(table, constraint), starts)


def _excess(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    """Explain what exceeds the work-groups that every GPU supports; None if nothing."""
    n_elements = number(parameters, "elements")
    n_items = n_elements * number(parameters, "workers")
    if not h.WARP <= n_items <= h.MAX_ITEMS:
        return f"{n_items} work-items in a group, expected {h.WARP} to {h.MAX_ITEMS}"
    element, is_staged = text(parameters, "element"), bool(parameters["stage_matrices"])
    n_bytes = _shared_bytes(einsum, element, n_elements, is_staged)
    if n_bytes > h.SHARED_BYTES:
        return f"{n_bytes} bytes of shared memory, of {h.SHARED_BYTES}"
    return None


def _shared_bytes(
    einsum: BatchedEinsum, element: str, n_elements: int, is_staged: bool
) -> int:
    """Count the bytes of a work-group: operands, and products of the chosen path."""
    # run-time extents count with a typical value, elements with those of a group
    extents = {i: typical(extent) for i, extent in einsum.extents.items()}
    extents[element] = n_elements
    used = {
        (operand.name, term)
        for row in einsum.rows
        for operand, term in zip(row, einsum.inputs, strict=True)
    }
    # operands in tiles: those with elements, and matrices if they are copied
    tiles = [term for _, term in used if term and (element in term or is_staged)]
    # the last product goes to the output; those before it to shared memory
    inner = _products(einsum.inputs, einsum.output, extents)[:-1]
    tiles += einsum.batch_size * [product.free for product in inner]
    n_entries = sum(prod(extents[index] for index in span) for span in tiles)
    return n_entries * einsum.operands[0].dtype.itemsize


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel) -> float:
    """Predict the seconds; sums read shared memory, and matrices from the cache."""
    assert machine.gpu is not None
    element, rows = text(parameters, "element"), number(parameters, "rows")
    n_elements, workers = (number(parameters, name) for name in NAMES[:2])
    is_staged = bool(parameters["stage_matrices"])
    is_by_element = parameters["lane"] == LANES[0]
    itemsize = itemsize_of(einsum)
    n_groups = -(-points(einsum, (element,)) // n_elements)
    extents = {i: points(einsum, (i,)) for i in einsum.indices} | {element: n_elements}

    def load_cycles(value: IndexList, dealt: str) -> float:
        """Count the cycles of a load of a warp; an entry for all items takes one."""
        words = itemsize / 4
        if is_by_element:
            # neighbouring elements lie side by side; else all lanes read one entry
            return max(1.0, words) if element in value else 1.0
        if dealt not in value:
            return 1.0
        stride = prod(extents[i] for i in value[value.index(dealt) + 1 :])
        if element in value or is_staged:
            # a stride with a divisor in common with the 32 banks hits only some of them
            return max(words, min(workers, gcd(int(stride * words), h.WARP)))
        # from the cache: as many sectors as the workers of a warp touch
        return max(1.0, min(workers * stride * words * 4 / h.LINE_BYTES, workers / 4))

    products = _products(einsum.inputs, einsum.output, extents)
    multiply_adds, requests = 0.0, 0.0
    for product in products:
        # without elements in the result, the first item of each worker computes it
        n_lanes = n_elements if element in product.free else 1
        dealt, others = _longest_first(product.free, element, extents.__getitem__)
        length = extents[dealt] if dealt else 1
        busy = min(workers, length)
        n_terms = float(-(-length // busy) * busy * n_lanes)
        n_terms *= prod(extents[i] for i in (*others, *product.summed))
        # a value without the dealt index is read once for all rows of a work-item
        cycles = sum(
            load_cycles(value, dealt) / (1 if dealt in value else rows)
            for value in product.factors
        )
        # warps that are not full take as long as full ones
        n_terms *= h.WARP / min(h.WARP, n_lanes * busy)
        multiply_adds += n_terms * max(1, len(product.factors) - 1)
        requests += n_terms / h.WARP * (cycles + h.OVERHEAD_CYCLES / rows)
    n_bytes = group_bytes(einsum, extents)
    # a warp that writes far apart moves a sector for each entry
    output, n_rows = einsum.output, einsum.batch_size
    others = [i for i in output if i != element]
    longest = max(others, key=extents.__getitem__, default=element)
    lanes: list[dict[str, int]] = [{element: k} for k in range(h.WARP)]
    if not is_by_element:
        n = min(workers, extents[longest])
        lanes = [{longest: k % n, element: k // n} for k in range(h.WARP)]
    n_results = prod(extents[i] for i in output) * n_rows
    stored = request_cycles(einsum, output, itemsize, lanes) * n_results / h.WARP
    # sums of a work-item along the longest index: compilers unroll these loops
    n_dealt = -(-max((extents[i] for i in others), default=1) // workers)
    return launch_s(
        machine.gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=n_elements * workers,
            itemsize=itemsize,
            multiply_adds=n_groups * n_rows * multiply_adds,
            requests=n_groups
            * (n_rows * requests + stored + 2 * n_bytes / h.LINE_BYTES),
            cached_bytes=n_groups * (n_bytes + stored * h.LINE_BYTES),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=h.STEPS_OF_SUM * (1 + len(products)),
            shared_bytes=_shared_bytes(einsum, element, n_elements, is_staged),
            # 44 for addresses and counters; unrolled sums stay in registers
            registers=min(MAX_REGISTERS, 44 + 2 * (itemsize // 4) * n_dealt),
            chains=rows,
        ),
    )


GPU_ELEMENTS = register(
    Transform(
        "gpu_elements",
        1,
        "short contractions over many elements, in shared memory",
        space,
        gpu_elements,
        cost,
        devices=GPUS,
    )
)
