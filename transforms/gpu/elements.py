"""Batches over one long index: operators of discontinuous Galerkin codes.

Source: paper, section 7 (loop permutation, hoisting, tiles of the elements and of the
reference matrices in shared memory).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import loopy as lp
import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.paths import pairwise_path
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    LINE_BYTES,
    OVERHEAD_CYCLES,
    WARP,
    Launch,
    group_bytes,
    itemsize_of,
    launch_s,
    request_cycles,
)
from feinsum.transforms.gpu.grid import GPUS, MOST_ITEMS, SHARED_BYTES
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters, Space, Transform, every, register
from feinsum.transforms.roles import (
    element_indices,
    has_real_dtype,
    number,
    text,
    typical,
)

__all__ = ["GPU_ELEMENTS"]

LANES = ("element", "row")
"""What neighbouring work-items differ in."""

FEWEST_ELEMENTS = 8
"""Of a work-group."""

STEPS_OF_SUM = 4
"""What a sum waits for the group, in loads."""


def gpu_elements(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Contract in pairs for some elements a group, all that is shared in shared memory.

    Rewrite, for the gradient ``xre,rij,ej->xei``::

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


class _Elements:
    """Writes the loops; see :func:`gpu_elements`."""

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


def _space(workload: Workload) -> Space | None:
    """One long output index; every other extent is known and the tiles are small."""
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    elements = tuple(i for i in element_indices(einsum) if _fits(einsum, i))
    if not elements:
        return None
    return {
        "element": elements,
        "elements": (32, 16, 64, 8, 128),
        "workers": (4, 8, 2, 16, 32, 1),
        "rows": (2, 1, 4, 5, 8),
        "lane": LANES,
        "stage_matrices": (True, False),
    }


def _fits(einsum: BatchedEinsum, element: str) -> bool:
    return _shared_bytes(einsum, element, FEWEST_ELEMENTS, False) <= SHARED_BYTES


def _shared_bytes(
    einsum: BatchedEinsum, element: str, n_elements: int, is_staged: bool
) -> int:
    """Of a work-group: operands, and products in the order that is taken."""
    extents = {i: typical(extent) for i, extent in einsum.extents.items()}
    extents[element] = n_elements

    def entries(span: Sequence[str]) -> int:
        return prod(extents[index] for index in span)

    used = {
        (operand.name, term)
        for row in einsum.rows
        for operand, term in zip(row, einsum.inputs, strict=True)
    }
    n_entries = sum(
        entries(term) for _, term in used if term and (element in term or is_staged)
    )
    terms = list(einsum.inputs)
    path = (
        pairwise_path(einsum.inputs, einsum.output, tuple(extents.items()))
        if len(terms) > 1
        else ()
    )
    for pair in path[:-1]:
        joint = dict.fromkeys(i for k in pair for i in terms[k])
        terms = [term for k, term in enumerate(terms) if k not in pair]
        outside = set(einsum.output).union(*terms)
        terms.append(tuple(index for index in joint if index in outside))
        n_entries += entries(terms[-1]) * einsum.batch_size
    return n_entries * einsum.operands[0].dtype.itemsize


def _constraint(workload: Workload, parameters: Parameters) -> str | None:
    """Groups that every GPU has room for, of a warp or more."""
    n_items = number(parameters, "elements") * number(parameters, "workers")
    if not 32 <= n_items <= MOST_ITEMS:
        return f"{n_items} work-items in a group, expected 32 to {MOST_ITEMS}"
    n_bytes = _shared_bytes(
        workload.einsum,
        text(parameters, "element"),
        number(parameters, "elements"),
        bool(parameters["stage_matrices"]),
    )
    if n_bytes > SHARED_BYTES:
        return f"{n_bytes} bytes of shared memory, of {SHARED_BYTES}"
    return None


def _starts(workload: Workload) -> tuple[Parameters, ...]:
    """Few elements with many workers, and the reverse; matrices from the cache."""
    space = _space(workload)
    if space is None:
        return ()
    names = ("elements", "workers", "rows", "lane", "stage_matrices")
    tried = ((16, 8, 4, "element", False), (8, 32, 1, "row", True),
             (64, 4, 4, "element", True), (32, 4, 5, "element", False),
             (8, 16, 2, "row", False), (128, 1, 8, "element", False))  # fmt: skip
    element = {"element": space["element"][0]}
    starts: list[Parameters] = [
        {**element, **dict(zip(names, values, strict=True))} for values in tried
    ]
    return tuple(s for s in starts if _constraint(workload, s) is None)


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Elements come once; sums read shared memory, and matrices from the cache."""
    assert machine.gpu is not None
    counted = _Counted(einsum, parameters)
    element, n_elements = text(parameters, "element"), number(parameters, "elements")
    n_groups = -(-points(einsum, (element,)) // n_elements)
    multiply_adds, requests, n_sums = counted.work()
    held = {i: points(einsum, (i,)) for i in einsum.indices} | {element: n_elements}
    n_bytes = group_bytes(einsum, held)
    stored = counted.stored_cycles() * counted.n_results / WARP
    words = itemsize_of(einsum) // 4
    return launch_s(
        machine.gpu,
        Launch(
            n_groups=n_groups,
            n_items=n_elements * number(parameters, "workers"),
            itemsize=itemsize_of(einsum),
            multiply_adds=n_groups * multiply_adds,
            requests=n_groups * (requests + stored + 2 * n_bytes / LINE_BYTES),
            cached_bytes=n_groups * (n_bytes + stored * LINE_BYTES),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=STEPS_OF_SUM * (1 + n_sums),
            shared_bytes=_shared_bytes(
                einsum, element, n_elements, bool(parameters["stage_matrices"])
            ),
            registers=40 + 2 * words * number(parameters, "rows"),
            chains=number(parameters, "rows"),
        ),
    )


class _Counted:
    """What the work-items of a group do in the sums; as :class:`_Elements` has them."""

    def __init__(self, einsum: BatchedEinsum, parameters: Parameters) -> None:
        self.einsum = einsum
        self.element = text(parameters, "element")
        self.workers, self.rows = (
            number(parameters, name) for name in ("workers", "rows")
        )
        self.n_elements = number(parameters, "elements")
        self.is_by_element = parameters["lane"] == LANES[0]
        self.is_staged = bool(parameters["stage_matrices"])
        self.extents = {i: points(einsum, (i,)) for i in einsum.indices}
        self.extents[self.element] = self.n_elements

    def work(self) -> tuple[float, float, int]:
        """Multiply-adds, cycles of the loads, and the number of sums after another."""
        einsum, terms = self.einsum, list(self.einsum.inputs)
        done: list[tuple[float, float]] = []
        for pair in self._path()[:-1]:
            values = [terms[k] for k in pair]
            joint = dict.fromkeys(i for value in values for i in value)
            terms = [term for k, term in enumerate(terms) if k not in pair]
            outside = set(einsum.output).union(*terms)
            terms.append(tuple(index for index in joint if index in outside))
            done.append(self._sum(values, terms[-1], {*joint} - outside))
        joint = dict.fromkeys(i for term in terms for i in term)
        done.append(self._sum(terms, einsum.output, {*joint} - {*einsum.output}))
        n_rows = einsum.batch_size
        multiply_adds, cycles = (n_rows * sum(part) for part in zip(*done, strict=True))
        return multiply_adds, cycles, len(done)

    @property
    def n_results(self) -> int:
        """Of a group."""
        return (
            prod(self.extents[i] for i in self.einsum.output) * self.einsum.batch_size
        )

    def stored_cycles(self) -> float:
        """In which a warp writes what its items have; sums go to the longest index."""
        output = self.einsum.output
        others = [i for i in output if i != self.element]
        dealt = max(others, key=lambda i: self.extents[i], default=self.element)
        lanes: list[dict[str, int]] = [{self.element: k} for k in range(WARP)]
        if not self.is_by_element:
            n = min(self.workers, self.extents[dealt])
            lanes = [{dealt: k % n, self.element: k // n} for k in range(WARP)]
        return request_cycles(self.einsum, output, itemsize_of(self.einsum), lanes)

    def _path(self) -> Sequence[tuple[int, ...]]:
        if self.einsum.n_operands < 2:
            return [(0,)]
        return pairwise_path(
            self.einsum.inputs, self.einsum.output, tuple(self.extents.items())
        )

    def _sum(
        self, values: Sequence[IndexList], free: IndexList, summed: set[str]
    ) -> tuple[float, float]:
        n_lanes = self.n_elements if self.element in free else 1
        others = sorted(
            (i for i in free if i != self.element), key=lambda i: (-self.extents[i], i)
        )
        dealt = others[0] if others else ""
        length = self.extents[dealt] if others else 1
        workers = min(self.workers, length)
        n_sums = -(-length // workers) * workers * n_lanes
        n_sums *= prod(self.extents[i] for i in others[1:])
        n_terms = n_sums * prod(self.extents[i] for i in summed)
        cycles = sum(
            self._cycles(value, dealt) / (1 if dealt in value else self.rows)
            for value in values
        )
        idle = WARP / min(WARP, n_lanes * workers)
        overhead = OVERHEAD_CYCLES / self.rows
        return (
            n_terms * idle * max(1, len(values) - 1),
            n_terms * idle / WARP * (cycles + overhead),
        )

    def _cycles(self, value: IndexList, dealt: str) -> float:
        """In which a warp begins to read a value; what all its items read takes one."""
        words = itemsize_of(self.einsum) / 4
        if self.is_by_element:
            return max(1.0, words) if self.element in value else 1.0
        if dealt not in value:
            return 1.0
        stride = prod(self.extents[i] for i in value[value.index(dealt) + 1 :])
        if self.element in value or self.is_staged:
            return max(words, min(self.workers, gcd(int(stride * words), WARP)))
        sectors = min(self.workers * stride * words * 4 / LINE_BYTES, self.workers / 4)
        return max(1.0, sectors)


GPU_ELEMENTS = register(
    Transform(
        "gpu_elements",
        1,
        "short contractions over many elements, in shared memory",
        _space,
        gpu_elements,
        _constraint,
        devices=GPUS,
        starts=_starts,
        cost=_cost,
        proposals=every(_space),
    )
)
