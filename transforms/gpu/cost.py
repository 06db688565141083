"""Analytic costs of kernels on GPUs; :mod:`feinsum.transforms.cost` is for CPUs.

A family counts the work of one launch; :func:`predict_launch_s` converts it to seconds.
Costs rank recipes; they need not be accurate.

Sources: Williams, Waterman and Patterson, Roofline (2009), for rates; Volkov,
Understanding Latency Hiding on GPUs (2016), for the cost of too few work-items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Any

from feinsum.ir import BatchedEinsum, IndexList
from feinsum.targets.cuda.figures import KernelFigures, get_multiprocessor, occupancy
from feinsum.transforms.cost import Gpu, count_distinct_bytes, list_loads
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.roles import count_points


@dataclass(frozen=True)
class LaunchWork:
    """The work of one launch of a kernel.

    Attributes:
        n_groups: number of work-groups.
        n_items: work-items of a work-group.
        itemsize: bytes of an entry.
        multiply_adds: multiply-adds of all work-items, including idle ones in warps
            with others that work.
        requests: cycles in which all warps issue their loads and stores.
        cached_bytes: bytes that move between the caches.
        distinct_bytes: bytes of all arrays.
        steps: loads of a work-item that wait for each other.
        shared_bytes: shared memory of a work-group.
        registers: registers of a work-item.
        chains: sums of a work-item that do not wait for each other.
        n_loads: loads of a work-item that are in flight at the same time.
        is_on_tensor_cores: whether tensor cores do the multiply-adds.
    """

    n_groups: float
    n_items: int
    itemsize: int
    multiply_adds: float
    requests: float
    cached_bytes: float
    distinct_bytes: float
    steps: float
    shared_bytes: int = 0
    registers: int = 32
    chains: int = 1
    n_loads: float = h.UNROLLED
    is_on_tensor_cores: bool = False


def predict_launch_s(gpu: Gpu, launch: LaunchWork) -> float:
    """Predict the seconds of one launch; infinite if no work-group fits.

    >>> gpu = Gpu(90, 100, 1e9, 1e12, 1 << 25, launch_s=0)
    >>> copy = LaunchWork(1e6, 256, 8, 0, 0, 0, 1e9, 1)
    >>> round(predict_launch_s(gpu, copy), 3)
    0.001
    """
    figures = KernelFigures(launch.registers, 0, 0, launch.shared_bytes)
    # registers and shared memory limit the groups that a multiprocessor runs at once
    n_resident = occupancy(figures, launch.n_items, gpu.capability)
    if not n_resident:
        return inf
    n_threads = n_resident * get_multiprocessor(gpu.capability).threads
    n_units = gpu.n_multiprocessors
    # in the last round of groups, some multiprocessors may be idle
    rounds = ceil(launch.n_groups / n_units)
    at_once = min(n_threads, launch.n_items * rounds) / h.WARP
    busy = launch.n_groups / n_units / rounds
    hidden = min(1.0, at_once * launch.chains / h.BUSY_WARPS) * busy
    all_at_once = min(n_threads * n_units, launch.n_items * launch.n_groups)
    # by Little's law, bytes in flight over the latency limit the rates below
    in_flight = all_at_once * launch.itemsize * launch.n_loads / 2
    cycles_per_s = n_units * gpu.cycles_per_s
    rate = get_rate(gpu, launch.itemsize, is_matrix=launch.is_on_tensor_cores)
    if launch.is_on_tensor_cores and launch.itemsize == 2 and gpu.capability >= 90:
        rate *= h.SYNCHRONOUS_SHARE
    # each wave of groups takes the latency of all loads that wait for each other
    waves = launch.n_groups * launch.n_items / all_at_once
    times_s = (
        launch.multiply_adds / (rate * cycles_per_s * hidden),
        launch.requests / (cycles_per_s * hidden),
        launch.cached_bytes
        / min(h.CACHE_BYTES_PER_CYCLE * cycles_per_s, in_flight / h.CACHE_LATENCY_S),
        _count_memory_bytes(gpu, launch)
        / min(gpu.bandwidth_bytes_per_s, in_flight / h.LATENCY_S),
        waves * launch.steps * h.LATENCY_S / h.UNROLLED,
    )
    # these times overlap, but not fully: a warp waits for one resource at a time
    longest = max(times_s)
    return gpu.launch_s + longest + h.OVERLAP * (sum(times_s) - longest)


def predict_kernel_s(gpu: Gpu, einsum: BatchedEinsum, **work: Any) -> float:
    """Predict the seconds of one launch that reads and writes all arrays of an einsum.

    Args:
        gpu: the GPU.
        einsum: the einsum, with known extents.
        work: the attributes of :class:`LaunchWork`, except for two: the bytes of an
            entry, and those of all arrays.
    """
    itemsize, n_bytes = get_itemsize(einsum), sum(count_distinct_bytes(einsum))
    launch = LaunchWork(itemsize=itemsize, distinct_bytes=n_bytes, **work)
    return predict_launch_s(gpu, launch)


def get_rate(gpu: Gpu, itemsize: int, *, is_matrix: bool) -> float:
    """Return the multiply-adds of a multiprocessor per cycle.

    Args:
        gpu: the GPU.
        itemsize: bytes of an entry; those of less than 4 are computed in 4.
        is_matrix: whether it multiplies matrices, which have a rate for 2 bytes.
    """
    if is_matrix:
        return gpu.matrix_multiply_adds[min(max(itemsize, 2), 8)]
    return gpu.multiply_adds[4 if itemsize <= 4 else 8]


def has_tensor_cores(gpu: Gpu, itemsize: int) -> bool:
    """Tell whether a GPU multiplies matrices faster than it does anything else."""
    matrix_rate, rate = (get_rate(gpu, itemsize, is_matrix=x) for x in (True, False))
    return matrix_rate > rate


def _count_memory_bytes(gpu: Gpu, launch: LaunchWork) -> float:
    if launch.distinct_bytes <= gpu.cache_bytes:
        return launch.distinct_bytes
    return max(launch.distinct_bytes, launch.cached_bytes / h.REREAD)


def count_sector_bytes(
    einsum: BatchedEinsum, term: IndexList, itemsize: int, box: Mapping[str, int]
) -> float:
    """Count the bytes that a group reads of an array in C order, in whole sectors.

    Args:
        einsum: the einsum, with known extents.
        term: indices of the array.
        itemsize: bytes of an entry.
        box: number of values of each index that the group needs; 1 for others.

    >>> from feinsum.ir import array, einsum
    >>> copy = einsum("ij->ij", array("A", (64, 64)))
    >>> [count_sector_bytes(copy, ("i", "j"), 8, h) for h in ({"j": 64}, {"i": 64})]
    [512, 2048]
    """
    entries, run, is_whole = 1, 1, True
    # from the last index on: while all values of an index are needed, the run of
    # contiguous entries continues along the index before it
    for index in reversed(dict.fromkeys(term)):
        extent = count_points(einsum, (index,))
        values = min(box.get(index, 1), extent)
        entries *= values
        if is_whole:
            run *= values
        is_whole = is_whole and values == extent
    return entries // run * max(h.SECTOR_BYTES, run * itemsize)


def count_request_cycles(
    einsum: BatchedEinsum,
    term: IndexList,
    itemsize: int,
    lanes: Sequence[Mapping[str, int]],
) -> float:
    """Count the cycles in which a warp issues the reads of an array in C order.

    Args:
        einsum: the einsum, with known extents.
        term: indices of the array.
        itemsize: bytes of an entry.
        lanes: for each work-item of the warp, the values of indices that differ.

    >>> from feinsum.ir import array, einsum
    >>> copy = einsum("ij->ij", array("A", (64, 64)))
    >>> lanes = [{"j": k} for k in range(32)], [{"i": k} for k in range(32)]
    >>> [count_request_cycles(copy, ("i", "j"), 8, each) for each in lanes]
    [2.0, 8.0]
    """
    steps: dict[str, int] = {}
    step = 1
    # a repeated index, of a diagonal, advances along both axes at once
    for index in reversed(term):
        extent = count_points(einsum, (index,))
        steps[index] = steps.get(index, 0) + step
        step *= extent
    # lanes that read the same sector share its transfer
    sectors = {
        sum(lane.get(i, 0) * n for i, n in steps.items()) * itemsize // h.SECTOR_BYTES
        for lane in lanes
    }
    return max(1.0, len(sectors) * h.SECTOR_BYTES / h.LINE_BYTES)


def get_itemsize(einsum: BatchedEinsum) -> int:
    return max(operand.dtype.itemsize for operand in einsum.operands)


def count_factors(einsum: BatchedEinsum) -> int:
    """Count the multiply-adds of an iteration of the nest, for all rows."""
    return max(1, einsum.n_operands - 1) * einsum.batch_size


def count_group_bytes(einsum: BatchedEinsum, box: Mapping[str, int]) -> float:
    """Return the bytes that a group reads and writes, in whole sectors.

    See :func:`count_sector_bytes`.
    """
    read = sum(count_sector_bytes(einsum, *load, box) for load in list_loads(einsum))
    written = count_sector_bytes(einsum, einsum.output, get_itemsize(einsum), box)
    return read + written * einsum.batch_size


def predict_product_s(
    sizes: Sequence[int], n_bytes: float, itemsize: int, gpu: Gpu
) -> float:
    """Predict the seconds of a stack of matrix products by cuBLAS or a similar library.

    Args:
        sizes: the numbers of products, rows, columns, and terms of a sum.
        n_bytes: bytes of all arrays.
        itemsize: bytes of an entry.
        gpu: the GPU.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {}, {8: 128.0})
    >>> 0.002 < predict_product_s((1, 4096, 4096, 4096), 3 * 8 * 4096**2, 8,
    ...     gpu) < 0.004
    True
    """
    n_products, m, n, k = sizes
    n_tiles = (
        n_products
        * -(-m // h.LIBRARY_TILE)
        * -(-n // h.LIBRARY_TILE)
        * max(1.0, k / h.LIBRARY_CHUNK)
    )
    # short sides waste parts of cuBLAS's tiles; few tiles leave multiprocessors idle
    share = (
        m
        / (m + h.LIBRARY_TILE / 4)
        * n
        / (n + h.LIBRARY_TILE / 4)
        * k
        / (k + h.LIBRARY_TILE / 4)
    )
    share *= h.PEAK_SHARE * min(1.0, n_tiles / gpu.n_multiprocessors)
    rate = get_rate(gpu, itemsize, is_matrix=True)
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s
    moved = n_bytes / (h.BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return h.CALL_S + max(moved, prod(sizes) / (rate * share))


def predict_streamed_s(
    n_points: float, n_bytes: float, itemsize: int, gpu: Gpu
) -> float:
    """Predict the seconds of a kernel without reuse, which reads everything once.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {8: 64.0}, {})
    >>> predict_streamed_s(1e6, 8e6, 8, gpu) < predict_streamed_s(1e6, 8e7, 8, gpu)
    True
    """
    rate = get_rate(gpu, itemsize, is_matrix=False)
    # half of the peak: nothing is reused in registers
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s / 2
    moved = n_bytes / (h.BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return h.CALL_S + max(moved, n_points / rate)


def predict_copy_s(n_bytes: float, gpu: Gpu) -> float:
    """Predict the seconds of a transposing copy of an array of ``n_bytes``."""
    return h.CALL_S + 2 * n_bytes / (h.COPY_SHARE * gpu.bandwidth_bytes_per_s)
