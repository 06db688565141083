"""Operators with one matrix for all elements, on tensor cores of double precision.

Each warp keeps some rows of the matrix in registers, and multiplies one tile of
elements after another by them. The rows of a batch are computed one after another in
each tile. :mod:`feinsum.transforms.gpu.operator_mma_writer` draws the tiles.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA", for blocks of warps and instructions;
paper, section 7, for the steps before and after the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import MachineModel, count_distinct_bytes, count_points
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.cost import LaunchWork, count_group_bytes, predict_launch_s
from feinsum.transforms.gpu.operator_mma_writer import OperatorMmaWriter
from feinsum.transforms.gpu.operator_steps import NAMES, OperatorSteps, OperatorTiles
from feinsum.transforms.gpu.tiles import GPUS, is_double
from feinsum.transforms.primitives import begin
from feinsum.transforms.registry import (
    Parameters,
    Space,
    Transform,
    list_choices,
    register,
    with_starts,
)
from feinsum.transforms.roles import find_element_indices, get_text


def apply_gpu_operator_mma(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    parameters: Parameters,
    *,
    has_early_loads: bool = True,
) -> lp.TranslationUnit:
    """Multiply tiles of elements by the matrix, of which each warp holds some rows.

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

    Parameters:
        element: the long index.
        elements: elements of a tile.
        height: elements of a tile that a warp multiplies.
        width: rows of the matrix that a warp holds.
        terms: terms that one instruction adds to each sum.
        turns: tiles that a group multiplies one after another.
        groups: groups for which a multiprocessor must have enough registers.
        ahead: whether to load a tile to registers while the previous one is multiplied.
    """
    schedule = begin(t_unit, nest)
    steps = _find_steps(nest.einsum, get_text(parameters, "element"))
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
    return apply_gpu_operator_mma(t_unit, nest, parameters, has_early_loads=False)


def _find_steps(einsum: BatchedEinsum, element: str) -> OperatorSteps | None:
    """Return steps that sum over all indices of a tile, and store results in order."""
    steps = OperatorSteps.of(einsum, element)
    # An outer index would need a tile for each value. The results go through shared
    # memory in the order of the output, so rows of an element have to be adjacent.
    if steps is None or {*steps.tile} != {*steps.contracted} or not steps.contracted:
        return None
    return steps if steps.has_results_in_order(einsum) else None


def _make_space(workload: Workload) -> Space | None:
    """Fit operators in double precision with a long element index and one matrix."""
    einsum = workload.einsum
    if not is_double(einsum):
        return None
    fits = {i: s for i in find_element_indices(einsum) if (s := _find_steps(einsum, i))}
    if not fits:
        return None
    table = {
        "element": tuple(fits),
        "elements": (32, 64, 16),
        "height": (32, 16),
        "width": (8, 16, 24),
        "terms": (4, 8),
        "turns": (4, 5, 6, 7, 8, 10, 13, 2, 1),
        "groups": (2, 3, 4, 5, 1),
        "ahead": (True, False),
    }

    def constraint(parameters: Parameters) -> str | None:
        steps = fits.get(get_text(parameters, "element"))
        if steps is None:
            return "no product of elements with one matrix"
        return _find_excess(OperatorTiles.of(einsum, steps, parameters))

    def starts() -> Iterator[Parameters]:
        first = {"element": table["element"][0], "ahead": True}
        for values in h.OPERATOR_MMA_STARTS:
            yield first | dict(zip(NAMES, values, strict=True))

    def others() -> Iterable[Parameters]:
        # more terms in an instruction waste more of the last one of a sum
        return list_choices(
            {**table, "terms": (4,), "turns": (4, 7, 10), "ahead": (True,)}
        )

    return with_starts(Space(table, constraint), starts, others)


def _find_excess(tiles: OperatorTiles) -> str | None:
    """Explain which limit of GPUs with such tensor cores is exceeded, or None."""
    if tiles.elements % tiles.height:
        return f"{tiles.height} elements of a warp do not divide {tiles.elements}"
    n_items = h.WARP * tiles.n_warps
    if n_items > h.MAX_ITEMS:
        return f"{n_items} work-items in a group, expected at most {h.MAX_ITEMS}"
    # what a lane holds during a whole turn; fragments of the tile are short-lived
    n_held = tiles.n_sums + tiles.n_fragments
    if n_held > h.MAX_HELD:
        return f"{n_held} numbers of a lane, expected at most {h.MAX_HELD}"
    # `__launch_bounds__` makes the compiler spill what exceeds this
    most = h.GROUP_REGISTERS // (n_items * tiles.groups)
    if tiles.groups > 1 and 2 * n_held + h.MIN_REGISTERS > most:
        return f"{n_held} numbers of a lane do not fit {most} registers"
    n_bytes = 8 * tiles.n_shared
    if tiles.groups * n_bytes > h.SHARED_BYTES_SM80:
        return (
            f"{tiles.groups} times {n_bytes} bytes of shared memory, of "
            f"{h.SHARED_BYTES_SM80}"
        )
    return None


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds; tiles and results pass once through shared memory."""
    gpu = machine.gpu
    assert gpu is not None
    # the family gains nothing where tensor cores are not faster than other units
    if gpu.matrix_multiply_adds[8] <= gpu.multiply_adds[8]:
        return inf
    element = get_text(parameters, "element")
    steps = _find_steps(einsum, element)
    assert steps is not None
    tiles = OperatorTiles.of(einsum, steps, parameters)
    n_rows = einsum.batch_size
    n_turns = -(-count_points(einsum, (element,)) // tiles.elements)
    n_groups = -(-n_turns // tiles.turns)
    box = {i: count_points(einsum, (i,)) for i in einsum.indices}
    # each group reads the matrix once, not for each tile
    matrices = 8 * tiles.n_matrices * tiles.n_deferred * tiles.n_rows * tiles.n_terms
    n_bytes = count_group_bytes(einsum, box | {element: tiles.elements}) - matrices
    products = tiles.n_deferred * tiles.across * tiles.width * tiles.depth
    per_line = h.LINE_BYTES // 8
    n_items = h.WARP * tiles.n_warps
    of_element = [i for i in einsum.inputs[tiles.streamed] if i != element]
    most = min(255, h.GROUP_REGISTERS // (tiles.groups * n_items))
    # accesses to shared memory for each element: every warp across reads fragments,
    # results are written and read, the tile and its factors are written
    entries = tiles.across * tiles.depth + 2 * tiles.n_fan * tiles.n_rows
    entries += (len(steps.early) + 2) * tiles.n_terms
    of_turn = h.STEPS_AHEAD if tiles.is_ahead else h.STEPS_OF_TURN
    return predict_launch_s(
        gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=n_items,
            itemsize=8,
            multiply_adds=n_turns * n_rows * tiles.elements * products,
            requests=n_turns * n_rows * tiles.elements * entries / per_line,
            cached_bytes=n_turns * n_bytes + n_groups * matrices,
            distinct_bytes=sum(count_distinct_bytes(einsum)),
            steps=h.STEPS_OF_TURN + of_turn * n_rows * tiles.turns,
            shared_bytes=8 * tiles.n_shared,
            registers=min(most, 64 + 2 * (tiles.n_sums + tiles.n_fragments)),
            chains=tiles.n_sums,
            n_loads=count_points(einsum, of_element) * tiles.elements / n_items,
            is_on_tensor_cores=True,
        ),
    )


GPU_OPERATOR_MMA = register(
    Transform(
        "gpu_operator_mma",
        2,
        "one matrix for all elements, on tensor cores of double precision",
        _make_space,
        apply_gpu_operator_mma,
        _predict_s,
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
