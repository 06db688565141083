"""Analytic costs of kernels on GPUs; :mod:`feinsum.transforms.cost` is for CPUs.

A family counts the work of one launch; :func:`launch_s` converts it to seconds. Costs
rank recipes; they need not be accurate.

Sources: Williams, Waterman and Patterson, Roofline (2009), for rates; Volkov,
Understanding Latency Hiding on GPUs (2016), for the cost of too few work-items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod

from feinsum.ir import BatchedEinsum, IndexList
from feinsum.targets.cuda.figures import KernelFigures, multiprocessor_of, occupancy
from feinsum.transforms.cost import Gpu, points
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.gpu.layouts import Flat, grid_axes


@dataclass(frozen=True)
class LaunchWork:
    """The work of one launch of a kernel.

    Attributes:
        n_items: of a work-group.
        shared_bytes: of a work-group.
        registers: of a work-item.
        multiply_adds: of all work-items, with those that idle beside others.
        itemsize: bytes of an entry.
        requests: cycles in which the loads and stores of all warps are begun.
        cached_bytes: between the caches.
        distinct_bytes: of all arrays.
        steps: loads of a work-item of which each waits for the one before.
        chains: sums of a work-item that do not wait for each other.
        n_loads: of a work-item that it waits for together.
        is_on_tensor_cores: whether these do the multiply-adds.
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


def launch_s(gpu: Gpu, launch: LaunchWork) -> float:
    """Predict the seconds of one launch; infinite if no work-group fits.

    >>> gpu = Gpu(90, 100, 1e9, 1e12, 1 << 25, launch_s=0)
    >>> copy = LaunchWork(1e6, 256, 8, 0, 0, 0, 1e9, 1)
    >>> round(launch_s(gpu, copy), 3)
    0.001
    """
    figures = KernelFigures(launch.registers, 0, 0, launch.shared_bytes)
    # registers and shared memory decide how many groups a multiprocessor has
    part = occupancy(figures, launch.n_items, gpu.capability)
    if not part:
        return inf
    n_threads = part * multiprocessor_of(gpu.capability).threads
    n_units = gpu.n_multiprocessors
    # the last round of groups may leave multiprocessors idle
    rounds = ceil(launch.n_groups / n_units)
    at_once = min(n_threads, launch.n_items * rounds) / h.WARP
    busy = launch.n_groups / n_units / rounds
    hidden = min(1.0, at_once * launch.chains / h.BUSY_WARPS) * busy
    all_at_once = min(n_threads * n_units, launch.n_items * launch.n_groups)
    # by Little's law, bytes on their way over the latency bound the rate below
    in_flight = all_at_once * launch.itemsize * launch.n_loads / 2
    cycles_per_s = n_units * gpu.cycles_per_s
    rates = gpu.matrix_multiply_adds if launch.is_on_tensor_cores else gpu.multiply_adds
    rate = rates[4 if launch.itemsize <= 4 else 8]
    # loads that wait for each other take their latency once for each wave of groups
    waves = launch.n_groups * launch.n_items / all_at_once
    parts = (
        launch.multiply_adds / (rate * cycles_per_s * hidden),
        launch.requests / (cycles_per_s * hidden),
        launch.cached_bytes
        / min(h.CACHE_BYTES_PER_CYCLE * cycles_per_s, in_flight / h.CACHE_LATENCY_S),
        _memory_bytes(gpu, launch)
        / min(gpu.bandwidth_bytes_per_s, in_flight / h.LATENCY_S),
        waves * launch.steps * h.LATENCY_S / h.UNROLLED,
    )
    # the parts overlap, but not in full: warps wait for one of them at a time
    longest = max(parts)
    return gpu.launch_s + longest + h.OVERLAP * (sum(parts) - longest)


def _memory_bytes(gpu: Gpu, launch: LaunchWork) -> float:
    if launch.distinct_bytes <= gpu.cache_bytes:
        return launch.distinct_bytes
    return max(launch.distinct_bytes, launch.cached_bytes / h.REREAD)


def read_bytes(
    einsum: BatchedEinsum, term: IndexList, itemsize: int, box: Mapping[str, int]
) -> float:
    """Return how many bytes a group reads of an array in C order, in whole sectors.

    Args:
        einsum: the einsum, with known extents.
        term: indices of the array.
        itemsize: bytes of an entry.
        box: how many values of each index the group needs; of others, one.

    >>> from feinsum.ir import array, einsum
    >>> copy = einsum("ij->ij", array("A", (64, 64)))
    >>> [read_bytes(copy, ("i", "j"), 8, h) for h in ({"j": 64}, {"i": 64})]
    [512, 2048]
    """
    entries, run, is_whole = 1, 1, True
    # from the last index: as long as all values of an index are needed, the run of
    # entries goes on into the one before
    for index in reversed(dict.fromkeys(term)):
        extent = points(einsum, (index,))
        values = min(box.get(index, 1), extent)
        entries *= values
        if is_whole:
            run *= values
        is_whole = is_whole and values == extent
    return entries // run * max(h.SECTOR_BYTES, run * itemsize)


def request_cycles(
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
        lanes: the values of indices that differ between its work-items.

    >>> from feinsum.ir import array, einsum
    >>> copy = einsum("ij->ij", array("A", (64, 64)))
    >>> lanes = [{"j": k} for k in range(32)], [{"i": k} for k in range(32)]
    >>> [request_cycles(copy, ("i", "j"), 8, each) for each in lanes]
    [2.0, 8.0]
    """
    steps: dict[str, int] = {}
    step = 1
    # an index that stands twice, on a diagonal, advances both axes at once
    for index in reversed(term):
        extent = points(einsum, (index,))
        steps[index] = steps.get(index, 0) + step
        step *= extent
    # lanes with entries in one sector share its transfer
    sectors = {
        sum(lane.get(i, 0) * n for i, n in steps.items()) * itemsize // h.SECTOR_BYTES
        for lane in lanes
    }
    return max(1.0, len(sectors) * h.SECTOR_BYTES / h.LINE_BYTES)


def n_output_groups(einsum: BatchedEinsum, n_items: int) -> tuple[Flat, int]:
    """Return the first axis of an output's grid, and the number of its groups."""
    axes = grid_axes(einsum.output, einsum.extents)
    assert axes is not None
    first, *others = axes
    n_groups = -(-first.n_values // n_items) * prod(axis.n_values for axis in others)
    return first, n_groups


def loads(einsum: BatchedEinsum) -> Iterable[tuple[IndexList, int]]:
    """Return the indices and the bytes of an entry of every array that is read."""
    seen = {
        (operand.name, term): operand.dtype.itemsize
        for row in einsum.rows
        for operand, term in zip(row, einsum.inputs, strict=True)
    }
    return [(term, itemsize) for (_, term), itemsize in seen.items()]


def itemsize_of(einsum: BatchedEinsum) -> int:
    return max(operand.dtype.itemsize for operand in einsum.operands)


def factors_of(einsum: BatchedEinsum) -> int:
    """Count the multiply-adds of a point of the nest, for all rows."""
    return max(1, einsum.n_operands - 1) * einsum.batch_size


def warp_cycles(
    einsum: BatchedEinsum, lanes: Sequence[Mapping[str, int]], n_terms: float
) -> float:
    """Count the cycles in which a warp issues the reads of its terms and its writes.

    Args:
        einsum: the einsum, with known extents.
        lanes: the values of indices that differ between its work-items.
        n_terms: number of terms of the sum of a work-item.
    """
    of_term = sum(request_cycles(einsum, *load, lanes) for load in loads(einsum))
    itemsize = itemsize_of(einsum)
    stored = request_cycles(einsum, einsum.output, itemsize, lanes) * einsum.batch_size
    return (of_term + h.OVERHEAD_CYCLES) * n_terms + stored


def group_bytes(einsum: BatchedEinsum, box: Mapping[str, int]) -> float:
    """Return the bytes that a group reads and writes, in whole sectors.

    See :func:`read_bytes`.
    """
    read = sum(read_bytes(einsum, *load, box) for load in loads(einsum))
    written = read_bytes(einsum, einsum.output, itemsize_of(einsum), box)
    return read + written * einsum.batch_size


def product_s(sizes: Sequence[int], n_bytes: float, itemsize: int, gpu: Gpu) -> float:
    """Predict the seconds of a stack of matrix products by cuBLAS or a similar library.

    Args:
        sizes: numbers of products, of rows, of columns and of terms of the sum.
        n_bytes: bytes of all arrays.
        itemsize: bytes of an entry.
        gpu: the GPU.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {}, {8: 128.0})
    >>> 0.002 < product_s((1, 4096, 4096, 4096), 3 * 8 * 4096**2, 8, gpu) < 0.004
    True
    """
    n_products, m, n, k = sizes
    n_tiles = (
        n_products
        * -(-m // h.LIBRARY_TILE)
        * -(-n // h.LIBRARY_TILE)
        * max(1.0, k / h.LIBRARY_CHUNK)
    )
    # short sides waste parts of cuBLAS's tiles, and few tiles leave units idle
    share = (
        m
        / (m + h.LIBRARY_TILE / 4)
        * n
        / (n + h.LIBRARY_TILE / 4)
        * k
        / (k + h.LIBRARY_TILE / 4)
    )
    share *= h.PEAK_SHARE * min(1.0, n_tiles / gpu.n_multiprocessors)
    rate = gpu.matrix_multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s
    moved = n_bytes / (h.BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return h.CALL_S + max(moved, prod(sizes) / (rate * share))


def streamed_s(n_points: float, n_bytes: float, itemsize: int, gpu: Gpu) -> float:
    """Predict the seconds of a kernel of no product that reads everything once.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {8: 64.0}, {})
    >>> streamed_s(1e6, 8e6, 8, gpu) < streamed_s(1e6, 8e7, 8, gpu)
    True
    """
    rate = gpu.multiply_adds[4 if itemsize <= 4 else 8]
    # half of the peak: nothing is reused in registers
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s / 2
    moved = n_bytes / (h.BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return h.CALL_S + max(moved, n_points / rate)


def copied_s(n_bytes: float, gpu: Gpu) -> float:
    """Predict the seconds of a copy of so many bytes with its axes in another order."""
    return h.CALL_S + 2 * n_bytes / (h.COPY_SHARE * gpu.bandwidth_bytes_per_s)
