"""matplotlib, which only pictures need; and bars with a number at each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from feinsum.extras import requiring


def new_figure(width: float, height: float) -> Any:
    """An empty figure of matplotlib, in inches.

    Raises:
        FeinsumError: if matplotlib is not installed.
    """
    with requiring("matplotlib", "plots", "a picture"):
        from feinsum.drawing.notebook import NotebookFigure
    return NotebookFigure(figsize=(width, height), layout="constrained")


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_plots(what: str) -> None:
    """Refuse what needs matplotlib if that is not installed.

    Raises:
        FeinsumError: naming ``what``, and how to install it.
    """
    with requiring("matplotlib", "plots", what):
        import matplotlib  # noqa: F401  (only whether it is there)


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
    figure = new_figure(7, 1.2 + 0.4 * len(lengths))
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
