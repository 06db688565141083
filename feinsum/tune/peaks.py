"""The measured limits of a device: measured once, then read from the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from feinsum.measure import OpenDevice, measure_peaks
from feinsum.records import DevicePeaks, FactStore

__all__ = ["MeasurePeaks", "peaks_of"]

MeasurePeaks: TypeAlias = Callable[[OpenDevice], DevicePeaks]


def peaks_of(
    opened: OpenDevice,
    store: FactStore,
    *,
    measure: MeasurePeaks = measure_peaks,
) -> DevicePeaks:
    """The stored limits of a device; if there are none, measure and store them.

    Args:
        measure: called at most once, and only if the store holds none.

    Raises:
        MeasurementError, WrongResultError: see :func:`measure_peaks`.
        StoreError: if the store cannot be read, or cannot take the new limits.
    """
    known = store.peaks(opened.device.id)
    if known is not None:
        return known
    peaks = measure(opened)
    store.add_peaks(peaks)
    return peaks
