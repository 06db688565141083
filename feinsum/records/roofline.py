"""The roofline: the least time that the measured limits of a device allow.

For ``i j, j -> i`` with 1000 x 1000 entries of 8 bytes, on a device with 4e10 bytes/s
and 2e11 operations/s: 2e6 operations take 1e-5 s, 8.016e6 bytes take 2.004e-4 s, so no
kernel takes less than 0.2 ms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.records.environment import DevicePeaks

_REAL_PER_COMPLEX = 4
"""A complex multiply-add, two operations, is eight real operations."""


def roofline_s(
    operations: Mapping[str, int], footprint_bytes: int, peaks: DevicePeaks
) -> float:
    """Return the larger of the times to compute and to move the data, in seconds.

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
    moving_s = footprint_bytes / peaks.bandwidth_bytes_per_s
    return max(operations_s(operations, peaks), moving_s)


def operations_s(operations: Mapping[str, int], peaks: DevicePeaks) -> float:
    """Return the time to compute alone, in seconds; see :func:`roofline_s`."""
    return sum(_compute_s(*item, peaks) for item in operations.items())


def _compute_s(dtype: str, count: int, peaks: DevicePeaks) -> float:
    kind = np.dtype(dtype)
    is_complex = kind.kind == "c"  # peaks are measured for real numbers only
    real = np.empty(0, kind).real.dtype.str if is_complex else kind.str
    if real not in peaks.operations_per_s:
        raise MeasurementError(
            f"the peak of {real} on {peaks.device} is unknown; measured are "
            f"{sorted(peaks.operations_per_s)}, see measure_peaks(dtypes=...)"
        )
    weight = _REAL_PER_COMPLEX if is_complex else 1
    return count * weight / peaks.operations_per_s[real]
