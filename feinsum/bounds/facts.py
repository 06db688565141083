"""Recorded times compared with bounds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from feinsum.bounds.bound import Bound, bound_at
from feinsum.bounds.factors import Factors, factors_of
from feinsum.bounds.levels import levels_of
from feinsum.bounds.paths import ALL_UP_TO, fewest_steps
from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum, from_text
from feinsum.records import Device, DevicePeaks, TuningRecord, operations_s

__all__ = ["bound_of_record", "least_possible_s", "shares"]

MOST_OPERANDS, MOST_ACCESSES, MOST_INDICES = 10, 2000, 30
"""No bound is computed for facts of larger einsums, since anybody may send them."""


def bound_of_record(record: TuningRecord, peaks: DevicePeaks | None) -> Bound | None:
    """The bound of a fact's einsum at its sizes on its device; None if there is none.

    Facts may contain anything, so an impossible bound is not an error.

    Args:
        peaks: limits of the fact's device; without them there are no times.
    """
    measured, device = record.measurement, record.environment.device
    found = _bound_of(record.workload_text, measured.sizes, device, peaks)
    try:
        if found is not None and peaks is not None:
            return found.with_operations(operations_s(measured.operations, peaks))
    except (FeinsumError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        pass  # a dtype whose rate was not measured, or that is none
    return found


@lru_cache(maxsize=512)
def _bound_of(
    text: str, sizes: Mapping[str, int], device: Device, peaks: DevicePeaks | None
) -> Bound | None:
    """The bound of all facts of a workload at the same sizes on a device."""
    try:
        einsum = from_text(text)
        n_accesses = einsum.n_operands * einsum.batch_size
        if (
            einsum.n_operands > MOST_OPERANDS
            or n_accesses > MOST_ACCESSES
            or len(einsum.indices) > MOST_INDICES
        ):
            return None
        return bound_at(einsum, sizes, levels_of(device, peaks))
    except (FeinsumError, OverflowError):
        return None


def shares(bound: Bound, measured_s: float) -> dict[str, float]:
    """The share of the bandwidth used, for every level with a known time.

    Above 1 if arrays were cached before the work began.

    >>> from feinsum.bounds import MemoryLevel
    >>> from feinsum.ir import array, einsum
    >>> levels = [MemoryLevel("cache", 1000), MemoryLevel("memory", None, 1, 1e9)]
    >>> copied = einsum("ij->ji", array("A", (1000, 1000)))
    >>> shares(bound_at(copied, {}, levels), 0.032)
    {'memory': 0.5}
    """
    return {
        one.level.name: one.seconds / measured_s
        for one in bound.levels
        if one.seconds is not None
    }


def least_possible_s(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    peaks: DevicePeaks,
) -> float:
    """A lower bound on the time of repeated runs; 0 if nothing is known.

    In repeated runs caches hold data of the last run, and their contents at the end may
    never be written. So twice the nearer memory is subtracted from the bytes of each
    level. Only multiply-adds that every order of products needs count. Measured limits
    are not exact: allow a factor, such as 2.

    Raises:
        BoundError: if a size has no value.

    >>> cpu = Device("Host", "a CPU", "", "cpu", "x86_64", 2)
    >>> peaks = DevicePeaks(cpu, 1e10, {"<f8": 1e9}, "2026-01-01T00:00:00+00:00")
    >>> from feinsum.ir import array, einsum
    >>> product = einsum("ij,jk->ik", array("A", (100, 100)), array("B", (100, 100)))
    >>> least_possible_s(product, {}, cpu, peaks)
    0.002
    """
    levels = levels_of(device, peaks)
    found = bound_at(einsum, sizes, levels)
    times = [_arithmetic_s(factors_of(einsum, sizes), peaks)]
    for one in found.levels:
        rate = one.level.bandwidth_bytes_per_s
        if rate and one.memory is not None:
            kept = 2 * one.memory.n_bytes * one.memory.n_memories
            times.append(max(one.n_bytes - kept, 0) / rate)
    return max(times)


def _arithmetic_s(factors: Factors, peaks: DevicePeaks) -> float:
    """The time of the fewest multiply-adds, at the rate of the fastest dtype."""
    einsum = factors.einsum
    rates = peaks.operations_per_s
    real = {np.empty(0, dtype).real.dtype.str for dtype in einsum.output_dtypes}
    if not 2 <= einsum.n_operands <= ALL_UP_TO or not real <= set(rates):
        return 0.0
    return 2 * fewest_steps(factors) / max(rates[dtype] for dtype in real)
