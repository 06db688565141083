"""Operators with one matrix for all elements: a product of matrices in registers.

Source: paper, section 7 (loop permutation, hoisting, tiles of the elements and of the
reference matrices in shared memory), with the blocks in registers of Nath, Tomov and
Dongarra, An Improved MAGMA GEMM for Fermi GPUs (2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
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
from feinsum.transforms.gpu.grid import GPUS, MAX_ITEMS
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.gpu.operator_writer import OperatorWriter
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

SHARED_BYTES = 96 << 10
"""Shared memory of a work-group: more than what a kernel may declare, and what GPUs
from Volta on give to a launch that asks for it, but for Turing.
"""
MAX_SUMS = 64
"""Most sums of a work-item in registers."""
MIN_ITEMS = 32
STEPS_OF_ROW = 8
"""Latency of a row of the batch: of its tile and its sums, in loads."""


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
    return OperatorWriter(schedule, steps, parameters).written().t_unit


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    fits = {i: s for i in element_indices(einsum) if (s := Steps.of(einsum, i))}
    if not fits:
        return None
    in_order = all(steps.lies_in_order(einsum) for steps in fits.values())
    return {
        "element": tuple(fits),
        "lanes": (32, 16, 64),
        "columns": (2, 1, 4),
        "rows": (4, 2, 5, 1, 3, 7, 8),
        "stage_matrix": (True, False),
        "stage_output": (True, False) if in_order else (False,),
    }


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
    if not MIN_ITEMS <= lanes * n_workers <= MAX_ITEMS:
        return (
            f"{lanes * n_workers} work-items in a group, expected {MIN_ITEMS} to "
            f"{MAX_ITEMS}"
        )
    # more sums would spill, whatever else the work-item holds
    n_sums = volume(steps.deferred) * rows * columns
    if n_sums > MAX_SUMS:
        return f"{n_sums} sums of a work-item, of {MAX_SUMS}"
    n_bytes = _shared_bytes(einsum, steps, parameters)
    if n_bytes > SHARED_BYTES:
        return f"{n_bytes} bytes of shared memory, of {SHARED_BYTES}"
    return None


def _shared_bytes(einsum: BatchedEinsum, steps: Steps, parameters: Parameters) -> int:
    """The shared memory of a work-group, in bytes."""
    lanes, columns, rows = (
        number(parameters, name) for name in ("lanes", "columns", "rows")
    )

    def volume(indices: Sequence[str]) -> int:
        return prod(typical(einsum.extents[i]) for i in indices)

    n_rows, n_elements = volume(steps.rows), lanes * columns
    # one entry more, and an odd number of rows below: see `OperatorWriter.written`
    entries = volume(steps.tile) * (n_elements + 1)
    if parameters["stage_matrix"]:
        n_matrices = len({row[steps.matrix] for row in einsum.rows})
        inner = volume((*steps.contracted, *steps.deferred))
        entries += n_matrices * inner * -(-n_rows // rows) * rows
    if parameters["stage_output"]:
        entries += n_elements * (n_rows | 1)
    return entries * einsum.operands[0].dtype.itemsize


def _starts(workload: Workload) -> Iterator[Parameters]:
    space = _space(workload)
    if space is None:
        return
    names = ("lanes", "columns", "rows", "stage_matrix")
    # The first four were the fastest of 35 of 36 operators of DG on an H100.
    tried = ((16, 2, 2, True), (32, 1, 4, True), (64, 1, 2, True), (32, 4, 2, True),
             (32, 2, 5, True), (32, 2, 4, False), (32, 1, 2, False), (32, 4, 5, True),
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
    """Predict the seconds; a step reads a row of the matrix and a column of a tile."""
    assert machine.gpu is not None
    element = text(parameters, "element")
    steps = Steps.of(einsum, element)
    assert steps is not None
    lanes, columns, rows = (
        number(parameters, name) for name in ("lanes", "columns", "rows")
    )
    # the last worker may have fewer rows, and takes as long
    n_workers = -(-points(einsum, steps.rows) // rows)
    n_elements, n_items = lanes * columns, lanes * n_workers
    n_groups = -(-points(einsum, (element,)) // n_elements)
    itemsize, n_rows = itemsize_of(einsum), einsum.batch_size
    box = {i: points(einsum, (i,)) for i in einsum.indices} | {element: n_elements}
    n_bytes = group_bytes(einsum, box)
    n_sums = points(einsum, steps.deferred) * rows * columns
    n_steps = points(einsum, (*steps.outer, *steps.contracted))
    # entries of the matrix are broadcast to the lanes, those of the tile are not
    of_step = points(einsum, steps.deferred) * rows + columns * itemsize / 4
    filled = n_elements * points(einsum, (*steps.tile, *steps.gathered))
    # neighbouring lanes have neighbouring elements: so are their reads and stores
    near = [{element: k} for k in range(min(WARP, lanes))]
    n_results = points(einsum, (*steps.outer, *steps.fan)) * rows * columns
    late = sum(request_cycles(einsum, einsum.inputs[k], itemsize, near)
               for k in steps.late)  # fmt: skip
    # by way of shared memory, stores are in runs
    stored = 1.0
    if not parameters["stage_output"]:
        stored = request_cycles(einsum, einsum.output, itemsize, near)
    of_results = n_results * (points(einsum, steps.deferred) * late + 2 * stored)
    of_item = n_steps * (of_step + OVERHEAD_CYCLES) + of_results
    # each entry of the tile takes a load for each early operand, and a store
    cycles = n_items / WARP * of_item + (len(steps.early) + 1) * filled / WARP
    written = n_items / WARP * n_results * stored * LINE_BYTES
    return launch_s(
        machine.gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=n_items,
            itemsize=itemsize,
            multiply_adds=n_groups * n_items * n_rows
            * (n_steps * n_sums + n_results * points(einsum, steps.deferred)),
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
        space_of_parts(_space, _constraint, starts=_fitting_starts, proposes_all=True),
        gpu_operator,
        _cost,
        devices=GPUS,
    )
)
