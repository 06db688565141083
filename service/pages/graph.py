"""The induced graph of an einsum as shapes and lines of an SVG."""

from __future__ import annotations

from dataclasses import dataclass, replace

from feinsum.drawing.graph.layout import (
    PITCH,
    Box,
    boxes,
    edge,
    layout_of,
    outline,
    padding,
    svg_path,
)
from feinsum.drawing.graph.picture import KINDS, Vertex, picture_of
from feinsum.service.pages.notation import read
from feinsum.service.text_cache import cache_by_bytes

MAX_VERTICES = 200
"""Larger graphs are not drawn: nobody could read them."""

CACHE_BYTES = 16 * 2**20

# the server knows no fonts: a monospaced one has widths that can be computed
NAME, DATA = 7.3, 5.5
"""Widths of letters, in pixels; those of a font whose letters are all as wide."""
LINE = 13.0
MARGIN = 8.0


@dataclass(frozen=True)
class VertexView:
    """A vertex on a page: its kind, label, outline as an SVG path, and position."""

    kind: str
    name: str
    data: str
    outline: str
    x: float
    y: float


@dataclass(frozen=True)
class Drawing:
    """A graph on a sheet, in pixels.

    Attributes:
        kinds: title and meaning of each kind of vertex that there is.
        edges: paths.
    """

    width: float
    height: float
    nodes: tuple[VertexView, ...]
    edges: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]


@cache_by_bytes(CACHE_BYTES)
def drawing_of(text: str) -> Drawing | None:
    """The graph of a workload; None if that is no einsum, or too large."""
    einsum = read(text)
    # a cheap bound first: the picture of a large batch takes seconds
    if einsum is None or einsum.batch_size * einsum.n_operands > MAX_VERTICES:
        return None
    picture = picture_of(einsum)
    if len(picture.vertices) > MAX_VERTICES:
        return None
    layout = layout_of(picture)
    shapes = {v: _shifted(box) for v, box in boxes(picture, layout, _size).items()}
    nodes = tuple(_node(vertex, shapes[v]) for v, vertex in enumerate(picture.vertices))
    drawn = [shapes[v] for v in range(len(nodes))]
    return Drawing(
        width=round(max(box.x + box.width / 2 for box in drawn) + MARGIN),
        height=round(max(box.y for box in shapes.values()) + PITCH / 2 + MARGIN),
        nodes=nodes,
        edges=tuple(
            svg_path(edge([shapes[v] for v in route])) for route in layout.routes
        ),
        kinds=tuple(
            (name, kind.legend) for name, kind in KINDS.items() if picture.of_kind(name)
        ),
    )


def _size(vertex: Vertex) -> tuple[float, float]:
    width = max(len(vertex.name) * NAME, len(vertex.data) * DATA)
    n_lines = bool(vertex.name) + bool(vertex.data)
    return padding(KINDS[vertex.kind].shape, width, n_lines * LINE)


def _shifted(box: Box) -> Box:
    """Below the margin, with room for the upper half of a vertex at height 0."""
    return replace(box, x=box.x + MARGIN, y=box.y + PITCH / 2 + MARGIN)


def _node(vertex: Vertex, box: Box) -> VertexView:
    path = svg_path(outline(KINDS[vertex.kind].shape, box))
    return VertexView(
        vertex.kind, vertex.name, vertex.data, path, round(box.x, 1), round(box.y, 1)
    )
