"""The induced graph of an einsum as shapes and lines of an SVG.

A vertex for each array, use, axis and index, with edges between them; einsums with
equal graphs are one workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock

from cachetools import LRUCache, cached

from feinsum.drawing.graph.layout import (
    PITCH,
    Box,
    compute_shape_size,
    draw_edge,
    draw_outline,
    place_boxes,
    place_vertices,
    write_svg_path,
)
from feinsum.drawing.graph.picture import KINDS, Vertex, make_picture
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.service.pages.words import CACHE_BYTES, MAX_TEXT, estimate_bytes

MAX_VERTICES = 200
"""Larger graphs are not drawn: they would be unreadable."""

# the server knows no fonts: a monospaced one has widths that can be computed
NAME, DATA = 7.3, 5.5
"""Widths of letters in pixels, in a monospaced font."""
LINE = 13.0
MARGIN = 8.0


@dataclass(frozen=True)
class Drawing:
    """A graph on a sheet, in pixels; without vertices if it cannot be drawn.

    Attributes:
        text: of the workload; a cache counts it as the size of the key.
        nodes: vertices, with their boxes and their outlines as SVG paths.
        edges: SVG paths.
        kinds: title and meaning of each kind of vertex that there is.
    """

    text: str
    nodes: tuple[tuple[Vertex, Box, str], ...] = ()
    edges: tuple[str, ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    width: float = 0
    height: float = 0


@cached(LRUCache(CACHE_BYTES, estimate_bytes), lock=Lock())
def draw_graph(text: str) -> Drawing:
    """Draw the graph of a workload; an empty one if it has none, or is too large."""
    try:
        einsum = from_text(text[: MAX_TEXT + 1])
    except FeinsumError:
        return Drawing(text)
    # a cheap bound first: the picture of a large batch takes seconds
    is_large = einsum.batch_size * einsum.n_operands > MAX_VERTICES
    if is_large or len(text) > MAX_TEXT:
        return Drawing(text)
    picture = make_picture(einsum)
    if len(picture.vertices) > MAX_VERTICES:
        return Drawing(text)
    layout = place_vertices(picture)
    # below the margin, with room for the upper half of a vertex at height 0
    shapes = {
        v: replace(box, x=box.x + MARGIN, y=box.y + PITCH / 2 + MARGIN)
        for v, box in place_boxes(picture, layout, _compute_size).items()
    }
    nodes = tuple(
        (
            vertex,
            shapes[v],
            write_svg_path(draw_outline(KINDS[vertex.kind].shape, shapes[v])),
        )
        for v, vertex in enumerate(picture.vertices)
    )
    routes = [[shapes[v] for v in route] for route in layout.routes]
    kinds = [(name, kind.legend) for name, kind in KINDS.items()]
    return Drawing(
        text,
        nodes,
        edges=tuple(write_svg_path(draw_edge(route)) for route in routes),
        kinds=tuple(kind for kind in kinds if picture.list_kind(kind[0])),
        width=round(max(box.x + box.width / 2 for _, box, _ in nodes) + MARGIN),
        height=round(max(box.y for box in shapes.values()) + PITCH / 2 + MARGIN),
    )


def _compute_size(vertex: Vertex) -> tuple[float, float]:
    width = max(len(vertex.name) * NAME, len(vertex.data) * DATA)
    n_lines = bool(vertex.name) + bool(vertex.data)
    return compute_shape_size(KINDS[vertex.kind].shape, width, n_lines * LINE)
