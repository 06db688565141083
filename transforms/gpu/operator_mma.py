"""Operators with one matrix for all elements, on tensor cores of double precision.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA", for blocks of warps and instructions;
paper, section 7, for what comes before and after the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import LINE_BYTES, LaunchWork, group_bytes, launch_s
from feinsum.transforms.gpu.grid import GPUS, MAX_ITEMS
from feinsum.transforms.gpu.mma import is_double
from feinsum.transforms.gpu.operator_mma_writer import OperatorMmaWriter
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.gpu.operator_tiles import NAMES, OperatorTiles
from feinsum.transforms.primitives import begin
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    choices,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import element_indices, text

SHARED_BYTES = 163 << 10
"""Shared memory of a multiprocessor of sm_80; some newer ones have less."""
MAX_HELD = 96
"""Most sums and entries of matrices of a lane, of which each takes two registers."""
REGISTERS = 1 << 16
"""Registers of a multiprocessor."""
MIN_REGISTERS = 32
"""Registers of a lane for addresses and for what is loaded."""
STEPS, STEPS_AHEAD = 16, 2
"""Latency of a tile and its sums, in loads; the second one with loads ahead."""


def gpu_operator_mma(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    parameters: Parameters,
    *,
    has_early_loads: bool = True,
) -> lp.TranslationUnit:
    """Multiply tiles of elements with the matrix, of which each warp holds some rows.

    Rewrite, for the gradient ``xre,rij,ej->xei``::

        for x, e, i:  out[x,e,i] = sum((r,j), J[x,r,e]*D[r,i,j]*u[e,j])

        for group, warp, lane in parallel:
            matrix[:,:,:] = D[:,i,:]                       # for rows i of the warp
            for turn:
                tile[:,:], factors[:,:,:] = u[e,:], J[:,:,e]     # all work-items
                (barrier)
                for j, r:  acc[r,:,:] += tile[:,j] @ matrix[r,:,j]     # a warp
                for x:  result[x,:,:] = sum(r, factors[x,r,:]*acc[r,:,:])
                (barrier)
                out[:,e,:] = result[:,:,:]                 # all work-items

    A batch goes through the same tiles row after row.

    Parameters:
        element: the long index.
        elements: of a tile.
        height: elements of a warp.
        width: rows of the matrix of a warp.
        terms: that one instruction adds to each sum.
        turns: tiles of a group, one after another.
        groups: that a multiprocessor has registers for at least.
        ahead: load a tile to registers while the one before is multiplied.
    """
    schedule = begin(t_unit, nest)
    steps = _steps(nest.einsum, text(parameters, "element"))
    if steps is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is no product of elements with one matrix whose "
            "results lie in order"
        )
    tiles = OperatorTiles.of(nest.einsum, steps, parameters)
    writer = OperatorMmaWriter(schedule, steps, tiles, has_early_loads=has_early_loads)
    return writer.written().t_unit


def _apply_1(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    return gpu_operator_mma(t_unit, nest, parameters, has_early_loads=False)


def _steps(einsum: BatchedEinsum, element: str) -> Steps | None:
    """Steps in which all of a tile is summed, for results that lie in order."""
    steps = Steps.of(einsum, element)
    # an outer index of the tile would take a tile for each value; the store goes
    # through shared memory in the order of the output, so rows have to lie together
    if steps is None or {*steps.tile} != {*steps.contracted} or not steps.contracted:
        return None
    return steps if steps.lies_in_order(einsum) else None


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    if not is_double(einsum):
        return None
    fits = tuple(i for i in element_indices(einsum) if _steps(einsum, i))
    if not fits:
        return None
    return {
        "element": fits,
        "elements": (32, 64, 16),
        "height": (32, 16),
        "width": (8, 16, 24),
        "terms": (4, 8),
        "turns": (4, 5, 6, 7, 8, 10, 13, 2, 1),
        "groups": (2, 3, 4, 5, 1),
        "ahead": (True, False),
    }


def _constraint(workload: Workload, parameters: Parameters) -> str | None:
    """Groups that every such GPU has room for."""
    einsum = workload.einsum
    steps = _steps(einsum, text(parameters, "element"))
    if steps is None:
        return "no product of elements with one matrix"
    tiles = OperatorTiles.of(einsum, steps, parameters)
    if tiles.elements % tiles.height:
        return f"{tiles.height} elements of a warp do not divide {tiles.elements}"
    n_items = WARP * tiles.n_warps
    if n_items > MAX_ITEMS:
        return f"{n_items} work-items in a group, expected at most {MAX_ITEMS}"
    # what a lane holds over a whole turn; fragments of the tile come and go
    n_held = tiles.n_sums + tiles.n_fragments
    if n_held > MAX_HELD:
        return f"{n_held} numbers of a lane, expected at most {MAX_HELD}"
    # `__launch_bounds__` makes the compiler spill what exceeds this
    most = REGISTERS // (n_items * tiles.groups)
    if tiles.groups > 1 and 2 * n_held + MIN_REGISTERS > most:
        return f"{n_held} numbers of a lane do not fit {most} registers"
    n_bytes = 8 * tiles.n_shared
    if tiles.groups * n_bytes > SHARED_BYTES:
        return (
            f"{tiles.groups} times {n_bytes} bytes of shared memory, of {SHARED_BYTES}"
        )
    return None


def _starts(workload: Workload) -> Iterator[Parameters]:
    space = _space(workload)
    if space is None:
        return
    # The fastest of 34 of 40 operators of DG on an H100 are among the first five.
    tried = ((32, 32, 8, 4, 10, 2), (64, 32, 8, 4, 6, 4), (32, 32, 8, 4, 5, 5),
             (32, 32, 8, 4, 7, 3), (64, 32, 8, 4, 4, 3), (64, 16, 16, 4, 8, 3),
             (16, 16, 8, 4, 13, 3), (64, 16, 8, 4, 8, 4))  # fmt: skip
    for values in tried:
        yield {
            "element": space["element"][0],
            **dict(zip(NAMES, values, strict=True)),
            "ahead": True,
        }


def _fitting_starts(workload: Workload) -> tuple[Parameters, ...]:
    return tuple(s for s in _starts(workload) if _constraint(workload, s) is None)


def _proposals(workload: Workload) -> Iterable[Parameters]:
    """Propose where searches begin, and every tile of the fastest kind."""
    space = _space(workload)
    if space is None:
        return
    yield from _fitting_starts(workload)
    # with more terms an instruction, more zeros are multiplied at the end of a sum
    yield from choices({**space, "terms": (4,), "turns": (4, 7, 10), "ahead": (True,)})


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Predict the seconds; tiles and results pass through shared memory once."""
    gpu = machine.gpu
    assert gpu is not None
    # tensor cores that are not faster than the other units gain nothing
    if gpu.matrix_multiply_adds[8] <= gpu.multiply_adds[8]:
        return inf
    element = text(parameters, "element")
    steps = _steps(einsum, element)
    assert steps is not None
    tiles = OperatorTiles.of(einsum, steps, parameters)
    n_rows = einsum.batch_size
    n_turns = -(-points(einsum, (element,)) // tiles.elements)
    n_groups = -(-n_turns // tiles.turns)
    box = {i: points(einsum, (i,)) for i in einsum.indices}
    # read once for a group, from the cache, and not for each tile
    matrices = 8 * tiles.n_matrices * tiles.n_deferred * tiles.n_rows * tiles.n_terms
    n_bytes = group_bytes(einsum, box | {element: tiles.elements}) - matrices
    products = tiles.n_deferred * tiles.across * tiles.width * tiles.depth
    per_line = LINE_BYTES // 8
    n_items = WARP * tiles.n_warps
    of_element = [i for i in einsum.inputs[tiles.streamed] if i != element]
    most = min(255, REGISTERS // (tiles.groups * n_items))
    # shared memory, for each element: fragments by every warp across, results in and
    # out, and the tile with its factors in
    entries = tiles.across * tiles.depth + 2 * tiles.n_fan * tiles.n_rows
    entries += (len(steps.early) + 2) * tiles.n_terms
    return launch_s(
        gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=n_items,
            itemsize=8,
            multiply_adds=n_turns * n_rows * tiles.elements * products,
            requests=n_turns * n_rows * tiles.elements * entries / per_line,
            cached_bytes=n_turns * n_bytes + n_groups * matrices,
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=STEPS
            + (STEPS_AHEAD if tiles.is_ahead else STEPS) * n_rows * tiles.turns,
            shared_bytes=8 * tiles.n_shared,
            registers=min(most, 64 + 2 * (tiles.n_sums + tiles.n_fragments)),
            chains=tiles.n_sums,
            n_loads=points(einsum, of_element) * tiles.elements / n_items,
            is_on_tensor_cores=True,
        ),
    )


GPU_OPERATOR_MMA = register(
    Transform(
        "gpu_operator_mma",
        2,
        "one matrix for all elements, on tensor cores of double precision",
        space_of_parts(
            _space, _constraint, starts=_fitting_starts, proposals=_proposals
        ),
        gpu_operator_mma,
        _cost,
        devices=GPUS,
    )
)
register(
    replace(
        GPU_OPERATOR_MMA,
        version=1,
        summary="gpu_operator_mma@2, but the compiler decides when to load ahead",
        apply=_apply_1,
    )
)
