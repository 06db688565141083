"""Rooflines: the minimum time that the measured limits of a device allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feinsum.ir import WorkloadLike
from feinsum.measure.reference import reference_of
from feinsum.records import DevicePeaks, roofline_s

__all__ = ["Work", "fraction_of_roofline", "roofline_s"]


@dataclass(frozen=True)
class Work:
    """The minimum work: operations by dtype, and bytes to move."""

    operations: Mapping[str, int]
    footprint_bytes: int

    @classmethod
    def of(cls, einsum: WorkloadLike, sizes: Mapping[str, int]) -> Work:
        """The work of an einsum, by the counts of its reference."""
        reference = reference_of(einsum)
        return cls(reference.operations(sizes), reference.footprint_bytes(sizes))

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


def fraction_of_roofline(
    measured_s: float,
    operations: Mapping[str, int],
    footprint_bytes: int,
    peaks: DevicePeaks,
) -> float:
    """Roofline time over measured time; 1 for a kernel at the limit.

    Above 1 if the data stay in caches, which are faster than main memory.
    """
    return roofline_s(operations, footprint_bytes, peaks) / measured_s
