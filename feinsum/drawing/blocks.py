"""Pictures of blocks: which of many processes has which part of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feinsum.drawing.plots import new_figure

__all__ = ["Block", "Panel", "Row", "draw_blocks"]

COLUMNS_INCH, ROW_INCH = 2.3, 2.5


@dataclass(frozen=True)
class Block:
    """A rectangle in the unit square, from left and top, with what is written there.

    Attributes:
        number: of the color; equal numbers have one color.
    """

    left: float
    top: float
    width: float
    height: float
    number: int
    text: str


@dataclass(frozen=True)
class Panel:
    """A tensor: blocks, and what runs down and to the right."""

    title: str
    blocks: tuple[Block, ...]
    down: str = ""
    right: str = ""


@dataclass(frozen=True)
class Row:
    """One step of a computation: a panel for each tensor."""

    title: str
    panels: tuple[Panel, ...]


def draw_blocks(rows: Sequence[Row], path: str | Path) -> None:
    """Draw steps below each other into a PNG, SVG or PDF file, which is overwritten.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    n_columns = max(len(row.panels) for row in rows)
    size = (COLUMNS_INCH * n_columns, ROW_INCH * len(rows))
    figure = new_figure(*size)
    parts = figure.subfigures(len(rows), 1, squeeze=False)
    for part, row in zip(parts[:, 0], rows, strict=True):
        part.suptitle(row.title, fontsize=9)
        axes = part.subplots(1, n_columns, squeeze=False)[0]
        for one in axes[len(row.panels) :]:
            one.set_axis_off()
        for one, panel in zip(axes, row.panels, strict=False):
            _draw(one, panel)
    metadata: dict[str, Any] = {"Date": None} if str(path).endswith(".svg") else {}
    figure.savefig(path, dpi=130, metadata=metadata)


def _draw(axes: Any, panel: Panel) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colors = colormaps["tab20"].colors  # type: ignore[attr-defined]  # a list of them
    for block in panel.blocks:
        place = (block.left, block.top)
        color = colors[(2 * block.number + 1 + block.number // 10) % len(colors)]
        axes.add_patch(
            Rectangle(place, block.width, block.height, fc=color, ec="white", lw=1.2)
        )
        axes.text(
            block.left + block.width / 2,
            block.top + block.height / 2,
            block.text,
            ha="center",
            va="center",
            fontsize=7 if len(block.text) < 8 else 5,
        )
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
    axes.set_title(panel.title, fontsize=8)
    axes.set_xlabel(panel.right, fontsize=8)
    axes.set_ylabel(panel.down, fontsize=8)
