"""How near facts come to the measured limits of their devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from feinsum.records import DevicePeaks, Store, TuningRecord

Fractions: TypeAlias = Mapping[str, float]
"""Fractions of the roofline by record id."""


def fractions_of(records: Iterable[TuningRecord], store: Store) -> Fractions:
    """The fraction of the roofline of each record for which it can be told.

    Left out are records whose device has no limits in ``store``, none for a dtype that
    they compute in, or limits that nothing can have. Nothing is measured.
    """
    peaks: dict[str, DevicePeaks | None] = {}
    fractions: dict[str, float] = {}
    for record in records:
        device = record.environment.device.id
        if device not in peaks:
            peaks[device] = store.peaks(device)
        found = peaks[device]
        fraction = None if found is None else _fraction(record, found)
        if fraction is not None:
            fractions[record.id] = fraction
    return fractions


def _fraction(record: TuningRecord, peaks: DevicePeaks) -> float | None:
    from feinsum.errors import MeasurementError
    from feinsum.measure import fraction_of_roofline

    measured = record.measurement
    try:
        fraction = fraction_of_roofline(
            measured.median_s, measured.operations, measured.footprint_bytes, peaks
        )
    except (MeasurementError, ArithmeticError, TypeError):  # odd facts and limits
        return None
    return fraction if 0 <= fraction < inf else None
