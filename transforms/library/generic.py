"""Every einsum: plain loops in a good order, over blocks of the output.

The innermost loop runs along an index that is contiguous in most of the data, and the
OpenCL or C compiler vectorizes it. So the family fits any dtype and any extent. A free
index has a tile of sums: for ``ij->j``, a work-group reads a panel of A from top to
bottom and keeps the sums of its columns in the first level of a cache::

      j_tile = 0        1
          +--------+--------+--
    i = 0 |------->|        |          the kernel adds ``step`` rows to the tile at a
        1 |------->|        |          time: it then loads and stores each entry of
          |------->|        |          the tile once for ``step`` terms
    N - 1 |------->|        |
          +--------+--------+--
    tile  [ width  ]

Along a summed index, several results are summed at a time: for ``ij,j->i``, a vector of
sums for each of ``step`` rows stays in a register, and x is loaded once for all::

                 j ---->
    i, row 0   [A A A A|A A A A| ...  * x  ->  tile[0]
       row 1   [A A A A|A A A A| ...  * x  ->  tile[1]
       row 2   [A A A A|A A A A| ...  * x  ->  tile[2]
                 ^ the same x[j:j+4] for all rows

Each addition to a sum waits for the previous one; additions to three sums overlap.
"""

from __future__ import annotations

from functools import partial

import loopy as lp

from feinsum.ir import BatchedEinsum, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.library.packed.packed_contraction import suits_packing
from feinsum.transforms.library.streamed_nest import (
    NO_INDEX,
    StreamedNest,
    count_strided_entries,
    find_jammed_index,
    list_cuts,
    list_terms,
    order_summed_indices,
)
from feinsum.transforms.library.streaming_cost import (
    count_sum_cycles,
    count_vector_cycles,
    predict_restart_s,
    predict_streaming_s,
)
from feinsum.transforms.primitives import begin, with_hints
from feinsum.transforms.primitives.compiler_hints import (
    ROWS_APART,
    SUMS,
    VECTORS,
    list_sums,
)
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import count_points, get_typical_extent


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Stream through all arrays, blocks of the output in parallel.

    Rewrite, for ``ij->j`` with the free vector index j::

        for j:  out[j] = sum(i, A[i,j])

        for j_tile in parallel:
            for j' < width:  tile[j'] = 0
            for i_step:                           # step entries of i each
                for j' < width:  tile[j'] += A[step*i_step, j] + ...
            for j' < width:  out[width*j_tile + j'] = tile[j']

    Rewrite, for ``ij,j->i`` with the summed vector index j::

        for i:  out[i] = sum(j, A[i,j]*x[j])

        for i_block in parallel, i_rows:
            tile[0], ..., tile[step - 1] = 0
            for j:
                for row < step unrolled:  tile[row] += A[i + row, j]*x[j]
            for row < step unrolled:  out[i + row] = tile[row]
        for i after the last full tile:  out[i] = sum(j, A[i,j]*x[j])

    The compiler splits these sums into lanes, as far as their order is free.

    Parameters:
        vector: the index of the innermost loop, free or summed; empty for none.
        width: values of a free vector index per work-group.
        parallel: another output index that is distributed; empty for none.
        block: its values per work-group.
        step: entries of the innermost summed index added per iteration, or results that
            are summed together along a summed vector index.
        vectors: vectors that the compiler makes of the loops, ``usual`` or ``widest``.

    Source: Callahan, Carr and Kennedy 1990 (unroll-and-jam, for register reuse).
    """
    einsum = nest.einsum
    written = StreamedNest(begin(t_unit, nest), einsum, parameters).written()
    sums = SUMS[0]
    if parameters["vector"] in einsum.summation_indices:
        sums, written = list_sums(einsum)[-1], written.with_preamble(ROWS_APART)
    vectors = parameters["vectors"]
    return with_hints(written, sums=sums, vectors=vectors).t_unit


def space(workload: Workload) -> Space:
    """Fit every einsum; indices that are contiguous in most of the data come first."""
    einsum = workload.einsum
    vectors = sorted(
        einsum.indices, key=lambda index: _rank_vector_index(einsum, index)
    )
    first = vectors[0] if vectors else NO_INDEX
    # the longest other output index gives the most work-groups
    parallel = [i for i in einsum.output if i != first] or list(einsum.output[:1])
    parallel.sort(key=lambda index: -get_typical_extent(einsum.extents[index]))
    if einsum.output in ((), (first,)):
        parallel = [NO_INDEX]
    table: Table = {
        "vector": tuple(vectors[:3]) or (NO_INDEX,),
        "width": _list_widths(einsum),
        "parallel": tuple(parallel[:2]),
        "block": _list_blocks(einsum),
        "step": (8, 1, 32, 4, 2) if einsum.summation_indices else (1,),
        "vectors": VECTORS,
    }
    find_problem = partial(_find_problem, einsum)
    return Space(table, find_problem, is_searched=not suits_packing(einsum))


def _rank_vector_index(einsum: BatchedEinsum, index: str) -> tuple[float, bool]:
    """Count array entries, weighted if they are strided or the loop is short."""
    n_entries = sum(count_points(einsum, term) for term in list_terms(einsum))
    n_counted = n_entries + (cpu.STRIDED_WEIGHT - 1) * count_strided_entries(
        einsum, index
    )
    # a short innermost loop is mostly overhead
    shortness = max(
        1.0, cpu.MIN_LENGTH / max(get_typical_extent(einsum.extents[index]), 1)
    )
    return shortness * n_counted, index not in einsum.output


def _list_widths(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return the widths of blocks: long ones without a sum, which needs no tile."""
    if not einsum.summation_indices:
        return (4096, 512, 32768)
    sizes = [dtype.itemsize for dtype in einsum.output_dtypes]
    fitting = [n for n in (1024, 256, 2048) if n * sum(sizes) <= cpu.PANEL_BYTES]
    return tuple(fitting) or (64,)


def _list_blocks(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return numbers of rows: enough work for a group, then 4 times more and less."""
    n_points = count_points(einsum, einsum.indices)
    longest = max(
        (get_typical_extent(einsum.extents[i]) for i in einsum.output), default=1
    )
    block = max(1, cpu.GROUP_POINTS * longest // max(n_points, 1))
    block = min(1 << (block.bit_length() - 1), 4096)
    return tuple(dict.fromkeys((block, 4 * block, max(1, block // 4))))


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    vector, parallel = parameters["vector"], parameters["parallel"]
    step, block = parameters["step"], parameters["block"]
    if vector == parallel != NO_INDEX:
        return f"the index {vector!r} is the innermost loop already"
    if vector not in einsum.output and parameters["width"] != _list_widths(einsum)[0]:
        return "a summed vector index has no width"
    if parallel == NO_INDEX and block != _list_blocks(einsum)[0]:
        return "nothing is cut in blocks"
    if vector not in einsum.summation_indices:
        return None if step in (1, 8, 32) else f"{step} terms are no better than 8"
    jammed = find_jammed_index(einsum, vector)
    extent = einsum.extents[jammed] if jammed else 1
    if step > min(get_typical_extent(extent), cpu.MOST_STREAMS) > 0:
        return f"there are no {step} rows to be summed together"
    # a block of the grid consists of whole tiles, but for the last one
    if parallel == jammed != NO_INDEX and block % step:
        return f"{step} rows do not divide a block of {block}"
    return None


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel) -> float:
    """Predict the seconds from the innermost loop and the number of blocks."""
    vector, step = parameters["vector"], parameters["step"]
    jammed, width = find_jammed_index(einsum, vector), parameters["width"]
    most_bytes = 64 if parameters["vectors"] == VECTORS[1] else 32
    is_summed = vector in einsum.summation_indices
    if is_summed:
        cycles = count_sum_cycles(
            einsum, vector, machine, most_bytes=most_bytes, jammed=jammed, rows=step
        )
    else:
        cycles = count_vector_cycles(
            einsum, vector, machine, most_bytes=most_bytes, step=step
        )
    n_groups = 1.0
    for index, size in list_cuts(einsum, parameters).items():
        n_groups *= max(1.0, count_points(einsum, (index,)) / size)
    loops = _list_loops(einsum, vector, jammed, step if is_summed else width)
    seconds = predict_streaming_s(
        einsum, cycles, machine, n_groups=n_groups, loops=loops
    )
    if is_summed:
        return seconds + predict_restart_s(einsum, vector, jammed, machine, n_rows=step)
    # only tiles over a free vector index read memory in short runs
    if not einsum.summation_indices:
        return seconds
    return seconds + predict_restart_s(
        einsum,
        vector,
        order_summed_indices(einsum, vector)[-1],
        machine,
        n_rows=step,
        width=width,
    )


def _list_loops(
    einsum: BatchedEinsum, vector: str, jammed: str, size: int
) -> list[tuple[str, int]]:
    """Return the loops with their extents, outermost first.

    Args:
        einsum: the einsum, with known extents.
        vector: index of the innermost loop.
        jammed: index of the rows of a tile; empty for none.
        size: rows of a tile, or entries of a tile along a free vector index.
    """
    inner = jammed or (vector if vector in einsum.output else NO_INDEX)
    order = (i for i in einsum.output if i != inner)
    summed = order_summed_indices(einsum, vector)
    outer, sums = (
        [(i, count_points(einsum, (i,))) for i in indices]
        for indices in (order, summed)
    )
    if inner == NO_INDEX:
        return [*outer, *sums]
    extent = count_points(einsum, (inner,))
    size = min(size, extent)
    tiles = (inner, -(-extent // size))
    # tiles of a free vector index are distributed; those of rows are inner loops
    around = [*outer, tiles] if jammed else [tiles, *outer]
    return [*around, *sums, (inner, size)]


GENERIC = register(
    Transform(
        "generic",
        3,
        "any einsum: unit strides innermost, blocks of the output over the grid",
        space,
        apply,
        cost,
    )
)
