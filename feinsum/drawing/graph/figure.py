"""The induced graph as a figure of matplotlib.

All lengths are in points. The size of the figure follows from its content.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from feinsum.drawing.graph.draw import write_dot
from feinsum.drawing.graph.layout import (
    PITCH,
    Box,
    Command,
    Curve,
    compute_shape_size,
    draw_edge,
    draw_outline,
    place_boxes,
    place_vertices,
)
from feinsum.drawing.graph.picture import KINDS, Picture, Vertex, make_picture
from feinsum.ir import BatchedEinsum, require_einsum

Weight: TypeAlias = Literal["normal", "bold"]

MARGIN = 14.0
NAME_SIZE, DATA_SIZE, LEGEND_SIZE = 10.0, 7.5, 9.0
LEGEND_PITCH = 19.0
DOTS_PER_INCH = 160.0
MOST_DOTS = 30_000
"""Longest side of a PNG; larger figures get fewer dots per inch."""
INK, EDGE = "#222222", "#777777"
CODES: dict[Command, Any] = {
    "M": Path.MOVETO, "L": Path.LINETO, "C": Path.CURVE4, "Z": Path.CLOSEPOLY,
}  # fmt: skip
LEGEND_TITLE = (
    "Kinds of vertices, and what else is part of their colors (names are not)"
)
FONT = "DejaVu Sans"
"""The font, which comes with matplotlib."""
NO_GLYPH = "\N{WHITE SQUARE}"
STYLE: dict[str, object] = {
    "font.family": FONT,
    "svg.hashsalt": "feinsum",
    "svg.fonttype": "path",
    "text.parse_math": False,
}


def render(einsum: BatchedEinsum, format: str) -> bytes:
    """Render a figure to the bytes of a file, in a format of matplotlib.

    The description in an SVG is the DOT text of the same graph.
    """
    # the user's style must not change a picture that tests compare byte for byte
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = _build_figure(make_picture(require_einsum(einsum)))
        file = io.BytesIO()
        longest = max(figure.get_size_inches())
        figure.savefig(
            file,
            format=format,
            dpi=min(DOTS_PER_INCH, MOST_DOTS / longest),
            metadata=_make_metadata(einsum, format),
        )
    return file.getvalue()


def _make_metadata(einsum: BatchedEinsum, format: str) -> dict[str, str | None]:
    """Return the metadata: the einsum as title, but no date and no version."""
    title = str(einsum)
    match format:
        case "svg":
            description = write_dot(einsum)
            return {"Title": title, "Description": description, "Date": None}
        case "pdf":
            return {"Title": title, "CreationDate": None}
        case _:
            return {"Title": title, "Software": None}


def compute_size(vertex: Vertex) -> tuple[float, float]:
    """Compute the size in points of a vertex's outline around its text."""
    width = max(
        _measure_text_width(vertex.name, NAME_SIZE, "bold"),
        _measure_text_width(vertex.data, DATA_SIZE),
    )
    sizes = NAME_SIZE * bool(vertex.name) + DATA_SIZE * bool(vertex.data)
    return compute_shape_size(KINDS[vertex.kind].shape, width, 1.25 * sizes)


@cache
def _measure_text_width(text: str, size: float, weight: Weight = "normal") -> float:
    if not text:
        return 0.0
    font = FontProperties(family=FONT, weight=weight)
    # measured without a canvas, which would need a resolution
    path = TextPath(
        (0, 0), _replace_undrawable(text), size=size, prop=font, usetex=False
    )
    return float(path.get_extents().width)


@cache
def _list_glyphs() -> frozenset[int]:
    """Return the characters that the font has."""
    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def _replace_undrawable(text: str) -> str:
    """Replace characters without a glyph, about which matplotlib would warn."""
    return "".join(c if ord(c) in _list_glyphs() else NO_GLYPH for c in text)


def _build_figure(picture: Picture) -> Figure:
    layout = place_vertices(picture)
    node_boxes = place_boxes(picture, layout, compute_size)
    kinds = [name for name in KINDS if picture.list_kind(name)]
    graph_width = max(box.x + box.width / 2 for box in node_boxes.values())
    width = max(graph_width, _compute_legend_width(kinds))
    graph_height = max(box.y for box in node_boxes.values()) + PITCH
    height = graph_height + LEGEND_PITCH * (len(kinds) + 0.5)
    figure, axes = _build_sheet(width, height)
    shift = (width - graph_width) / 2
    node_boxes = {v: replace(box, x=box.x + shift) for v, box in node_boxes.items()}
    for route in layout.routes:
        path = _make_path(draw_edge([node_boxes[v] for v in route]))
        axes.add_patch(PathPatch(path, fill=False, edgecolor=EDGE, zorder=1))
    for v, vertex in enumerate(picture.vertices):
        _draw_vertex(axes, vertex, node_boxes[v])
    _draw_legend(axes, kinds, graph_height)
    return figure


def _build_sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """Build an empty figure whose coordinates are points, downwards, with a margin.

    The upper end leaves room for the upper half of a vertex at height 0.
    """
    top = -PITCH / 2
    # matplotlib's sizes are inches of 72 points
    figure = Figure(
        figsize=((width + 2 * MARGIN) / 72, (height - top + 2 * MARGIN) / 72)
    )
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-MARGIN, width + MARGIN)
    # the axis is inverted: heights of the layout grow downwards
    axes.set_ylim(height + MARGIN, top - MARGIN)
    return figure, axes


def _make_path(curve: Curve) -> Path:
    points = [point for _, vertices in curve for point in vertices or [(0.0, 0.0)]]
    codes = [CODES[command] for command, vertices in curve for _ in vertices or [()]]
    return Path(points, codes)


def _draw_vertex(axes: Axes, vertex: Vertex, box: Box) -> None:
    _draw_shape(axes, vertex.kind, box)
    is_pair = bool(vertex.name and vertex.data)
    offset = 0.32 * (NAME_SIZE + DATA_SIZE) if is_pair else 0.0
    if vertex.name:
        y = box.y - offset * DATA_SIZE / NAME_SIZE
        _write(axes, box.x, y, vertex.name, NAME_SIZE, weight="bold")
    if vertex.data:
        _write(axes, box.x, box.y + offset, vertex.data, DATA_SIZE)


def _draw_shape(axes: Axes, name: str, box: Box) -> None:
    kind = KINDS[name]
    path = _make_path(draw_outline(kind.shape, box))
    axes.add_patch(
        PathPatch(path, facecolor=kind.fill, edgecolor=INK, linewidth=0.9, zorder=2)
    )


def _write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    weight: Weight = "normal",
    ha: Literal["left", "center"] = "center",
) -> None:
    words = axes.text(
        x,
        y,
        _replace_undrawable(text),
        ha=ha,
        va="center_baseline",
        color=INK,
        zorder=3,
    )
    words.set_fontsize(size)
    words.set_fontweight(weight)


def _compute_legend_width(kinds: Iterable[str]) -> float:
    texts = [LEGEND_TITLE, *(KINDS[name].legend for name in kinds)]
    return 40 + max(_measure_text_width(text, LEGEND_SIZE) for text in texts)


def _draw_legend(axes: Axes, kinds: Iterable[str], top: float) -> None:
    _write(axes, 0, top, LEGEND_TITLE, LEGEND_SIZE, ha="left")
    for k, name in enumerate(kinds, start=1):
        y = top + k * LEGEND_PITCH
        _draw_shape(axes, name, Box(14, y, 13 if name == "axis" else 26, 13))
        _write(axes, 36, y, KINDS[name].legend, LEGEND_SIZE, ha="left")
