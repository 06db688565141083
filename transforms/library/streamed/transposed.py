"""Transposes: tiles that are read along one index and stored along another."""

from __future__ import annotations

import loopy as lp

from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine
from feinsum.transforms.library.packed.family import suits_packing
from feinsum.transforms.library.streamed.cost import (
    LINE_BYTES,
    streaming_s,
    vector_cycles,
)
from feinsum.transforms.library.streamed.generic import streaming_order
from feinsum.transforms.library.streamed.nest import StreamedNest, Streams
from feinsum.transforms.primitives import begin
from feinsum.transforms.registry import Parameters, Space, Transform, register
from feinsum.transforms.roles import number, text, typical, volume

MIN_EXTENT = 4
"""Of an axis along which lines are read or stored; shorter ones fill little of them."""


def transposed(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Transpose tiles in private memory, so that reads and stores are of whole lines.

    Rewrite, for ``ij->ji``::

        for j, i:  out[j,i] = A[i,j]

        for i_tile, j_tile in parallel:
            for i' < height, j' < width:  tile[i',j'] = A[i,j]
            for j' < width, i' < height:  out[j,i] = tile[i',j']

    Parameters:
        vector: the output index that is the last of an operand.
        width: its entries of a tile.
        height: entries of a tile along the last output index.
        step: entries of the innermost summed index that an iteration adds.
    """
    schedule = begin(t_unit, nest)
    vector, across = text(parameters, "vector"), nest.einsum.output[-1]
    cuts = {across: number(parameters, "height"), vector: number(parameters, "width")}
    summed = streaming_order(nest.einsum, vector)
    streams = Streams(vector, summed, number(parameters, "step"), cuts, across)
    return StreamedNest(schedule, streams).written().t_unit


def _space(workload: Workload) -> Space | None:
    """A large operand's last index is in the output, where another one is the last."""
    einsum = workload.einsum
    if not einsum.output or typical(einsum.extents[einsum.output[-1]]) < MIN_EXTENT:
        return None
    largest = sorted(einsum.inputs, key=lambda term: -volume(einsum, term))
    vectors = [
        term[-1]
        for term in largest
        if term
        and term[-1] in einsum.output[:-1]
        and typical(einsum.extents[term[-1]]) >= MIN_EXTENT
    ]
    if not vectors:
        return None
    line = max(LINE_BYTES // min(d.itemsize for d in einsum.output_dtypes), 4)
    return {
        "vector": tuple(dict.fromkeys(vectors)),
        "width": (32, 64, 512),
        "height": (4 * line, line),
        "step": (4, 1) if einsum.summation_indices else (1,),
    }


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Seconds at best: a tuning leaves out what takes far too long even so.

    Nothing is proposed for predictions, since ``turned`` costs less.
    """
    vector, step = text(parameters, "vector"), number(parameters, "step")
    cycles = vector_cycles(einsum, vector, machine, most_bytes=64, step=step)
    return streaming_s(einsum, cycles, machine, n_groups=machine.n_cores)


TRANSPOSED = register(
    Transform(
        "transposed",
        1,
        "tiles read along one index and stored along another",
        _space,
        transposed,
        is_searched=lambda einsum: not suits_packing(einsum),
        cost=_cost,
        proposals=lambda _workload: (),
    )
)
