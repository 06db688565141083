"""Pictures of statement graphs: data flow, partitions, and blocks of tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feinsum.drawing.plots import build_figure

WIDTH_INCH, HEIGHT_INCH = 2.6, 1.3


@dataclass(frozen=True)
class Node:
    """An array or a statement.

    Attributes:
        layer: from the top; arrows go down.
        cells: for each machine axis, what it partitions; each axis has a color.
    """

    name: str
    layer: int
    text: str
    cells: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arrow:
    """An edge from the producer of an array to its reader; bold if elements move."""

    source: str
    target: str
    text: str = ""


def draw_flow(
    title: str, nodes: Sequence[Node], arrows: Sequence[Arrow], path: str | Path
) -> None:
    """Draw a graph into a PNG, SVG or PDF file, which is overwritten.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    positions = place_nodes(nodes)
    n_columns = max(x for x, _ in positions.values()) + 1
    n_layers = max(node.layer for node in nodes) + 1
    size = (WIDTH_INCH * n_columns, HEIGHT_INCH * n_layers + 0.4)
    figure = build_figure(*size)
    axes = figure.subplots()
    for arrow in arrows:
        _draw_arrow(axes, arrow, positions)
    for node in nodes:
        _draw_node(axes, node, positions[node.name])
    axes.set(xlim=(-0.6, n_columns - 0.4), ylim=(n_layers - 0.5, -0.5))
    axes.set_axis_off()
    axes.set_title(title, fontsize=9)
    metadata: dict[str, Any] = {"Date": None} if str(path).endswith(".svg") else {}
    figure.savefig(path, dpi=130, metadata=metadata)


def place_nodes(nodes: Sequence[Node]) -> dict[str, tuple[float, int]]:
    """Return the column and layer of each node, layer by layer; layers are centered."""
    layers: dict[int, list[str]] = defaultdict(list)
    for node in nodes:
        layers[node.layer].append(node.name)
    most = max(map(len, layers.values()))
    return {
        name: (k + (most - len(names)) / 2, layer)
        for layer, names in layers.items()
        for k, name in enumerate(names)
    }


def _draw_arrow(
    axes: Any, arrow: Arrow, positions: dict[str, tuple[float, int]]
) -> None:
    (x, y), (to_x, to_y) = positions[arrow.source], positions[arrow.target]
    style = (
        {"lw": 2.0, "color": "black"} if arrow.text else {"lw": 0.8, "color": "gray"}
    )
    axes.annotate(
        "",
        (to_x, to_y - 0.28),
        (x, y + 0.28),
        arrowprops={"arrowstyle": "->", **style},
    )
    if arrow.text:
        middle = ((x + to_x) / 2, (y + to_y) / 2)
        axes.text(*middle, arrow.text, fontsize=6, ha="center", backgroundcolor="white")


def _draw_node(axes: Any, node: Node, position: tuple[float, int]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colors = colormaps["Set2"].colors  # type: ignore[attr-defined]  # a list of them
    x, y = position
    axes.add_patch(
        Rectangle((x - 0.45, y - 0.26), 0.9, 0.52, fc="white", ec="black", lw=0.8)
    )
    axes.text(x, y - 0.1, node.text, ha="center", va="center", fontsize=7)
    for k, text in enumerate(node.cells):
        width = 0.9 / len(node.cells)
        left = x - 0.45 + k * width
        axes.add_patch(
            Rectangle(
                (left, y + 0.02), width, 0.24, fc=colors[k % 8], ec="black", lw=0.4
            )
        )
        axes.text(
            left + width / 2, y + 0.14, text, ha="center", va="center", fontsize=6
        )


COLUMNS_INCH, ROW_INCH = 2.3, 2.5


@dataclass(frozen=True)
class FlowBox:
    """A rectangle in the unit square, measured from the left and the top, with a text.

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
    """A tensor: its blocks, and the labels of the vertical and horizontal axes."""

    title: str
    blocks: tuple[FlowBox, ...]
    down: str = ""
    right: str = ""


@dataclass(frozen=True)
class StepRow:
    """One step of a computation: a panel for each tensor."""

    title: str
    panels: tuple[Panel, ...]


def draw_blocks(rows: Sequence[StepRow], path: str | Path) -> None:
    """Draw steps below each other into a PNG, SVG or PDF file, which is overwritten.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    n_columns = max(len(row.panels) for row in rows)
    size = (COLUMNS_INCH * n_columns, ROW_INCH * len(rows))
    figure = build_figure(*size)
    row_figures = figure.subfigures(len(rows), 1, squeeze=False)
    for row_figure, row in zip(row_figures[:, 0], rows, strict=True):
        row_figure.suptitle(row.title, fontsize=9)
        axes = row_figure.subplots(1, n_columns, squeeze=False)[0]
        for panel_axes in axes[len(row.panels) :]:
            panel_axes.set_axis_off()
        for panel_axes, panel in zip(axes, row.panels, strict=False):
            _draw(panel_axes, panel)
    metadata: dict[str, Any] = {"Date": None} if str(path).endswith(".svg") else {}
    figure.savefig(path, dpi=130, metadata=metadata)


def _draw(axes: Any, panel: Panel) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colors = colormaps["tab20"].colors  # type: ignore[attr-defined]  # a list of them
    for block in panel.blocks:
        corner = (block.left, block.top)
        color = colors[(2 * block.number + 1 + block.number // 10) % len(colors)]
        axes.add_patch(
            Rectangle(corner, block.width, block.height, fc=color, ec="white", lw=1.2)
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
