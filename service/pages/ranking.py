"""Facts side by side: the ranking of a device, and the history of a recipe.

Each row of a table has a strip, drawn along the axis of the table::

    baseline |        roof ]                     marks: least times of memory levels
             |    |--o--|  ]                     low, middle and high of the median

A ranking shows times as speed-ups over the untransformed kernel of the same run, which
makes sizes and clocks comparable; a history shows seconds.
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
class StripView:
    """A line of a chart, in pixels along its axis.

    Attributes:
        middle, low, high: the median, and the interval that it lies in.
        baseline: the untransformed kernel.
        roof: what the measured limits of the device allow.
        words: the same as text, for screen readers.
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
class FactRow:
    """A fact in a table.

    Attributes:
        position: 1 for the best; None for one that is never served.
        parameters: of the recipe, as text; in a ranking, those that differ from the
            best recipe of the same transform.
        fraction: of the roofline, 1 at the limit; None if unknown.
        n_alike: how many facts of its recipe there are, itself included.
    """

    record: TuningRecord
    position: int | None
    is_tied: bool
    parameters: str
    fraction: float | None
    strip: StripView
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
    rows: tuple[FactRow, ...]
    n_more: int
    n_slower: int
    has_roof: bool
    has_marks: bool

    @property
    def is_tied(self) -> bool:
        """Whether several recipes share the first position."""
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
    rows: tuple[FactRow, ...]
    n_drivers: int
    has_roof: bool
    has_marks: bool


@dataclass(frozen=True)
class Timeline:
    """All samples of a fact, and those of the untransformed kernel beside it.

    Attributes:
        fraction: of the roofline, 1 at the limit; None if unknown.
        is_doubtful: whether the limits may be those of another machine.
    """

    axis: Axis
    recipe: StripView
    baseline: StripView
    marks: tuple[Mark, ...]
    roof_s: float | None
    fraction: float | None
    is_doubtful: bool


@dataclass(frozen=True)
class _Limits:
    """The least times of a fact: by the roofline, and by each level of the memory."""

    roof_s: float | None
    marks: tuple[Mark, ...]

    def level_times(self) -> dict[str, float]:
        return {mark.level: mark.seconds for mark in self.marks if mark.seconds}

    def times_on_axis(self) -> list[float]:
        """The roofline, and the slowest level: faster levels would squeeze the rest."""
        slowest_s = max(self.level_times().values(), default=None)
        return [time_s for time_s in (self.roof_s, slowest_s) if time_s]


@dataclass(frozen=True)
class _Listing:
    """The recipes of a workload on one device, in order, before they are drawn.

    Attributes:
        records: all facts.
        served: the facts that may be served, the best first.
        recipes: the best fact of each recipe, served ones first.
        limits: of the recipes that are shown, by id.
    """

    device: Device
    records: Sequence[TuningRecord]
    served: Sequence[TuningRecord]
    recipes: Sequence[TuningRecord]
    limits: Mapping[str, _Limits]

    @property
    def shown(self) -> Sequence[TuningRecord]:
        return self.recipes[:MAX_ROWS]


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
    values = [1.0]
    for listing in listings:
        for record in listing.shown:
            timing = record.measurement
            # one absurd fact would squeeze all others into a pixel
            if not is_implausible(timing.speedup):
                limits = listing.limits[record.id].times_on_axis()
                values += [timing.speedup, *_speedup_interval(timing)]
                values += [_baseline_s(timing) / time_s for time_s in limits]
    axis = axis_of(values, "{:g}×".format)
    return tuple(_ranking(listing, axis) for listing in listings)


def _listing(
    device: Device, records: Sequence[TuningRecord], peaks: DevicePeaks | None
) -> _Listing:
    """Each recipe by its best fact.

    The order is that of :func:`feinsum.records.rank`; recipes that are no faster than
    the untransformed kernel follow.
    """
    served = rank(records)
    served_ids = {record.id for record in served}
    slower = [record for record in records if record.id not in served_ids]
    slower.sort(key=lambda record: (-record.measurement.speedup, record.id))
    # the first fact of a recipe is its best one
    best = {record.recipe: record for record in reversed((*served, *slower))}
    recipes = [r for r in (*served, *slower) if best[r.recipe] is r]
    # bounds are searched for the rows that are drawn, not for all
    limits = _limits_of(recipes[:MAX_ROWS], peaks)
    return _Listing(device, records, served, recipes, limits)


def _ranking(listing: _Listing, axis: Axis) -> Ranking:
    served = {record.id for record in listing.served}
    first = frozenset(tied(listing.served))
    # several facts of one recipe may tie; rows are recipes
    n_first = sum(record.id in first for record in listing.recipes)
    n_alike = Counter(record.recipe for record in listing.records)
    # backwards, so that the best recipe of each transform remains
    positions = list(enumerate(listing.shown, start=1))
    best = {_transform(r.spec): (k, r.spec) for k, r in reversed(positions)}
    rows = tuple(
        FactRow(
            record=record,
            position=position if record.id in served else None,
            is_tied=n_first > 1 and record.id in first,
            parameters=_difference(record.spec, *best[_transform(record.spec)]),
            fraction=_fraction(record.measurement, listing.limits[record.id].roof_s),
            strip=_speedup_strip(record.measurement, listing.limits[record.id], axis),
            n_alike=n_alike[record.recipe],
        )
        for position, record in positions
    )
    return Ranking(
        listing.device,
        axis,
        rows,
        n_more=len(listing.recipes) - len(rows),
        n_slower=sum(record.id not in served for record in listing.recipes),
        has_roof=any(limits.roof_s for limits in listing.limits.values()),
        has_marks=any(row.strip.marks for row in rows),
    )


def history_of(
    device: Device, records: Iterable[TuningRecord], peaks: DevicePeaks | None
) -> History:
    """The facts of one recipe on a device by the time of recording."""
    newest_first = sorted(records, key=lambda r: (r.recorded_at, r.id), reverse=True)
    shown = newest_first[:MAX_ROWS]
    limits = _limits_of(shown, peaks)
    values: list[float] = []
    for record in shown:
        timing = record.measurement
        values += [timing.median_s, *median_interval(timing.samples_s)]
        values += [_baseline_s(timing), *limits[record.id].times_on_axis()]
    axis = axis_of(values, seconds)
    rows = tuple(
        FactRow(
            record=record,
            position=position,
            is_tied=False,
            parameters=_parameters(record.spec),
            fraction=_fraction(record.measurement, limits[record.id].roof_s),
            strip=_time_strip(record.measurement, limits[record.id], axis),
        )
        for position, record in enumerate(shown, start=1)
    )
    return History(
        device,
        axis,
        rows,
        n_drivers=len({record.environment.driver_version for record in newest_first}),
        has_roof=any(limit.roof_s for limit in limits.values()),
        has_marks=any(row.strip.marks for row in rows),
    )


def timeline_of(record: TuningRecord, peaks: DevicePeaks | None) -> Timeline:
    """Every sample of a fact."""
    timing = record.measurement
    limits = _Limits(roofline_of(timing, peaks), marks_of(record, peaks))
    samples, baseline = timing.samples_s, timing.baseline_s
    axis = axis_of([*samples, *baseline, *limits.times_on_axis()], seconds)
    fraction = _fraction(timing, limits.roof_s)
    return Timeline(
        axis,
        _sample_strip(samples, limits, axis),
        _sample_strip(baseline, limits, axis),
        limits.marks,
        limits.roof_s,
        fraction,
        is_doubtful(fraction, record.environment.device),
    )


def roofline_of(timing: Measurement, peaks: DevicePeaks | None) -> float | None:
    """The time in seconds that the limits of the device allow, if it is known."""
    if peaks is None:
        return None
    if min(peaks.bandwidth_bytes_per_s, *peaks.operations_per_s.values(), 1) <= 0:
        return None
    try:
        limit_s = roofline_s(timing.operations, timing.footprint_bytes, peaks)
    except (MeasurementError, SyntaxError, TypeError, ValueError, OverflowError):
        return None  # a dtype that was not measured, or that does not exist
    return _plausible(limit_s)


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
        # a search takes long, and anyone may send facts of any sizes
        if key not in by_sizes and len(by_sizes) < MAX_BOUNDED:
            by_sizes[key] = marks_of(record, peaks)
        by_id[record.id] = by_sizes.get(key, ())
    return by_id


def _limits_of(
    records: Sequence[TuningRecord], peaks: DevicePeaks | None
) -> dict[str, _Limits]:
    marks = marks_of_each(records, peaks)
    return {
        record.id: _Limits(roofline_of(record.measurement, peaks), marks[record.id])
        for record in records
    }


def _plausible(value: float | None) -> float | None:
    """None for a number that follows from limits that no device has."""
    return value if value is not None and value > 0 and isfinite(value) else None


def _speedup_strip(timing: Measurement, limits: _Limits, axis: Axis) -> StripView:
    baseline_s = _baseline_s(timing)
    low, high = _speedup_interval(timing)
    words = f"{ratio(timing.speedup)}, between {ratio(low)} and {ratio(high)}"
    middle = timing.speedup, low, high
    return _strip(axis, words, middle, 1.0, limits, ratio, lambda s: baseline_s / s)


def _time_strip(timing: Measurement, limits: _Limits, axis: Axis) -> StripView:
    low, high = median_interval(timing.samples_s)
    baseline_s = _baseline_s(timing)
    words = f"{seconds(timing.median_s)}, between {seconds(low)} and {seconds(high)}"
    words += f"; untransformed {seconds(baseline_s)}"
    return _strip(axis, words, (timing.median_s, low, high), baseline_s, limits)


def _sample_strip(samples: tuple[float, ...], limits: _Limits, axis: Axis) -> StripView:
    words = (
        f"median {seconds(median(samples))}, from {seconds(min(samples))} "
        f"to {seconds(max(samples))}"
    )
    middle = median(samples), *median_interval(samples)
    return _strip(axis, words, middle, None, limits, samples=samples[:MAX_SAMPLES])


def _strip(
    axis: Axis,
    words: str,
    middle: tuple[float, float, float],
    baseline: float | None,
    limits: _Limits,
    text: Callable[[float], str] = seconds,
    value_of: Callable[[float], float] = float,
    samples: tuple[float, ...] = (),
) -> StripView:
    """Place values along an axis, and complete the words with the limits.

    Args:
        middle: the median, and its interval.
        text: of a value.
        value_of: the value for a time in seconds.
    """
    roof = value_of(limits.roof_s) if limits.roof_s else None
    levels = {name: value_of(time_s) for name, time_s in limits.level_times().items()}
    if roof is not None:
        words += f"; the roofline allows {text(roof)}"
    words += "".join(f"; {name} allows {text(x)}" for name, x in levels.items())
    center, low, high = map(axis.at, middle)
    return StripView(
        center,
        low,
        high,
        baseline=None if baseline is None else axis.at(baseline),
        roof=None if roof is None else axis.at(roof),
        words=words,
        samples=tuple(map(axis.at, samples)),
        # a level beyond the axis is in the words alone: at the end it would mislead
        marks=tuple(
            Tick(axis.at(x), f"{name}: {text(x)}")
            for name, x in levels.items()
            if axis.low <= x <= axis.high
        ),
    )


def _speedup_interval(timing: Measurement) -> tuple[float, float]:
    """The interval of the speed-up; an end without bounds is at the middle."""
    low, high = timing.speedup_interval
    return low, high if isfinite(high) else timing.speedup


def _fraction(timing: Measurement, roof_s: float | None) -> float | None:
    return roof_s / timing.median_s if roof_s else None


def _baseline_s(timing: Measurement) -> float:
    return median(timing.baseline_s)


def _transform(spec: TransformSpec) -> tuple[str, int]:
    return spec.name, spec.version


def _parameters(spec: TransformSpec) -> str:
    return clipped(", ".join(f"{k}={v!r}" for k, v in spec.parameters.items()))


def _difference(spec: TransformSpec, rank: int, best: TransformSpec) -> str:
    """The parameters of a recipe, or those in which it differs from the best one.

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
