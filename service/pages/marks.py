"""A mark per level of the memory: what a fact's einsum costs there at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from feinsum.bounds import bound_of_record, shares
from feinsum.records import DevicePeaks, TuningRecord

MOST_BOUNDED = 3
"""Different sizes among the facts of a page for which bounds are looked for."""


@dataclass(frozen=True)
class Mark:
    """Least traffic between a level and all levels nearer to the arithmetic.

    Attributes:
        seconds: least time; None if the bandwidth was not measured.
        fraction: of the bandwidth that the recipe used.
    """

    level: str
    n_bytes: int
    seconds: float | None
    fraction: float | None


def marks_of(record: TuningRecord, peaks: DevicePeaks | None) -> tuple[Mark, ...]:
    """The marks of a fact, from the nearest cache to the memory; none if not known."""
    bound = bound_of_record(record, peaks)
    if bound is None:
        return ()
    reached = shares(bound, record.measurement.median_s)
    return tuple(
        Mark(
            one.level.name,
            one.n_bytes,
            _sound(one.seconds),
            _sound(reached.get(one.level.name)),
        )
        for one in bound.levels
    )


def marks_of_each(
    records: Iterable[TuningRecord], peaks: DevicePeaks | None
) -> dict[str, tuple[Mark, ...]]:
    """Those of several facts of a device by their ids.

    Facts of equal sizes have equal bounds; of more than a few sizes there are none.
    """
    known: dict[tuple[str, Mapping[str, int]], tuple[Mark, ...]] = {}
    found: dict[str, tuple[Mark, ...]] = {}
    for record in records:
        key = record.workload_text, record.measurement.sizes
        if key not in known and len(known) < MOST_BOUNDED:
            known[key] = marks_of(record, peaks)
        found[record.id] = known.get(key, ())
    return found


def _sound(value: float | None) -> float | None:
    """None for what limits that nobody can have make of a time."""
    return value if value is not None and value > 0 and isfinite(value) else None
