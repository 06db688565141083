"""The roofline of a device, with the best recipe of each workload under it.

::

    op/s |        _________ peak of float32
         |      /
         |    /____________ peak of float64
         |  / .
         |/  .    .                         both axes are logarithmic
         +-----------------  op/byte
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from feinsum.drawing import Roof, roofs
from feinsum.records import Device, DevicePeaks, TuningRecord
from feinsum.service.pages.axis import Axis, Tick, axis_of
from feinsum.service.pages.notation import notation_of
from feinsum.service.pages.ranking import roofline_of
from feinsum.service.pages.words import dtype, is_doubtful, rate

WIDTH, HEIGHT = 860.0, 380.0


@dataclass(frozen=True)
class DotView:
    """A workload with its fastest fact: where it is, and its numbers."""

    x: float
    y: float
    workload: str
    title: str
    intensity: float
    rate: float
    fraction: float | None


@dataclass(frozen=True)
class Line:
    """The limit that a dtype has, as a path, and where its label is."""

    path: str
    label: str
    y: float


@dataclass(frozen=True)
class ChartView:
    """A roofline on a sheet, in pixels; both axes are logarithmic.

    Attributes:
        slopes: what the caches allow, up to the highest roof.
    """

    device: Device
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roofs: tuple[Line, ...]
    dots: tuple[DotView, ...]
    slopes: tuple[Line, ...] = ()
    width: float = WIDTH
    height: float = HEIGHT

    @property
    def is_doubtful(self) -> bool:
        """Whether a share of the roofline may be of another machine's."""
        return any(is_doubtful(dot.fraction, self.device) for dot in self.dots)


def roofline_chart(
    facts: Iterable[TuningRecord], peaks: DevicePeaks
) -> ChartView | None:
    """The chart of some facts of a device; None if there is nothing to show.

    Source: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
    """
    best = _fastest(facts)
    limits = {
        kind: peak for kind, peak in peaks.operations_per_s.items() if _is_sound(peak)
    }
    # limits are sent by others: zero and infinity have no logarithm
    if not best or not limits or not _is_sound(peaks.bandwidth_bytes_per_s):
        return None
    bandwidth = peaks.bandwidth_bytes_per_s
    # the ridge points belong on the axis: left of them memory limits, right arithmetic
    at = [_intensity(fact) for fact in best]
    at += [peak / bandwidth for peak in limits.values()]
    x_axis = axis_of([min(at) / 1.5, max(at) * 2.5], "{:g}".format, WIDTH)
    rates = [x_axis.low * bandwidth, *map(_rate, best)]
    y_axis = axis_of(
        [min(rates) / 1.3, max(*rates, *limits.values()) * 1.6], _op, HEIGHT
    )
    lines = roofs(bandwidth, limits, x_axis.low, x_axis.high)
    return ChartView(
        peaks.device,
        x_axis.ticks,
        tuple(Tick(HEIGHT - tick.x, tick.label) for tick in y_axis.ticks),
        tuple(_line(roof, x_axis, y_axis) for roof in lines),
        tuple(_dot(fact, peaks, x_axis, y_axis) for fact in best),
        tuple(_slopes(peaks, max(limits.values()), x_axis, y_axis)),
    )


def _fastest(facts: Iterable[TuningRecord]) -> list[TuningRecord]:
    """The fastest fact of each workload whose work is known."""
    # one dot for each workload: slower recipes say nothing about the device
    best: dict[str, TuningRecord] = {}
    for fact in facts:
        fastest = best.setdefault(fact.workload, fact)
        if fact.measurement.speedup > fastest.measurement.speedup:
            best[fact.workload] = fact
    return [
        f for f in best.values() if _is_sound(_intensity(f)) and _is_sound(_rate(f))
    ]


def _is_sound(value: float) -> bool:
    return 1e-200 < value < 1e200


def _intensity(fact: TuningRecord) -> float:
    """Operations per byte."""
    timing = fact.measurement
    return sum(timing.operations.values()) / max(1, timing.footprint_bytes)


def _rate(fact: TuningRecord) -> float:
    """Operations per second."""
    return sum(fact.measurement.operations.values()) / fact.measurement.median_s


def _op(per_s: float) -> str:
    return rate(per_s, "op")


def _line(roof: Roof, x_axis: Axis, y_axis: Axis) -> Line:
    at = [(x_axis.at(x), HEIGHT - y_axis.at(y)) for x, y in roof.corners]
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return Line(path, f"{_op(roof.peak)}, {dtype(roof.name)}", round(at[-1][1], 1))


def _slopes(
    peaks: DevicePeaks, highest: float, x_axis: Axis, y_axis: Axis
) -> Iterator[Line]:
    """The bandwidths of caches that are faster than the memory, up to the roof."""
    for name, bandwidth in peaks.cache_bytes_per_s.items():
        ridge = highest / bandwidth if _is_sound(bandwidth) else 0.0
        # a cache that is slower than the memory was measured badly
        if bandwidth <= peaks.bandwidth_bytes_per_s or ridge <= x_axis.low:
            continue
        low = x_axis.low * bandwidth
        ends = ((x_axis.low, low), (ridge, highest))
        at = [(x_axis.at(x), HEIGHT - y_axis.at(y)) for x, y in ends]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in at)
        yield Line(path, f"{name}: {rate(bandwidth, 'B')}", round(at[0][1], 1))


def _dot(fact: TuningRecord, peaks: DevicePeaks, x_axis: Axis, y_axis: Axis) -> DotView:
    roof_s = roofline_of(fact.measurement, peaks)
    return DotView(
        x_axis.at(_intensity(fact)),
        round(HEIGHT - y_axis.at(_rate(fact)), 1),
        fact.workload,
        notation_of(fact.workload_text).title,
        _intensity(fact),
        _rate(fact),
        roof_s / fact.measurement.median_s if roof_s else None,
    )
