"""The measured limits of a device: measured once, then read from the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from feinsum.measure import OpenDevice, measure_peaks
from feinsum.measure.disturbance import Watch
from feinsum.records import DevicePeaks, Store

logger = logging.getLogger(__name__)

MeasurePeaks: TypeAlias = Callable[[OpenDevice], DevicePeaks]


def peaks_of(
    opened: OpenDevice,
    store: Store,
    *,
    again: bool = False,
    even_if_busy: bool = False,
    measure: MeasurePeaks = measure_peaks,
    say: Callable[[str], None] = logger.warning,
) -> DevicePeaks:
    """The stored limits of a device; if there are none, measure and store them.

    Limits that were measured while others used the processor are too low. They are
    returned, but not stored, and ``say`` is told why.

    Args:
        again: measure even if the store holds limits.
        even_if_busy: store limits of a busy processor, too.
        measure: called at most once.

    Raises:
        MeasurementError, WrongResultError: see :func:`measure_peaks`.
        StoreError: if the store cannot be read, or cannot take the new limits.
    """
    known = None if again else store.peaks(opened.device.id)
    if known is not None:
        return known
    watch = Watch()
    peaks = measure(opened)
    disturbance = watch.disturbance() if opened.device.kind == "cpu" else ""
    if disturbance and not even_if_busy:
        say(
            f"{disturbance} while the limits of {opened.device} were measured; they "
            "are too low and are not stored; measure on an idle machine with "
            "'feinsum devices --again', or store them with '--even-if-busy'"
        )
        return peaks
    if disturbance:
        say(f"{disturbance} while the limits of {opened.device} were measured")
    store.add(peaks)
    return peaks
