"""Every einsum: plain loops in a good order, over blocks of the output."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import loopy as lp

from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, points
from feinsum.transforms.library.packed import suits_packing
from feinsum.transforms.library.streamed.cost import (
    restart_s,
    streaming_s,
    vector_cycles,
)
from feinsum.transforms.library.streamed.nest import StreamedNest, Streams
from feinsum.transforms.primitives import begin, with_hints
from feinsum.transforms.primitives.compiler_hints import SUMS, VECTORS
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import number, text, typical, volume

NO_INDEX = ""
"""Value of a parameter where no index fits."""

MIN_LENGTH = 16
"""Shorter loops cost more for each of their iterations."""
STRIDED = 4
"""What an entry costs if its neighbours are not used with it."""
GROUP_POINTS = 1 << 15
"""Iterations of a work-group that make its start negligible."""
TILE_BYTES = 1 << 16
"""Of the sums of all rows; more would leave the first levels of a cache."""


def generic(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Stream through all arrays, blocks of the output in parallel.

    Rewrite, for ``ij->j`` with the vector index j::

        for j:  out[j] = sum(i, A[i,j])

        for j_tile in parallel:
            for j' < width:  tile[j'] = 0
            for i_step:                           # step entries of i each
                for j' < width:  tile[j'] += A[step*i_step, j] + ...
            for j' < width:  out[width*j_tile + j'] = tile[j']

    Rewrite, for ``ij->i`` with the vector index j::

        for i:  out[i] = sum(j, A[i,j])

        for i_tile in parallel:
            for i' < block:
                for j_step:                       # step independent sums
                    for lane < step:  tile[lane] += A[i, step*j_step + lane]
                out[block*i_tile + i'] = sum of the tile

    Parameters:
        vector: the index of the innermost loop, free or summed; empty for none.
        width: values of a free vector index per work-group.
        parallel: another output index that is distributed; empty for none.
        block: its values per work-group.
        step: entries of the innermost summed index added per iteration.
        vectors: vectors that the compiler makes of the loops, ``usual`` or ``widest``.
    """
    schedule = begin(t_unit, nest)
    vector, parallel = text(parameters, "vector"), text(parameters, "parallel")
    cuts = {}
    if vector in nest.einsum.output:
        cuts[vector] = number(parameters, "width")
    if parallel != NO_INDEX:
        cuts[parallel] = number(parameters, "block")
    summed = streaming_order(nest.einsum, vector)
    step = number(parameters, "step")
    streams = Streams(vector or None, summed, step, cuts)
    written = StreamedNest(schedule, streams).written()
    hint = text({"vectors": VECTORS[0], **parameters}, "vectors")
    return with_hints(written, sums=SUMS[0], vectors=hint).t_unit


def streaming_order(einsum: BatchedEinsum, vector: str) -> Names:
    """The summation indices: the vector index last, before it the nearest ones."""
    return tuple(
        sorted(
            einsum.summation_indices,
            key=lambda index: (index == vector, -_strided_volume(einsum, index)),
        )
    )


def _strided_volume(einsum: BatchedEinsum, index: str) -> int:
    """Entries that neighbours in ``index`` do not have side by side in memory."""
    return sum(volume(einsum, term) for term in _terms(einsum) if index in term[:-1])


def _terms(einsum: BatchedEinsum) -> list[IndexList]:
    """The indices of every array that is read or written, each once."""
    return [tuple(dict.fromkeys(t)) for t in (*einsum.inputs, einsum.output)]


def _space(workload: Workload) -> Space:
    """Every einsum; the indices of unit stride first."""
    einsum = workload.einsum
    vectors = sorted(einsum.indices, key=lambda index: _vector_cost(einsum, index))
    first = vectors[0] if vectors else NO_INDEX
    parallel = [i for i in einsum.output if i != first] or list(einsum.output[:1])
    parallel.sort(key=lambda index: -typical(einsum.extents[index]))
    if einsum.output in ((), (first,)):
        parallel = [NO_INDEX]
    table: Table = {
        "vector": tuple(vectors[:3]) or (NO_INDEX,),
        "width": _widths(einsum),
        "parallel": tuple(parallel[:2]),
        "block": _blocks(einsum),
        "step": (8, 1, 32) if einsum.summation_indices else (1,),
    }
    return Space(
        table,
        partial(_find_problem, einsum),
        proposes_all=True,
        is_searched=lambda: not suits_packing(einsum),
    )


def _space_with_hint(workload: Workload) -> Space:
    space = _space(workload)
    return replace(space, table={**space, "vectors": VECTORS})


def _vector_cost(einsum: BatchedEinsum, index: str) -> tuple[float, bool]:
    """Entries of all arrays, strided ones and those of short loops counted as more."""
    n_entries = sum(volume(einsum, term) for term in _terms(einsum))
    n_counted = n_entries + (STRIDED - 1) * _strided_volume(einsum, index)
    shortness = max(1.0, MIN_LENGTH / max(typical(einsum.extents[index]), 1))
    return shortness * n_counted, index not in einsum.output


def _widths(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Without a sum there is no tile, and blocks may be long."""
    if not einsum.summation_indices:
        return (4096, 512, 32768)
    sizes = [dtype.itemsize for dtype in einsum.output_dtypes]
    fitting = [n for n in (1024, 256, 2048) if n * sum(sizes) <= TILE_BYTES]
    return tuple(fitting) or (64,)


def _blocks(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Numbers of rows: enough work for a group, then a few more and less."""
    others = volume(einsum, einsum.indices)
    longest = max((typical(einsum.extents[i]) for i in einsum.output), default=1)
    block = max(1, GROUP_POINTS * longest // max(others, 1))
    block = min(1 << (block.bit_length() - 1), 4096)
    return tuple(dict.fromkeys((block, 4 * block, max(1, block // 4))))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    vector, parallel = parameters["vector"], parameters["parallel"]
    if vector == parallel != NO_INDEX:
        return f"the index {vector!r} is the innermost loop already"
    if vector not in einsum.output and parameters["width"] != _widths(einsum)[0]:
        return "a summed vector index has no width"
    if parallel == NO_INDEX and parameters["block"] != _blocks(einsum)[0]:
        return "nothing is cut in blocks"
    return None


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Seconds: the innermost loop decides, and how many blocks there are."""
    vector, parallel = text(parameters, "vector"), text(parameters, "parallel")
    most_bytes = 64 if parameters.get("vectors") == VECTORS[1] else 32
    step = number(parameters, "step")
    cycles = vector_cycles(einsum, vector, machine, most_bytes=most_bytes, step=step)
    n_groups = 1.0
    for index, size in ((parallel, "block"), (vector, "width")):
        if index in einsum.output:
            n_groups *= max(1.0, points(einsum, (index,)) / number(parameters, size))
    loops = _loops(einsum, vector, number(parameters, "width"))
    seconds = streaming_s(einsum, cycles, machine, n_groups=n_groups, loops=loops)
    if not einsum.summation_indices or vector not in einsum.output:
        return seconds
    return seconds + restart_s(
        einsum,
        vector,
        streaming_order(einsum, vector)[-1],
        machine,
        n_beside=step,
        width=number(parameters, "width"),
        in_registers=False,
    )


def _loops(einsum: BatchedEinsum, vector: str, width: int) -> list[tuple[str, int]]:
    """The loops with their extents, the outermost first."""
    order = (i for i in einsum.output if i != vector)
    loops = [
        (i, points(einsum, (i,))) for i in (*order, *streaming_order(einsum, vector))
    ]
    if vector not in einsum.output:
        return loops
    extent = points(einsum, (vector,))
    width = min(width, extent)
    return [(vector, -(-extent // width)), *loops, (vector, width)]


GENERIC = register(
    Transform(
        "generic",
        1,
        "any einsum: unit strides innermost, blocks of the output over the grid",
        _space,
        generic,
    )
)
GENERIC_ON_CPUS = register(
    replace(
        GENERIC,
        version=2,
        summary="generic@1, with a hint to the compiler of a CPU",
        space=_space_with_hint,
        devices=frozenset({"cpu"}),
        cost=_cost,
    )
)
