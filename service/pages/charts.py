"""Charts of facts: the ranking of a workload, and the history of a recipe.

Each row of a table has a strip, drawn along the axis of the table::

    baseline |        roof ]                     flags: least times of memory levels
             |    |--o--|  ]                     low, middle and high of the median
         0.5   1    2    5    10                 the axis is logarithmic

A ranking shows times as speed-ups over the untransformed kernel of the same run, which
makes sizes and clocks comparable; a history shows seconds. Strips have values, and
templates place them with :meth:`Axis.at`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, log10
from statistics import median

from feinsum.bounds import bound_record, compute_shares, find_roofline_s
from feinsum.records import (
    Device,
    DevicePeaks,
    Measurement,
    TransformSpec,
    TuningRecord,
    compute_median_interval,
    find_tied_records,
    rank,
)
from feinsum.service.pages.words import (
    clip_text,
    format_ratio,
    format_seconds,
    is_doubtful,
    is_implausible,
)

WIDTH = 320.0
"""Length of an axis, in pixels."""

MARGIN = 16.0
"""Room beside the outermost values, for half of a label."""

MAX_TICKS = 5

STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
"""Which multiples of powers of ten have ticks, the coarsest choice first."""

MAX_ROWS = 20
"""Recipes of a device, or facts of a recipe, that are shown."""

MAX_SAMPLES = 200

MAX_BOUNDED = 3
"""Different sizes among the facts of a page for which bounds are searched."""

Limits = Mapping[Device, DevicePeaks | None]
"""The measured limits of devices, in the order in which a page has the devices."""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from ``low`` to ``high``, both above 0 and finite.

    Attributes:
        ticks: round values with their labels.
        width: in pixels.
    """

    low: float
    high: float
    ticks: Mapping[float, str] = field(default_factory=dict)
    width: float = WIDTH

    def at(self, value: float) -> float:
        """Return the position of a value in pixels; beyond an end, that of the end.

        >>> round(Axis(1.0, 100.0).at(10.0))
        160
        """
        # also for nan
        if not value > self.low:
            return MARGIN
        if value >= self.high:
            return self.width - MARGIN
        share = log10(value / self.low) / log10(self.high / self.low)
        return round(MARGIN + share * (self.width - 2 * MARGIN), 1)

    def within(self, value: float) -> bool:
        """Return whether a value is on the axis."""
        return self.low <= value <= self.high


def make_axis(
    values: Iterable[float], label: Callable[[float], str], width: float = WIDTH
) -> Axis:
    """Make an axis that shows some values; it leaves out those that it cannot show.

    >>> list(make_axis([0.9, 30.0], "{:g}".format).ticks.values())
    ['1', '2', '5', '10', '20']
    """
    # facts of others may have any numbers; their logarithms would fail
    shown = [value for value in values if 1e-150 < value < 1e150]
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    # an axis for a single value needs a width, too
    low, high = min(low, high / 1.2), max(high, low * 1.2)
    ticks = {value: label(value) for value in _round_values(low, high)}
    return Axis(low, high, ticks, width)


def _round_values(low: float, high: float) -> list[float]:
    """Choose round values between two ends: as many as have room, at least one."""
    first, last = floor(log10(low)), ceil(log10(high))
    # an outlier at 1e-100 would have hundreds of powers beside it
    power_step = max(1, (last - first) // 20)
    powers = [float(f"1e{power}") for power in range(first, last + 1, power_step)]
    finer: list[float] = []
    for steps in STEPS:
        values = [step * power for power in powers for step in steps]
        values = [value for value in values if low <= value <= high]
        # take the finest steps whose ticks fit; of too many coarse ones every n-th
        if len(values) > MAX_TICKS:
            return finer or values[:: -(-len(values) // MAX_TICKS)]
        finer = values
    return finer or [low]


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
class FactStrip:
    """A line of a chart, in the unit of its axis.

    Attributes:
        middle, low, high: the median, and the interval that it lies in.
        baseline: the untransformed kernel.
        roof: what the measured limits of the device allow.
        levels: what each level of the memory allows.
        words: the same as text, for screen readers.
        extent: values that the axis has to show.
        samples: all samples of the fact, or none.
    """

    middle: float
    low: float
    high: float
    baseline: float
    roof: float | None
    levels: Mapping[str, float]
    words: str
    extent: tuple[float, ...]
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class ChartRow:
    """A fact in a table.

    Attributes:
        position: 1 for the best; None for one that is never served.
        parameters: of the recipe, as text; in a ranking, those that differ from the
            best recipe of the same transform.
        roof_s: time that the limits of the device allow; None if unknown.
        n_alike: how many facts of its recipe there are, itself included.
    """

    record: TuningRecord
    strip: FactStrip
    roof_s: float | None
    position: int | None = None
    is_tied: bool = False
    parameters: str = ""
    n_alike: int = 1

    @property
    def fraction(self) -> float | None:
        """Fraction of the roofline, 1 at the limit; None if unknown."""
        timing = self.record.measurement
        return self.roof_s / timing.median_s if self.roof_s else None

    @property
    def is_implausible(self) -> bool:
        """Whether the speed-up is one that no kernel has; it is not drawn then."""
        return is_implausible(self.record.measurement.speedup)


@dataclass(frozen=True)
class DeviceRows:
    """The rows of one device.

    Attributes:
        n_more: how many are not shown.
        n_slower: how many recipes are no faster than the untransformed kernel.
    """

    device: Device
    rows: tuple[ChartRow, ...]
    n_more: int = 0
    n_slower: int = 0


@dataclass(frozen=True)
class FactChart:
    """Rows of some devices along one axis."""

    axis: Axis
    groups: tuple[DeviceRows, ...]

    @property
    def rows(self) -> list[ChartRow]:
        """All rows."""
        return [row for group in self.groups for row in group.rows]

    @property
    def is_tied(self) -> bool:
        """Whether several recipes of a device share the first position."""
        return any(row.is_tied for row in self.rows)

    @property
    def is_doubtful(self) -> bool:
        """Whether a share of the roofline may belong to another machine."""
        return any(
            is_doubtful(row.fraction, group.device)
            for group in self.groups
            for row in group.rows
        )


def make_ranking(records: Sequence[TuningRecord], limits: Limits) -> FactChart:
    """Rank the recipes of a workload on each device, each by its best fact.

    The order is that of :func:`feinsum.records.rank`; recipes that are no faster than
    the untransformed kernel follow.
    """
    groups = tuple(
        _rank_device(
            device, [r for r in records if r.environment.device == device], peaks
        )
        for device, peaks in limits.items()
    )
    strips = [row.strip for g in groups for row in g.rows if not row.is_implausible]
    values = [value for strip in strips for value in strip.extent]
    return FactChart(make_axis([1.0, *values], "{:g}×".format), groups)


def _rank_device(
    device: Device, records: Sequence[TuningRecord], peaks: DevicePeaks | None
) -> DeviceRows:
    served = rank(records)
    positions = {record.id: k for k, record in enumerate(served)}
    slower = [record for record in records if record.id not in positions]
    slower.sort(key=lambda record: (-record.measurement.speedup, record.id))
    # the first fact of a recipe is its best one
    best = {record.recipe: record for record in reversed((*served, *slower))}
    recipes = [r for r in (*served, *slower) if best[r.recipe] is r]
    first = set(find_tied_records(served))
    # several facts of one recipe may tie; rows are recipes
    is_tie = sum(record.id in first for record in recipes) > 1
    n_alike = Counter(record.recipe for record in records)
    # bounds are searched for the rows that are drawn, not for all
    shown = recipes[:MAX_ROWS]
    marks = make_marks_by_id(shown, peaks)
    examples: dict[tuple[str, int], tuple[int, TransformSpec]] = {}
    rows = []
    for k, record in enumerate(shown, start=1):
        transform = record.spec.name, record.spec.version
        example = examples.setdefault(transform, (k, record.spec))
        roof_s = find_roofline_s(record.measurement, peaks)
        rows.append(
            ChartRow(
                record,
                _strip(record.measurement, roof_s, marks[record.id], is_ratio=True),
                roof_s,
                position=k if record.id in positions else None,
                is_tied=is_tie and record.id in first,
                parameters=_format_difference(record.spec, *example),
                n_alike=n_alike[record.recipe],
            )
        )
    n_slower = sum(record.id not in positions for record in recipes)
    return DeviceRows(device, tuple(rows), len(recipes) - len(rows), n_slower)


def make_history(
    record: TuningRecord, records: Iterable[TuningRecord], limits: Limits
) -> FactChart:
    """Show the facts of one recipe on each device, the latest first.

    Args:
        record: the fact whose samples are drawn.
        records: facts of the same recipe, on any device.
        limits: devices, with their measured limits if known.
    """
    newest_first = sorted(records, key=lambda r: (r.recorded_at, r.id), reverse=True)
    groups = []
    for device, peaks in limits.items():
        alike = [r for r in newest_first if r.environment.device == device]
        # a page of a fact has that fact
        shown = [r for k, r in enumerate(alike) if k < MAX_ROWS or r.id == record.id]
        marks = make_marks_by_id(shown, peaks)
        rows = []
        for fact in shown:
            timing = fact.measurement
            roof_s = find_roofline_s(timing, peaks)
            samples = timing.samples_s[:MAX_SAMPLES] if fact.id == record.id else ()
            strip = _strip(
                timing, roof_s, marks[fact.id], is_ratio=False, samples=samples
            )
            rows.append(ChartRow(fact, strip, roof_s))
        groups.append(DeviceRows(device, tuple(rows), len(alike) - len(rows)))
    values = [v for g in groups for row in g.rows for v in row.strip.extent]
    return FactChart(make_axis(values, format_seconds), tuple(groups))


def make_marks(record: TuningRecord, peaks: DevicePeaks | None) -> tuple[Mark, ...]:
    """Return the marks of a fact, from the nearest cache to the memory, if known."""
    bound = bound_record(record, peaks)
    if bound is None:
        return ()
    reached = compute_shares(bound, record.measurement.median_s)
    return tuple(
        Mark(
            cost.level.name,
            cost.n_bytes,
            _drop_implausible(cost.seconds),
            _drop_implausible(reached.get(cost.level.name)),
        )
        for cost in bound.levels
    )


def make_marks_by_id(
    records: Iterable[TuningRecord], peaks: DevicePeaks | None
) -> dict[str, tuple[Mark, ...]]:
    """Return the marks of several facts of a device by their ids.

    Facts of equal sizes have equal bounds; of more than a few sizes there are none.
    """
    by_sizes: dict[tuple[str, Mapping[str, int]], tuple[Mark, ...]] = {}
    by_id: dict[str, tuple[Mark, ...]] = {}
    for record in records:
        key = record.workload_text, record.measurement.sizes
        # a search takes long, and anyone may send facts of any sizes
        if key not in by_sizes and len(by_sizes) < MAX_BOUNDED:
            by_sizes[key] = make_marks(record, peaks)
        by_id[record.id] = by_sizes.get(key, ())
    return by_id


def _drop_implausible(value: float | None) -> float | None:
    """Replace a number that follows from limits that no device has by None."""
    return value if value is not None and value > 0 and isfinite(value) else None


def _strip(
    timing: Measurement,
    roof_s: float | None,
    marks: Sequence[Mark],
    *,
    is_ratio: bool,
    samples: tuple[float, ...] = (),
) -> FactStrip:
    """Return a strip in seconds, or as ratios of the untransformed kernel's time."""
    baseline_s = median(timing.baseline_s)
    text: Callable[[float], str] = format_ratio if is_ratio else format_seconds
    if is_ratio:
        low, high = timing.speedup_interval
        # an end without bounds is at the middle
        middle = timing.speedup, low, high if isfinite(high) else timing.speedup
    else:
        middle = timing.median_s, *compute_median_interval(timing.samples_s)

    def value(time_s: float) -> float:
        return baseline_s / time_s if is_ratio else time_s

    roof = value(roof_s) if roof_s else None
    levels = {mark.level: value(mark.seconds) for mark in marks if mark.seconds}
    words = "{}, between {} and {}".format(*map(text, middle))
    if roof is not None:
        words += f"; the roofline allows {text(roof)}"
    words += "".join(f"; {name} allows {text(x)}" for name, x in levels.items())
    words += f"; untransformed {text(value(baseline_s))}"
    # show only the slowest level: faster ones would squeeze the rest
    slowest_s = max((mark.seconds for mark in marks if mark.seconds), default=None)
    times = baseline_s, *filter(None, (roof_s, slowest_s)), *samples
    extent = *middle, *map(value, times)
    return FactStrip(*middle, value(baseline_s), roof, levels, words, extent, samples)


def _format_difference(spec: TransformSpec, rank: int, best: TransformSpec) -> str:
    """Return the parameters of a recipe, or those that differ from the best one's.

    >>> best = TransformSpec("rowwise", 1, {"block": 32, "lanes": 8})
    >>> _format_difference(best, 3, best)
    'block=32, lanes=8'
    >>> _format_difference(TransformSpec("rowwise", 1, {"block": 64, "lanes": 8}), 3,
    ...     best)
    'as 3, but block=64'
    """
    parameters, start = spec.parameters, ""
    if spec != best and best.parameters.keys() == parameters.keys():
        parameters = {k: v for k, v in parameters.items() if v != best.parameters[k]}
        start = f"as {rank}, but "
    return start + clip_text(", ".join(f"{k}={v!r}" for k, v in parameters.items()))
