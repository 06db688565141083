"""Batches over one long index: operators of discontinuous Galerkin codes.

Source: paper, section 7 (loop permutation, hoisting, tiles of the elements and of the
reference matrices in shared memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import loopy as lp

from feinsum.contraction.paths import pairwise_path
from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.targets.cuda.figures import MAX_REGISTERS
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    LINE_BYTES,
    OVERHEAD_CYCLES,
    WARP,
    LaunchWork,
    group_bytes,
    itemsize_of,
    launch_s,
    request_cycles,
)
from feinsum.transforms.gpu.element_writer import LANES, ElementWriter
from feinsum.transforms.gpu.grid import GPUS, MAX_ITEMS, SHARED_BYTES
from feinsum.transforms.primitives import begin
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import (
    element_indices,
    has_real_dtype,
    number,
    text,
    typical,
)

MIN_ELEMENTS = 8
"""Fewest elements of a work-group for which a family is offered."""

STEPS_OF_SUM = 4
"""Latency of the barriers of a sum, in loads."""


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
    return ElementWriter(begin(t_unit, nest), parameters).written().t_unit


def _space(workload: Workload) -> Table | None:
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
    return _shared_bytes(einsum, element, MIN_ELEMENTS, False) <= SHARED_BYTES


def _shared_bytes(
    einsum: BatchedEinsum, element: str, n_elements: int, is_staged: bool
) -> int:
    """Count the bytes of a work-group: operands, and products of the chosen path."""
    extents = {i: typical(extent) for i, extent in einsum.extents.items()}
    # run-time extents count with a typical value, elements with those of a group
    extents[element] = n_elements

    def entries(span: Sequence[str]) -> int:
        return prod(extents[index] for index in span)

    used = {
        (operand.name, term)
        for row in einsum.rows
        for operand, term in zip(row, einsum.inputs, strict=True)
    }
    # operands in tiles: those with elements, and matrices if they are copied
    n_entries = sum(
        entries(term) for _, term in used if term and (element in term or is_staged)
    )
    terms = list(einsum.inputs)
    path = (
        pairwise_path(einsum.inputs, einsum.output, tuple(extents.items()))
        if len(terms) > 1
        else ()
    )
    # the last product goes to the output; those before it to shared memory
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
    if not 32 <= n_items <= MAX_ITEMS:
        return f"{n_items} work-items in a group, expected 32 to {MAX_ITEMS}"
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
    box = {i: points(einsum, (i,)) for i in einsum.indices} | {element: n_elements}
    n_bytes = group_bytes(einsum, box)
    # a warp that writes far apart moves a sector for each entry
    stored = counted.stored_cycles() * counted.n_results / WARP
    words = itemsize_of(einsum) // 4
    return launch_s(
        machine.gpu,
        LaunchWork(
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
            # 44 for addresses and counters; sums that the compiler unrolls stay in
            # registers
            registers=min(MAX_REGISTERS, 44 + 2 * words * counted.n_dealt),
            chains=number(parameters, "rows"),
        ),
    )


class _Counted:
    """What the work-items of a group do in the sums; as ``ElementWriter`` has them."""

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
        sums: list[tuple[float, float]] = []
        for pair in self._path()[:-1]:
            values = [terms[k] for k in pair]
            joint = dict.fromkeys(i for value in values for i in value)
            terms = [term for k, term in enumerate(terms) if k not in pair]
            outside = set(einsum.output).union(*terms)
            terms.append(tuple(index for index in joint if index in outside))
            sums.append(self._sum(values, terms[-1], {*joint} - outside))
        joint = dict.fromkeys(i for term in terms for i in term)
        sums.append(self._sum(terms, einsum.output, {*joint} - {*einsum.output}))
        n_rows = einsum.batch_size
        multiply_adds, cycles = (n_rows * sum(part) for part in zip(*sums, strict=True))
        return multiply_adds, cycles, len(sums)

    @property
    def n_dealt(self) -> int:
        """Sums of a work-item along the longest index: compilers unroll these loops."""
        others = (self.extents[i] for i in self.einsum.output if i != self.element)
        return -(-max(others, default=1) // self.workers)

    @property
    def n_results(self) -> int:
        """The results of a group."""
        return (
            prod(self.extents[i] for i in self.einsum.output) * self.einsum.batch_size
        )

    def stored_cycles(self) -> float:
        """Count the cycles of a store of a warp; workers go along the longest index."""
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
        # without elements in the result, the first item of each worker computes it
        # alone
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
        # a value without the dealt index is read once for all rows of a work-item
        cycles = sum(
            self._cycles(value, dealt) / (1 if dealt in value else self.rows)
            for value in values
        )
        # warps that are not full take as long as full ones
        idle = WARP / min(WARP, n_lanes * workers)
        overhead = OVERHEAD_CYCLES / self.rows
        return (
            n_terms * idle * max(1, len(values) - 1),
            n_terms * idle / WARP * (cycles + overhead),
        )

    def _cycles(self, value: IndexList, dealt: str) -> float:
        """Count the cycles of a load of a warp; an entry for all items takes one."""
        words = itemsize_of(self.einsum) / 4
        if self.is_by_element:
            # neighbouring elements lie side by side; without them, one entry for all
            # lanes
            return max(1.0, words) if self.element in value else 1.0
        if dealt not in value:
            return 1.0
        stride = prod(self.extents[i] for i in value[value.index(dealt) + 1 :])
        if self.element in value or self.is_staged:
            # a stride with a divisor in common with the 32 banks hits only some of them
            return max(words, min(self.workers, gcd(int(stride * words), WARP)))
        # from the cache: as many sectors as the workers of a warp touch
        sectors = min(self.workers * stride * words * 4 / LINE_BYTES, self.workers / 4)
        return max(1.0, sectors)


GPU_ELEMENTS = register(
    Transform(
        "gpu_elements",
        1,
        "short contractions over many elements, in shared memory",
        space_of_parts(_space, _constraint, starts=_starts, proposes_all=True),
        gpu_elements,
        _cost,
        devices=GPUS,
    )
)
