"""The cost of loops that stream through arrays, with one innermost loop.

A nest takes the longer of two times: that of its cycles on all cores, and that of the
bytes that it moves. For ``ij->i`` along j, with vectors of four doubles::

    for i:                  LOOP_CYCLES to start, and to add up the lanes at the end
        for j by 4:         the slowest of: two operations a cycle, the loads, and the
                            latency of the addition to the same vector of sums
"""

from __future__ import annotations

from collections.abc import Sequence

from feinsum.ir import BatchedEinsum, IndexList
from feinsum.machine import MachineModel
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import count_distinct_bytes, estimate_region_s, list_loads
from feinsum.transforms.roles import count_points


def count_vector_cycles(
    einsum: BatchedEinsum,
    vector: str,
    machine: MachineModel,
    *,
    most_bytes: int,
    step: int,
) -> float:
    """Count the cycles of a row with an innermost loop over a free index.

    Args:
        einsum: the einsum, with known extents.
        vector: index of the innermost loop, which is no summed one; empty for none.
        machine: the machine.
        most_bytes: length of the vectors that the compiler generates.
        step: number of terms that an iteration adds; leftover terms are added one by
            one.
    """
    n_points = count_points(einsum, einsum.indices)
    length = count_points(einsum, (vector,)) if vector else 1
    dtype = einsum.operands[0].dtype
    # a vector that takes two cycles is not faster than two vectors of half the length
    lanes = machine.lanes(dtype, min(most_bytes, machine.fma_bytes // 2))
    # vector units multiply integers at half the rate
    if dtype.kind in "biu":
        lanes = max(1, lanes // 2)
    reads = sum(_count_access_cycles(t, vector, lanes) for t in einsum.inputs)
    # two vector operations start in a cycle
    per_point = 0.5 * len(einsum.inputs) / lanes + reads
    if _is_narrow_complex(einsum, machine) and step > cpu.MOST_NARROW_TERMS:
        per_point *= cpu.NARROW_SPILLS
    # every pass over the tile loads and stores its sums to add ``step`` terms
    store = _count_access_cycles(einsum.output, vector, lanes)
    n_summed = count_points(einsum, einsum.summation_indices[-1:])
    step = min(step, n_summed)
    n_passes = (
        n_points / n_summed / max(length, 1) * (n_summed // step + n_summed % step)
    )
    is_summed = bool(einsum.summation_indices)
    per_pass = (2 / lanes + 1 / lanes if is_summed else store) * length
    return n_points * per_point + n_passes * (cpu.LOOP_CYCLES + per_pass)


def count_sum_cycles(
    einsum: BatchedEinsum,
    inner: str,
    machine: MachineModel,
    *,
    most_bytes: int,
    jammed: str = "",
    rows: int = 1,
) -> float:
    """Count the cycles of a row with an innermost loop over a summed index.

    Args:
        einsum: the einsum, with known extents.
        inner: index of the innermost loop, whose sum is cut into lanes.
        machine: the machine.
        most_bytes: length of the vectors that the compiler generates.
        jammed: index of the results that are summed together; empty for one result.
            Entries that do not depend on it are read once for all of them.
        rows: number of results that are summed together.
    """
    length = count_points(einsum, (inner,))
    extent = count_points(einsum, (jammed,)) if jammed else 1
    lanes = _count_lanes_of_sums(einsum, machine, most_bytes, rows)
    per_row = shared = 0.0
    for term in einsum.inputs:
        cycles = 0.5 * _count_access_cycles(term, inner, lanes)
        if jammed in term:
            per_row += cycles
        else:
            shared += cycles
    n_loops = count_points(einsum, einsum.indices) / max(length * extent, 1)
    n_full, n_left = divmod(extent, rows)

    def tile(n_rows: int) -> float:
        # with enough rows, no addition waits for the previous one to the same sum
        adding = max(0.5 * n_rows, cpu.CHAIN_CYCLES) / lanes
        return cpu.LOOP_CYCLES + length * max(adding, n_rows * per_row + shared)

    return n_loops * (n_full * tile(rows) + n_left * tile(1))


def _is_narrow_complex(einsum: BatchedEinsum, machine: MachineModel) -> bool:
    return einsum.operands[0].dtype.kind == "c" and machine.n_registers < 32


def _count_lanes_of_sums(
    einsum: BatchedEinsum, machine: MachineModel, most_bytes: int, rows: int
) -> float:
    """Count the lanes of a compiled sum; complex numbers need shuffles."""
    dtype = einsum.operands[0].dtype
    if rows > 1 and _is_narrow_complex(einsum, machine):
        return cpu.NARROW_COMPLEX_LANES[dtype.itemsize]
    lanes = machine.lanes(dtype, min(most_bytes, machine.fma_bytes // 2))
    return max(1, lanes // 2) if dtype.kind == "c" else lanes


def predict_restart_s(
    einsum: BatchedEinsum,
    along: str,
    outer: str,
    machine: MachineModel,
    *,
    n_rows: int,
    width: int | None = None,
) -> float:
    """Predict the seconds added by reading memory in short runs, not end to end.

    The prefetchers of the caches hide these restarts.

    Args:
        einsum: the einsum, with known extents.
        along: index of the innermost loop.
        outer: index of the loop around it; empty for none.
        machine: the machine.
        n_rows: number of values of ``outer`` that are read together.
        width: entries of a run, if it ends before the extent does.
    """
    footprint = sum(count_distinct_bytes(einsum))
    if footprint <= machine.cache_bytes.get("L3", 0):
        return 0.0
    seconds = 0.0
    length = count_points(einsum, (along,))
    run = min(width or length, length)
    for operand, term in zip(einsum.rows[0], einsum.inputs, strict=True):
        if not term or term[-1] != along:
            continue
        is_in_order = run == length and term[-2:-1] in ((), (outer,))
        if is_in_order and (n_rows == 1 or outer not in term):
            continue
        n_bytes = count_points(einsum, dict.fromkeys(term)) * operand.dtype.itemsize
        n_runs = n_bytes / (run * operand.dtype.itemsize)
        # all restarts together take at most as long as the reads themselves
        in_order_s = n_bytes / machine.stream_bytes_per_s(footprint)
        seconds += min(n_runs * cpu.RESTART_S / machine.n_cores, in_order_s)
    return einsum.batch_size * seconds


def _count_access_cycles(term: IndexList, vector: str, lanes: float) -> float:
    if vector not in term:
        return 0.0
    is_contiguous = term[-1] == vector and term.count(vector) == 1
    return 1.0 / lanes if is_contiguous else cpu.STRIDED_CYCLES


def predict_streaming_s(
    einsum: BatchedEinsum,
    cycles: float,
    machine: MachineModel,
    *,
    n_groups: float,
    loops: Sequence[tuple[str, int]] = (),
) -> float:
    """Predict the seconds of all rows, each array read from the level that holds it.

    Args:
        einsum: the einsum, with known extents.
        cycles: cycles of all cores together.
        machine: the machine.
        n_groups: number of pieces of work for threads.
        loops: each index with a number of its values, the outermost first; by default,
            each array is read once.
    """
    distinct, written = count_distinct_bytes(einsum)
    read = max(distinct, count_read_bytes(einsum, loops, machine))
    return estimate_region_s(
        machine,
        einsum.batch_size * cycles,
        # a store first fetches its cache line
        read + 2 * written,
        n_groups=n_groups,
        footprint=distinct + written,
    )


def count_read_bytes(
    einsum: BatchedEinsum, loops: Sequence[tuple[str, int]], machine: MachineModel
) -> float:
    """Count the bytes of all rows that are read from beyond the second-level cache.

    A loop over an index that an operand lacks reads it again in every iteration, if the
    loops inside read more of it than that cache holds.

    >>> from feinsum.ir import array, einsum as symbolic
    >>> A, B = array("A", (10**6, 8)), array("B", (10**6, 8))
    >>> gram = symbolic("ki,kj->ij", A, B)
    >>> once = count_read_bytes(gram, [("k", 10**6), ("i", 8), ("j", 8)],
    ...     MachineModel())
    >>> again = count_read_bytes(gram, [("i", 8), ("k", 10**6), ("j", 8)],
    ...     MachineModel())
    >>> once / 1e6, again / 1e6
    (128.0, 1024.0)
    """
    cache_bytes = machine.cache_bytes.get("L2", 0)
    return sum(
        _count_passing_bytes(term, [*loops], itemsize, cache_bytes)
        for term, itemsize in list_loads(einsum)
        if term
    )


def _count_passing_bytes(
    term: IndexList, loops: list[tuple[str, int]], itemsize: int, cache_bytes: float
) -> float:
    """Count the bytes of one operand; a single entry moves its whole cache line."""
    inside = moved = float(cpu.LINE_BYTES)
    neighbours = {term[-1]} if term.count(term[-1]) == 1 else set()
    # From the innermost loop outwards, ``inside`` counts the bytes of the array that
    # the loops so far access, and ``moved`` the bytes from beyond the cache for it.
    for index, n in reversed(loops):
        if index in neighbours:
            n_lines = n * itemsize / cpu.LINE_BYTES
            moved *= n_lines if inside <= cache_bytes else n
            inside *= n_lines
            neighbours.clear()
        elif index in term:
            inside, moved = inside * n, moved * n
        # the same entries again, which the cache no longer holds
        elif inside > cache_bytes:
            moved *= n
    return moved
