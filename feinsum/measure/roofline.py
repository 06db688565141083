"""Rooflines: the least time that a device's measured limits allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.ir import BatchedEinsum
from feinsum.measure.counts import einsum_operations, footprint_bytes
from feinsum.records import DevicePeaks

__all__ = ["Work", "fraction_of_roofline", "roofline_s"]

_REAL_PER_COMPLEX = 4
"""A complex multiply-add, two operations, is eight real operations."""


@dataclass(frozen=True)
class Work:
    """What there is to do at the least: operations by dtype, bytes to be moved."""

    operations: Mapping[str, int]
    footprint_bytes: int

    @classmethod
    def of(cls, einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Work:
        """That of an einsum, by the counts of :mod:`feinsum.measure.counts`."""
        return cls(einsum_operations(einsum, sizes), footprint_bytes(einsum, sizes))

    @property
    def n_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.n_operations / self.footprint_bytes

    def bound(self, peaks: DevicePeaks) -> float:
        """Operations per second that the roofline allows."""
        seconds = roofline_s(self.operations, self.footprint_bytes, peaks)
        return self.n_operations / seconds


def roofline_s(
    operations: Mapping[str, int], footprint_bytes: int, peaks: DevicePeaks
) -> float:
    """The larger of the time to compute and the time to move the data, in seconds.

    Args:
        operations: number of operations by dtype; the times of the dtypes add
            up. A complex operation counts as four real ones, which is exact for
            multiply-adds.
        footprint_bytes: bytes that must be moved.
        peaks: measured limits of the device.

    Raises:
        MeasurementError: if the peak of a dtype is not known.

    Source: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
    """
    compute_s = sum(_compute_s(*item, peaks) for item in operations.items())
    return max(compute_s, footprint_bytes / peaks.bandwidth_bytes_per_s)


def fraction_of_roofline(
    measured_s: float,
    operations: Mapping[str, int],
    footprint_bytes: int,
    peaks: DevicePeaks,
) -> float:
    """Roofline time over measured time; 1 for a kernel at the limit.

    Above 1 if the data stay in caches that are faster than the memory.
    """
    return roofline_s(operations, footprint_bytes, peaks) / measured_s


def _compute_s(dtype: str, count: int, peaks: DevicePeaks) -> float:
    kind = np.dtype(dtype)
    is_complex = kind.kind == "c"
    real = np.empty(0, kind).real.dtype.str if is_complex else kind.str
    if real not in peaks.operations_per_s:
        raise MeasurementError(
            f"the peak of {real} on {peaks.device} is not known; measured are "
            f"{sorted(peaks.operations_per_s)}, see measure_peaks(dtypes=...)"
        )
    weight = _REAL_PER_COMPLEX if is_complex else 1
    return count * weight / peaks.operations_per_s[real]
