"""The roofline of a device, with the best recipe of each workload under it.

::

    op/s |        _________ peak of float32
         |      /
         |    /____________ peak of float64
         |  / .
         |/  .    .                         both axes are logarithmic
         +-----------------  op/byte

Source: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from feinsum.bounds import find_roofline_s
from feinsum.drawing import list_roofs
from feinsum.records import Device, DevicePeaks, TuningRecord
from feinsum.service.pages.charts import Axis, make_axis
from feinsum.service.pages.words import format_rate, get_dtype_name, is_doubtful

WIDTH, HEIGHT = 860.0, 380.0


@dataclass(frozen=True)
class FactDot:
    """A workload with its fastest fact.

    Attributes:
        intensity: operations per byte.
        rate: operations per second.
        fraction: of the roofline, 1 at the limit; None if unknown.
    """

    fact: TuningRecord
    intensity: float
    rate: float
    fraction: float | None


@dataclass(frozen=True)
class Line:
    """A limit, as a path, and where its label is."""

    path: str
    label: str
    y: float


@dataclass(frozen=True)
class RooflineChart:
    """A roofline on a sheet; lines are in pixels, dots in operations.

    Attributes:
        slopes: what the caches allow, up to the highest roof.
    """

    device: Device
    x_axis: Axis
    y_axis: Axis
    dots: tuple[FactDot, ...]
    roofs: tuple[Line, ...]
    slopes: tuple[Line, ...]

    @property
    def is_doubtful(self) -> bool:
        """Whether a share of the roofline may belong to another machine."""
        return any(is_doubtful(dot.fraction, self.device) for dot in self.dots)


def make_roofline_chart(
    facts: Iterable[TuningRecord], peaks: DevicePeaks
) -> RooflineChart | None:
    """Return the chart of some facts of a device; None if there is nothing to show."""
    dots = _make_dots(facts, peaks)
    limits = {
        kind: peak for kind, peak in peaks.operations_per_s.items() if _is_sound(peak)
    }
    bandwidth = peaks.bandwidth_bytes_per_s
    # limits are sent by others: zero and infinity have no logarithm
    if not dots or not limits or not _is_sound(bandwidth):
        return None
    # the ridge points belong on the axis: left of them memory limits, right arithmetic
    intensities = [dot.intensity for dot in dots]
    intensities += [peak / bandwidth for peak in limits.values()]
    x_range = [min(intensities) / 1.5, max(intensities) * 2.5]
    x_axis = make_axis(x_range, "{:g}".format, WIDTH)
    rates = [x_axis.low * bandwidth, *(dot.rate for dot in dots)]
    y_range = [min(rates) / 1.3, max(*rates, *limits.values()) * 1.6]
    y_axis = make_axis(y_range, _format_op_rate, HEIGHT)
    lines = tuple(
        _make_line(
            f"{_format_op_rate(roof.peak)}, {get_dtype_name(roof.name)}",
            roof.corners,
            x_axis,
            y_axis,
            -1,
        )
        for roof in list_roofs(bandwidth, limits, x_axis.low, x_axis.high)
    )
    slopes = tuple(_make_slopes(peaks, max(limits.values()), x_axis, y_axis))
    return RooflineChart(peaks.device, x_axis, y_axis, dots, lines, slopes)


def _make_dots(
    facts: Iterable[TuningRecord], peaks: DevicePeaks
) -> tuple[FactDot, ...]:
    """Return the fastest fact of each workload whose work is known."""
    # one dot for each workload: slower recipes say nothing about the device
    best: dict[str, TuningRecord] = {}
    for fact in facts:
        fastest = best.setdefault(fact.workload, fact)
        if fact.measurement.speedup > fastest.measurement.speedup:
            best[fact.workload] = fact
    dots = []
    for fact in best.values():
        timing = fact.measurement
        operations = sum(timing.operations.values())
        roof_s = find_roofline_s(timing, peaks)
        dot = FactDot(
            fact,
            operations / max(1, timing.footprint_bytes),
            operations / timing.median_s,
            roof_s / timing.median_s if roof_s else None,
        )
        if _is_sound(dot.intensity) and _is_sound(dot.rate):
            dots.append(dot)
    return tuple(dots)


def _is_sound(value: float) -> bool:
    return 1e-100 < value < 1e100


def _format_op_rate(per_s: float) -> str:
    return format_rate(per_s, "op")


def _make_line(
    label: str,
    corners: Iterable[tuple[float, float]],
    x_axis: Axis,
    y_axis: Axis,
    corner: int,
) -> Line:
    """Make a line through some corners, labeled at the one with this index."""
    points = [(x_axis.at(x), HEIGHT - y_axis.at(y)) for x, y in corners]
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Line(path, label, round(points[corner][1], 1))


def _make_slopes(
    peaks: DevicePeaks, highest: float, x_axis: Axis, y_axis: Axis
) -> Iterator[Line]:
    """Yield the bandwidths of caches that are faster than the memory, to the roof."""
    for name, bandwidth in peaks.cache_bytes_per_s.items():
        ridge = highest / bandwidth if _is_sound(bandwidth) else 0.0
        # a cache that is slower than the memory was measured badly
        if bandwidth > peaks.bandwidth_bytes_per_s and ridge > x_axis.low:
            ends = (x_axis.low, x_axis.low * bandwidth), (ridge, highest)
            yield _make_line(
                f"{name}: {format_rate(bandwidth, 'B')}", ends, x_axis, y_axis, 0
            )
