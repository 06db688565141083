"""Bars with a number at each: times of several contenders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feinsum.drawing.plots import build_figure

OURS, OTHERS, INK = "#0f8b6d", "#9aa5b1", "#444444"


@dataclass(frozen=True)
class Length:
    """A bar.

    Attributes:
        low, high: the ends of the whisker, around the value.
        is_ours: whether it is highlighted.
    """

    name: str
    value: float
    low: float
    high: float
    is_ours: bool = False


def draw_lengths(
    title: str, unit: str, lengths: Sequence[Length], path: str | Path
) -> None:
    """Draw bars, the first at the top, into a file, which is overwritten.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    figure = build_figure(7, 1.2 + 0.4 * len(lengths))
    axes = figure.subplots()
    bars = axes.barh(
        [bar.name for bar in lengths],
        [bar.value for bar in lengths],
        xerr=[
            [bar.value - bar.low for bar in lengths],
            [bar.high - bar.value for bar in lengths],
        ],
        color=[OURS if bar.is_ours else OTHERS for bar in lengths],
        ecolor=INK,
    )
    axes.bar_label(bars, [f"{bar.value:.3g}" for bar in lengths], padding=4, size=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.set_title(title, size=10, parse_math=False, wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
