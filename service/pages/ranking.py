"""Facts side by side: the ranking of a device, and the history of a recipe.

Each row of a table has a strip, drawn along the axis of the table::

    baseline |        roof ]                     marks: least times of memory levels
             |    |--o--|  ]                     low, middle and high of the median
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from feinsum.bounds import bound_of_record, shares
from feinsum.errors import MeasurementError
from feinsum.records import (
    Device,
    DevicePeaks,
    FramedSpec,
    Measurement,
    TransformSpec,
    TuningRecord,
    median_interval,
    rank,
    roofline_s,
    tied,
)
from feinsum.service.pages.axis import Axis, Tick, axis_of
from feinsum.service.pages.words import (
    clipped,
    is_doubtful,
    is_implausible,
    ratio,
    seconds,
)

MAX_ROWS = 20
"""Recipes of a device, or facts of a recipe, that are shown."""

MAX_SAMPLES = 200

MAX_BOUNDED = 3
"""Different sizes among the facts of a page for which bounds are searched."""


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


@dataclass(frozen=True)
class Strip:
    """A line of a chart, in pixels along its axis.

    Attributes:
        middle, low, high: the median, and the interval that it lies in.
        baseline: the untransformed kernel.
        roof: what the measured limits of the device allow.
        words: the same for who does not see it.
        samples: all of them, or none.
        marks: what each level of the memory allows, as far as the axis reaches.
    """

    middle: float
    low: float
    high: float
    baseline: float | None
    roof: float | None
    words: str
    samples: tuple[float, ...] = ()
    marks: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Row:
    """A fact in a table.

    Attributes:
        position: 1 for the best; None for one that is never served.
        n_alike: how many facts of its recipe there are, itself included.
        parameters: of the recipe, as text; in a ranking, those that differ from the
            best recipe of the same transform.
        fraction: of the roofline, 1 at the limit; None if that is not known.
    """

    record: TuningRecord
    position: int | None
    is_tied: bool
    parameters: str
    fraction: float | None
    strip: Strip
    n_alike: int = 1

    @property
    def is_implausible(self) -> bool:
        """Whether the speed-up is one that no kernel has; it is not drawn then."""
        return is_implausible(self.record.measurement.speedup)


@dataclass(frozen=True)
class Ranking:
    """The recipes of a workload on one device, the best first.

    Attributes:
        n_more: how many are not shown.
        n_slower: how many of all are no faster than the untransformed kernel.
    """

    device: Device
    axis: Axis
    rows: tuple[Row, ...]
    n_more: int
    n_slower: int
    has_roof: bool
    has_marks: bool

    @property
    def is_tied(self) -> bool:
        """Whether several recipes share the first place."""
        return any(row.is_tied for row in self.rows)

    @property
    def is_doubtful(self) -> bool:
        """Whether a share of the roofline may be of another machine's."""
        return any(is_doubtful(row.fraction, self.device) for row in self.rows)


@dataclass(frozen=True)
class History:
    """A recipe on one device, over drivers and time, the latest first."""

    device: Device
    axis: Axis
    rows: tuple[Row, ...]
    n_drivers: int
    has_roof: bool
    has_marks: bool


@dataclass(frozen=True)
class Timeline:
    """All samples of a fact, and those of the untransformed kernel beside it.

    Attributes:
        fraction: of the roofline, 1 at the limit; None if that is not known.
        is_doubtful: whether the limits may be those of another machine.
    """

    axis: Axis
    recipe: Strip
    baseline: Strip
    marks: tuple[Mark, ...]
    roof_s: float | None
    fraction: float | None
    is_doubtful: bool


@dataclass(frozen=True)
class _Listing:
    """The recipes of a workload on one device, in order, before they are drawn.

    Attributes:
        served: ids of the facts that may be served.
        first: ids of those that are tied for the first place.
        recipes: the best fact of each recipe.
        shown: the first ones of them.
        roofs, marks: limits of those shown, by id.
        n_alike: how many facts of each recipe there are.
    """

    device: Device
    served: frozenset[str]
    first: frozenset[str]
    recipes: Sequence[TuningRecord]
    shown: Sequence[TuningRecord]
    roofs: Mapping[str, float | None]
    marks: Mapping[str, Sequence[Mark]]
    n_alike: Mapping[FramedSpec, int]


def rankings_of(
    records: Sequence[TuningRecord], peaks: Mapping[Device, DevicePeaks | None]
) -> tuple[Ranking, ...]:
    """Rank the recipes of a workload on each device, all along one axis.

    Args:
        peaks: the limits of the devices of the records, in the order of the rankings.
    """
    listings = [
        _listing(device, [r for r in records if r.environment.device == device], limits)
        for device, limits in peaks.items()
    ]
    axis = _speedup_axis(listings)
    return tuple(_ranking(listing, axis) for listing in listings)


def _listing(
    device: Device, records: Sequence[TuningRecord], peaks: DevicePeaks | None
) -> _Listing:
    """Each recipe by its best fact.

    The order is that of :func:`feinsum.records.rank`; recipes that are no faster than
    the untransformed kernel follow.
    """
    served = rank(records)
    served_ids = frozenset(record.id for record in served)
    slower = [record for record in records if record.id not in served_ids]
    slower.sort(key=lambda record: (-record.measurement.speedup, record.id))
    best = {record.recipe: record for record in reversed((*served, *slower))}
    recipes = [r for r in (*served, *slower) if best[r.recipe] is r]
    shown = recipes[:MAX_ROWS]
    return _Listing(
        device,
        served_ids,
        frozenset(tied(served)),
        recipes,
        shown,
        roofs={r.id: roofline_of(r.measurement, peaks) for r in shown},
        marks=marks_of_each(shown, peaks),
        n_alike=Counter(record.recipe for record in records),
    )


def _ranking(listing: _Listing, axis: Axis) -> Ranking:
    shown, roofs = listing.shown, listing.roofs
    n_first = sum(record.id in listing.first for record in listing.recipes)
    of_family = {_family(r.spec): (k, r.spec) for k, r in _numbered(shown)[::-1]}
    rows = tuple(
        Row(
            record=record,
            position=position if record.id in listing.served else None,
            is_tied=n_first > 1 and record.id in listing.first,
            parameters=_difference(record.spec, *of_family[_family(record.spec)]),
            fraction=_fraction(record.measurement, roofs[record.id]),
            strip=_speedup_strip(
                record.measurement, roofs[record.id], listing.marks[record.id], axis
            ),
            n_alike=listing.n_alike[record.recipe],
        )
        for position, record in _numbered(shown)
    )
    return Ranking(
        listing.device,
        axis,
        rows,
        n_more=len(listing.recipes) - len(shown),
        n_slower=sum(record.id not in listing.served for record in listing.recipes),
        has_roof=any(roofs.values()),
        has_marks=any(row.strip.marks for row in rows),
    )


def _speedup_axis(listings: Iterable[_Listing]) -> Axis:
    values = [1.0]
    for listing in listings:
        for record in listing.shown:
            timing = record.measurement
            if is_implausible(timing.speedup):
                continue
            values += [*_speedups(timing), timing.speedup]
            values += _over(_baseline_s(timing), listing.roofs[record.id])
            values += _over(_baseline_s(timing), _longest_s(listing.marks[record.id]))
    return axis_of(values, "{:g}×".format)


def history_of(
    device: Device, records: Iterable[TuningRecord], peaks: DevicePeaks | None
) -> History:
    """The facts of one recipe on a device by the time of recording."""
    newest_first = sorted(records, key=lambda r: (r.recorded_at, r.id), reverse=True)
    shown = newest_first[:MAX_ROWS]
    roofs = {r.id: roofline_of(r.measurement, peaks) for r in shown}
    marks = marks_of_each(shown, peaks)
    values: list[float] = []
    for record in shown:
        timing = record.measurement
        values += [*median_interval(timing.samples_s), timing.median_s]
        values += [_baseline_s(timing), *_if_any(roofs[record.id])]
        values += _if_any(_longest_s(marks[record.id]))
    axis = axis_of(values, seconds)
    rows = tuple(
        Row(
            record=record,
            position=position,
            is_tied=False,
            parameters=_parameters(record.spec),
            fraction=_fraction(record.measurement, roofs[record.id]),
            strip=_time_strip(
                record.measurement, roofs[record.id], marks[record.id], axis
            ),
        )
        for position, record in enumerate(shown, start=1)
    )
    drivers = {record.environment.driver_version for record in newest_first}
    has_marks = any(row.strip.marks for row in rows)
    return History(device, axis, rows, len(drivers), any(roofs.values()), has_marks)


def timeline_of(record: TuningRecord, peaks: DevicePeaks | None) -> Timeline:
    """Every sample of a fact."""
    timing = record.measurement
    roof_s = roofline_of(timing, peaks)
    samples, baseline = timing.samples_s, timing.baseline_s
    marks = marks_of(record, peaks)
    limits = [*_if_any(roof_s), *_if_any(_longest_s(marks))]
    axis = axis_of([*samples, *baseline, *limits], seconds)
    fraction = _fraction(timing, roof_s)
    return Timeline(
        axis,
        _sample_strip(samples, roof_s, marks, axis),
        _sample_strip(baseline, roof_s, marks, axis),
        marks,
        roof_s,
        fraction,
        is_doubtful(fraction, record.environment.device),
    )


def roofline_of(timing: Measurement, peaks: DevicePeaks | None) -> float | None:
    """The time in seconds that the limits of the device allow, if it is known."""
    if peaks is None or not _are_positive(peaks):
        return None
    try:
        limit_s = roofline_s(timing.operations, timing.footprint_bytes, peaks)
    except (MeasurementError, SyntaxError, TypeError, ValueError, OverflowError):
        return None  # a dtype that was not measured, or that does not exist
    return _plausible(limit_s)


def _are_positive(peaks: DevicePeaks) -> bool:
    limits = [peaks.bandwidth_bytes_per_s, *peaks.operations_per_s.values()]
    return all(limit > 0 for limit in limits)


def marks_of(record: TuningRecord, peaks: DevicePeaks | None) -> tuple[Mark, ...]:
    """The marks of a fact, from the nearest cache to the memory; none if unknown."""
    bound = bound_of_record(record, peaks)
    if bound is None:
        return ()
    reached = shares(bound, record.measurement.median_s)
    return tuple(
        Mark(
            cost.level.name,
            cost.n_bytes,
            _plausible(cost.seconds),
            _plausible(reached.get(cost.level.name)),
        )
        for cost in bound.levels
    )


def marks_of_each(
    records: Iterable[TuningRecord], peaks: DevicePeaks | None
) -> dict[str, tuple[Mark, ...]]:
    """The marks of several facts of a device by their ids.

    Facts of equal sizes have equal bounds; of more than a few sizes there are none.
    """
    by_sizes: dict[tuple[str, Mapping[str, int]], tuple[Mark, ...]] = {}
    by_id: dict[str, tuple[Mark, ...]] = {}
    for record in records:
        key = record.workload_text, record.measurement.sizes
        if key not in by_sizes and len(by_sizes) < MAX_BOUNDED:
            by_sizes[key] = marks_of(record, peaks)
        by_id[record.id] = by_sizes.get(key, ())
    return by_id


def _plausible(value: float | None) -> float | None:
    """None for a number that follows from limits that no device has."""
    return value if value is not None and value > 0 and isfinite(value) else None


def _speedup_strip(
    timing: Measurement, roof_s: float | None, marks: Sequence[Mark], axis: Axis
) -> Strip:
    low, high = _speedups(timing)
    roof = next(iter(_over(_baseline_s(timing), roof_s)), None)
    words = f"{ratio(timing.speedup)}, between {ratio(low)} and {ratio(high)}"
    if roof:
        words += f"; the roofline allows {ratio(roof)}"
    baseline_s = _baseline_s(timing)
    allowed = {m.level: baseline_s / m.seconds for m in marks if m.seconds}
    words += _allowed(allowed, ratio)
    ticks = _ticks(axis, allowed, ratio)
    return _strip(axis, words, (timing.speedup, low, high), 1.0, roof, marks=ticks)


def _time_strip(
    timing: Measurement, roof_s: float | None, marks: Sequence[Mark], axis: Axis
) -> Strip:
    low, high = median_interval(timing.samples_s)
    baseline_s = _baseline_s(timing)
    words = f"{seconds(timing.median_s)}, between {seconds(low)} and {seconds(high)}"
    words += f"; untransformed {seconds(baseline_s)}"
    if roof_s:
        words += f"; the roofline allows {seconds(roof_s)}"
    allowed = {m.level: m.seconds for m in marks if m.seconds}
    words += _allowed(allowed, seconds)
    ticks = _ticks(axis, allowed, seconds)
    values = (timing.median_s, low, high)
    return _strip(axis, words, values, baseline_s, roof_s, marks=ticks)


def _sample_strip(
    samples: tuple[float, ...],
    roof_s: float | None,
    marks: Sequence[Mark],
    axis: Axis,
) -> Strip:
    words = (
        f"median {seconds(median(samples))}, from {seconds(min(samples))} "
        f"to {seconds(max(samples))}"
    )
    allowed = {m.level: m.seconds for m in marks if m.seconds}
    words += _allowed(allowed, seconds)
    values = (median(samples), *median_interval(samples))
    ticks = _ticks(axis, allowed, seconds)
    return _strip(axis, words, values, None, roof_s, samples[:MAX_SAMPLES], ticks)


def _allowed(values: Mapping[str, float], text: Callable[[float], str]) -> str:
    """The limit of every memory level, in words."""
    return "".join(f"; {level} allows {text(x)}" for level, x in values.items())


def _ticks(
    axis: Axis, values: Mapping[str, float], text: Callable[[float], str]
) -> tuple[Tick, ...]:
    """The marks of the levels whose values the axis has."""
    return tuple(
        Tick(axis.at(value), f"{level}: {text(value)}")
        for level, value in values.items()
        if axis.low <= value <= axis.high
    )


def _longest_s(marks: Sequence[Mark]) -> float | None:
    """The time of the level that takes the longest."""
    return max((m.seconds for m in marks if m.seconds), default=None)


def _strip(
    axis: Axis,
    words: str,
    values: tuple[float, float, float],
    baseline: float | None,
    roof: float | None,
    samples: tuple[float, ...] = (),
    marks: tuple[Tick, ...] = (),
) -> Strip:
    """Values to positions along an axis."""
    middle, low, high = map(axis.at, values)
    return Strip(
        middle,
        low,
        high,
        baseline=None if baseline is None else axis.at(baseline),
        roof=None if roof is None else axis.at(roof),
        words=words,
        samples=tuple(map(axis.at, samples)),
        marks=marks,
    )


def _speedups(timing: Measurement) -> tuple[float, float]:
    """The interval of the speed-up; an end without bounds is at the middle."""
    low, high = timing.speedup_interval
    return low, high if isfinite(high) else timing.speedup


def _fraction(timing: Measurement, roof_s: float | None) -> float | None:
    return roof_s / timing.median_s if roof_s else None


def _baseline_s(timing: Measurement) -> float:
    return median(timing.baseline_s)


def _over(baseline_s: float, roof_s: float | None) -> list[float]:
    return [baseline_s / roof_s] if roof_s else []


def _if_any(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _numbered(records: Sequence[TuningRecord]) -> list[tuple[int, TuningRecord]]:
    return list(enumerate(records, start=1))


def _family(spec: TransformSpec) -> tuple[str, int]:
    return spec.name, spec.version


def _parameters(spec: TransformSpec) -> str:
    return clipped(", ".join(f"{k}={v!r}" for k, v in spec.parameters.items()))


def _difference(spec: TransformSpec, rank: int, best: TransformSpec) -> str:
    """The parameters of a recipe, or those in which it is not the best one's.

    >>> best = TransformSpec("rowwise", 1, {"block": 32, "lanes": 8})
    >>> _difference(best, 3, best)
    'block=32, lanes=8'
    >>> _difference(TransformSpec("rowwise", 1, {"block": 64, "lanes": 8}), 3, best)
    'as 3, but block=64'
    """
    if spec == best or best.parameters.keys() != spec.parameters.keys():
        return _parameters(spec)
    other = {k: v for k, v in spec.parameters.items() if v != best.parameters[k]}
    return f"as {rank}, but {_parameters(TransformSpec('', 0, other))}"
