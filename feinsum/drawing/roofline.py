"""The roofline of a device with workloads under it: its limits, and a PNG of it.

The service draws the same limits into its pages, as SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from constantdict import constantdict

from feinsum.drawing.plots import build_figure, can_plot
from feinsum.words import format_brief, format_count, make_inline_svg

COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
"""Colors that the color-blind can tell apart (Okabe and Ito)."""
MARKERS = "osD^vPX"
ROOF, LADDER = "#444444", "#888888"


@dataclass(frozen=True)
class Dot:
    """A workload.

    Attributes:
        group: what the legend calls it.
        intensity: operations per byte.
        rate: the rate reached, or allowed by the roofline, in Gop/s.
        is_measured: whether the rate was reached.
    """

    group: str
    intensity: float
    rate: float
    is_measured: bool


@dataclass(frozen=True)
class Roof:
    """The limit of one unit: along the bandwidth up to its ridge, then level.

    Attributes:
        corners: intensity and rate where it starts, bends and ends.
    """

    name: str
    corners: tuple[tuple[float, float], ...]

    @property
    def peak(self) -> float:
        return self.corners[-1][1]


@dataclass(frozen=True)
class LadderKernel:
    """A kernel of the ladder: median and quartiles of its rate, in Gop/s."""

    intensity: float
    rate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Chart:
    """A roofline.

    Attributes:
        bandwidth: in GB/s.
        peaks: rate in Gop/s by the name of the dtype or unit.
        caches: bandwidth in GB/s by the name of a cache.
    """

    title: str
    bandwidth: float
    peaks: Mapping[str, float]
    dots: Sequence[Dot]
    steps: Sequence[LadderKernel] = ()
    caches: Mapping[str, float] = constantdict()

    @property
    def intensities(self) -> tuple[float, float]:
        """The range to be shown: all dots, all steps and every ridge."""
        ridges = [peak / self.bandwidth for peak in self.peaks.values()]
        shown = [dot.intensity for dot in self.dots]
        shown += [step.intensity for step in self.steps] + ridges
        return min(shown) / 1.6, max(shown) * 2.5

    def __repr__(self) -> str:
        peaks = [f"{rate:.4g} Gop/s {name}" for name, rate in self.peaks.items()]
        limits = ", ".join([f"{self.bandwidth:.4g} GB/s", *peaks])
        return format_brief(
            self, f"{self.title}: {limits}; {format_count(len(self.dots), 'workload')}"
        )

    def _repr_svg_(self) -> str | None:
        """Draw the chart as SVG, where matplotlib is installed."""
        if not can_plot():
            return None
        file = BytesIO()
        _draw_figure(self).savefig(file, format="svg", metadata={"Date": None})
        return make_inline_svg(file.getvalue())


def list_roofs(
    bandwidth: float, peaks: Mapping[str, float], low: float, high: float
) -> list[Roof]:
    """Return the limits between two intensities, the highest first.

    Args:
        bandwidth: bytes per second.
        peaks: operations per second, by dtype.
        low: the least intensity, in operations per byte.
        high: the greatest intensity, in operations per byte.

    >>> list_roofs(50.0, {"float64": 100.0}, 0.5, 8.0)[0].corners
    ((0.5, 25.0), (2.0, 100.0), (8.0, 100.0))

    Source: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
    """
    return [
        Roof(name, ((low, low * bandwidth), (peak / bandwidth, peak), (high, peak)))
        for name, peak in sorted(peaks.items(), key=lambda item: -item[1])
    ]


def draw_roofline(chart: Chart, path: str | Path) -> None:
    """Draw a chart into a PNG file, which is overwritten.

    Workloads without a measured rate are ticks on the roof.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.

    Source: paper, figure 3; Williams, Waterman, Patterson, *Roofline*, CACM 52(4),
    2009.
    """
    figure = _draw_figure(chart)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _draw_figure(chart: Chart) -> Any:
    figure = build_figure(9, 5)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_roofs(axes, chart)
    _draw_ladder(axes, chart.steps)
    _draw_dots(axes, chart.dots)
    axes.set_xlim(*chart.intensities)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("arithmetic intensity (operations per byte)")
    axes.set_ylabel("Gop/s")
    axes.set_title(chart.title, size=11)
    axes.grid(which="major", alpha=0.3)
    if chart.dots or chart.steps:
        figure.legend(fontsize=8, loc="outside right upper", frameon=False)
    return figure


def _draw_roofs(axes: Any, chart: Chart) -> None:
    """Draw the slope of the bandwidth, and a level line for every peak."""
    low, high = chart.intensities
    limits = list_roofs(chart.bandwidth, chart.peaks, low, high)
    for style, roof in zip(("-", "--", ":"), limits, strict=False):
        xs, rates = zip(*roof.corners, strict=True)
        axes.plot(xs, rates, ls=style, color=ROOF, lw=1.4, zorder=1)
        axes.annotate(f"{roof.peak:.3g} Gop/s, {roof.name}", (high, roof.peak), (-4, 5),
                      textcoords="offset points", ha="right", size=8,
                      color=ROOF)  # fmt: skip
    for name, bandwidth in chart.caches.items():
        _draw_slope(axes, chart, name, bandwidth)
    middle = (low * min(chart.peaks.values()) / chart.bandwidth) ** 0.5
    axes.annotate(f"{chart.bandwidth:.3g} GB/s", (middle, middle * chart.bandwidth),
                  (-6, 4), textcoords="offset points", ha="right", size=8,
                  color=ROOF)  # fmt: skip


def _draw_slope(axes: Any, chart: Chart, name: str, bandwidth: float) -> None:
    """Draw the roof of a cache: along its bandwidth, up to the peak."""
    low, _ = chart.intensities
    top = max(chart.peaks.values())
    if low * bandwidth >= top:
        return
    axes.plot((low, top / bandwidth), (low * bandwidth, top), ls="-", lw=0.8,
              color=LADDER, zorder=1)  # fmt: skip
    x = low**0.3 * (top / bandwidth) ** 0.7
    axes.annotate(f"{name} {bandwidth:.3g} GB/s", (x, x * bandwidth), (-5, 3),
                  textcoords="offset points", ha="right", size=8, color=LADDER,
                  bbox={"fc": "white", "ec": "none", "pad": 0.5})  # fmt: skip


def _draw_ladder(axes: Any, steps: Sequence[LadderKernel]) -> None:
    """Draw the measured saturation: medians as a line, quartiles as a band."""
    if not steps:
        return
    xs = [step.intensity for step in steps]
    axes.fill_between(xs, [s.lower for s in steps], [s.upper for s in steps],
                      color=LADDER, alpha=0.3, lw=0, zorder=1)  # fmt: skip
    axes.plot(xs, [s.rate for s in steps], marker=".", ms=5, lw=1, color=LADDER,
              label="triad with more multiply-adds", zorder=2)  # fmt: skip


def _draw_dots(axes: Any, dots: Sequence[Dot]) -> None:
    """Draw each group in its color: points if measured, else ticks on the roof."""
    for k, group in enumerate(dict.fromkeys(dot.group for dot in dots)):
        color, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
        group_dots = [dot for dot in dots if dot.group == group]
        measured = [dot for dot in group_dots if dot.is_measured]
        predicted = [dot for dot in group_dots if not dot.is_measured]
        name = group.replace("_", " ")
        _scatter_dots(axes, measured, name, marker=marker, ms=5, color=color)
        unknown = None if measured else f"{name}: no fact"
        _scatter_dots(axes, predicted, unknown, marker="|", ms=9, color=color)


def _scatter_dots(
    axes: Any, dots: Sequence[Dot], label: str | None, **style: Any
) -> None:
    """Draw dots in one style; without a label they are not in the legend."""
    if dots:
        xs, rates = [dot.intensity for dot in dots], [dot.rate for dot in dots]
        axes.plot(xs, rates, ls="", alpha=0.8, label=label, zorder=3, **style)
