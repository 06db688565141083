"""The machine model: the figures of a device, and the roofline that they imply.

A region of a kernel has work for the cores and bytes to move. The slower of both
determines its time, and a part of the other is added, since they overlap only in part::

    cycles / (n_cores * cycles_per_s)     |------------|
    n_bytes / bandwidth of their level    |--------------------|
    region_s                              |--------------------|===|  + region_s

Figures are typical ones until :mod:`feinsum.measure.peaks` has measured those of a
device, which ``feinsum.predict.model_machine`` puts in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from constantdict import constantdict

LEVELS = ("L2", "L3")
"""Caches that can hold an array from call to call. The first level, a few tens of KB,
matters within a tile only. All cores share the last one.
"""


L1_BYTES = 32 << 10
"""Bytes of the first level for rows that are fetched from it."""

FETCHED_BYTE_NS = {"L1": 0.01, "L2": 0.02, "L3": 0.05, "memory": 0.12}
"""Nanoseconds per byte of rows that a core reads out of order from each level: typical
values, measured by ``make bench-sparse``.
"""


@dataclass(frozen=True)
class Gpu:
    """Figures of a GPU for the cost.

    Attributes:
        capability: compute capability as a number, such as 90.
        multiply_adds: per multiprocessor and cycle, by the bytes of an entry.
        matrix_multiply_adds: the same in matrix products of libraries, in the
            precision of the entries; sums of halves are in single precision.
        cache_bytes: of the second cache.
        launch_s: of an empty kernel.
    """

    capability: int
    n_multiprocessors: int
    cycles_per_s: float
    bandwidth_bytes_per_s: float
    cache_bytes: int
    multiply_adds: Mapping[int, float] = constantdict({4: 64.0, 8: 32.0})
    matrix_multiply_adds: Mapping[int, float] = constantdict(
        {2: 64.0, 4: 64.0, 8: 64.0}
    )
    launch_s: float = 4e-6


@dataclass(frozen=True)
class MachineModel:
    """Figures of a device for analytic costs.

    Attributes:
        n_cores: number of threads that share a region.
        cycles_per_s: cycles per second of one core.
        vector_bytes: length of the longest vectors.
        fma_bytes: bytes of vector multiply-adds that a core starts per cycle, in at
            most two instructions.
        cache_bytes: size of ``L2`` per core, and of ``L3`` for all cores.
        cache_bytes_per_s: read bandwidth of one core from each level.
        bandwidth_bytes_per_s: memory bandwidth of all cores together.
        region_s: overhead of sharing a region among threads.
        call_s: overhead of a library call through numpy.
        register_bytes: largest buffer that a compiler keeps in registers.
        gpu: what is known of a GPU, for families made for GPUs.
    """

    n_cores: int = 2
    cycles_per_s: float = 3.0e9
    vector_bytes: int = 32
    fma_bytes: int = 64
    cache_bytes: Mapping[str, int] = constantdict({"L2": 1 << 20, "L3": 16 << 20})
    cache_bytes_per_s: Mapping[str, float] = constantdict({"L2": 60e9, "L3": 25e9})
    bandwidth_bytes_per_s: float = 35e9
    region_s: float = 5e-6
    call_s: float = 5e-5
    register_bytes: int = 512
    gpu: Gpu | None = None

    @property
    def n_registers(self) -> int:
        """Number of vector registers, of which AVX-512 has twice as many."""
        return 32 if self.vector_bytes >= 64 else 16

    def lanes(self, dtype: np.dtype[np.generic], most_bytes: int = 64) -> int:
        """Return the entries of a vector; a complex number is one entry."""
        return max(1, min(self.vector_bytes, most_bytes) // dtype.itemsize)

    def fma_cycles(self, vector_bytes: int) -> float:
        """Return the cycles between two multiply-adds of vectors of this length."""
        return max(0.5, vector_bytes / self.fma_bytes)

    def operations_per_s(self, dtype: np.dtype[np.generic]) -> float:
        """Return the operations per second of one core; a multiply-add is two.

        A complex operation takes four real ones on numbers of half the size.
        """
        n_parts = 2 if dtype.kind == "c" else 1
        return 2 * self.fma_bytes / (n_parts * dtype.itemsize) * self.cycles_per_s

    def get_fetched_byte_ns(self, held_bytes: float) -> float:
        """Return the nanoseconds per byte of rows read out of order by one core.

        Args:
            held_bytes: bytes of the array from which they are read.
        """
        if held_bytes <= L1_BYTES:
            return FETCHED_BYTE_NS["L1"]
        levels = (x for x in LEVELS if held_bytes <= self.cache_bytes.get(x, 0))
        return FETCHED_BYTE_NS[next(levels, "memory")]

    def stream_bytes_per_s(self, footprint: float) -> float:
        """Return the read bandwidth of all cores for arrays of this size."""
        for level in LEVELS:
            per_core = 1 if level == "L3" else self.n_cores
            if footprint <= per_core * self.cache_bytes.get(level, 0):
                return self.n_cores * self.cache_bytes_per_s[level]
        return self.bandwidth_bytes_per_s


TYPICAL = MachineModel()
"""The machine of costs that must be the same wherever they are computed."""


def estimate_region_s(
    machine: MachineModel,
    cycles: float,
    n_bytes: float,
    *,
    n_groups: float = 1e9,
    idle: float | None = None,
    footprint: float | None = None,
) -> float:
    """Estimate the seconds of one parallel region.

    Args:
        machine: the machine that runs the region.
        cycles: cycles of all cores together.
        n_bytes: bytes moved between the caches and the level that holds the arrays.
        n_groups: number of pieces of work for threads, the last of which may be
            partial; leftover pieces keep some threads idle.
        idle: the time of the busiest thread over that of all on average; by default
            that of pieces of equal size.
        footprint: size of all arrays, which determines where they are; by default
            ``n_bytes``.

    >>> machine = MachineModel(n_cores=2, cycles_per_s=1e9, region_s=0)
    >>> [estimate_region_s(machine, 2e6, 0, n_groups=n) for n in (100, 1, 1.25)]
    [0.001, 0.002, 0.0016]
    """
    # the core with the most pieces decides, the others wait for it
    n_cores = machine.n_cores
    if idle is None:
        n_whole = int(n_groups)
        n_largest = n_whole // n_cores + (
            1 if n_whole % n_cores else n_groups - n_whole
        )
        idle = min(float(n_cores), max(1.0, n_largest * n_cores / n_groups))
    alone_s = cycles / machine.cycles_per_s
    shared_s = alone_s * idle / n_cores
    held_bytes = n_bytes if footprint is None else footprint
    moved_s = n_bytes / machine.stream_bytes_per_s(held_bytes)
    if n_groups < 2:
        # assume that one core alone draws half of the bandwidth
        moved_s *= min(2.0, n_cores)
    # the slower one, and a part of the other, since they overlap only in part
    long_s, short_s = max(shared_s, moved_s), min(shared_s, moved_s)
    return min(long_s + 0.3 * short_s + machine.region_s, alone_s + moved_s)
