"""The induced graph of an einsum as shapes and lines of an SVG."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from feinsum.drawing.boxes import PITCH, Box, boxes
from feinsum.drawing.kinds import KINDS
from feinsum.drawing.layout import layout_of
from feinsum.drawing.picture import Vertex, picture_of
from feinsum.drawing.shapes import POLYGONS, padding
from feinsum.service.pages.notation import read

__all__ = ["MOST_VERTICES", "Drawing", "Node", "drawing_of"]

MOST_VERTICES = 200
"""Larger graphs are not drawn: nobody could read them."""

NAME, DATA = 7.3, 5.5
"""Widths of letters, in pixels; those of a font whose letters are all as wide."""
LINE = 13.0
MARGIN = 8.0
INSET = 5.0
"""How far an edge goes below the vertices at its ends."""


@dataclass(frozen=True)
class Node:
    """A vertex: its kind, its words, its outline as a path, and where it is."""

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
    nodes: tuple[Node, ...]
    edges: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]


@lru_cache(512)
def drawing_of(text: str) -> Drawing | None:
    """The graph of a workload; None if that is no einsum, or too large."""
    einsum = read(text)
    if einsum is None or einsum.batch_size * einsum.n_operands > MOST_VERTICES:
        return None
    picture = picture_of(einsum)
    if len(picture.vertices) > MOST_VERTICES:
        return None
    layout = layout_of(picture)
    places = boxes(picture, layout, _size)
    nodes = tuple(_node(vertex, places[v]) for v, vertex in enumerate(picture.vertices))
    drawn = [places[v] for v in range(len(nodes))]
    return Drawing(
        width=round(max(box.x + box.width / 2 for box in drawn) + 2 * MARGIN),
        height=round(max(box.y for box in places.values()) + PITCH + 2 * MARGIN),
        nodes=nodes,
        edges=tuple(_edge([places[v] for v in route]) for route in layout.routes),
        kinds=tuple(
            (name, kind.legend) for name, kind in KINDS.items() if picture.of_kind(name)
        ),
    )


def _size(vertex: Vertex) -> tuple[float, float]:
    width = max(len(vertex.name) * NAME, len(vertex.data) * DATA)
    n_lines = bool(vertex.name) + bool(vertex.data)
    return padding(KINDS[vertex.kind].shape, width, n_lines * LINE)


def _shift(box: Box) -> tuple[float, float]:
    return box.x + MARGIN, box.y + PITCH / 2 + MARGIN


def _node(vertex: Vertex, box: Box) -> Node:
    x, y = _shift(box)
    path = _outline(KINDS[vertex.kind].shape, x, y, box.width / 2, box.height / 2)
    return Node(vertex.kind, vertex.name, vertex.data, path, round(x, 1), round(y, 1))


def _outline(shape: str, x: float, y: float, w: float, h: float) -> str:
    """The path of a shape with half of its width and of its height."""
    if shape in ("circle", "ellipse"):
        arc = f"a{w:.1f},{h:.1f} 0 1 0"
        return f"M{x - w:.1f},{y:.1f}{arc} {2 * w:.1f},0{arc} {-2 * w:.1f},0z"
    if shape == "rounded":
        r = min(6.0, w, h)
        return (
            f"M{x - w + r:.1f},{y - h:.1f}h{2 * (w - r):.1f}q{r},0 {r},{r}"
            f"v{2 * (h - r):.1f}q0,{r} {-r},{r}h{-2 * (w - r):.1f}"
            f"q{-r},0 {-r},{-r}v{-2 * (h - r):.1f}q0,{-r} {r},{-r}z"
        )
    corners = (f"{x + w * cx:.1f},{y + h * cy:.1f}" for cx, cy in POLYGONS[shape])
    return f"M{'L'.join(corners)}z"


def _edge(route: list[Box]) -> str:
    """From side to side, level at both ends and across every waypoint."""
    first, last = route[0], route[-1]
    if first.x == last.x:
        (x, y), (_, end) = _shift(first), _shift(last)
        return f"M{x:.1f},{y:.1f}V{end:.1f}"
    x, y = _shift(first)
    x += first.width / 2 - INSET
    path = [f"M{x:.1f},{y:.1f}"]
    for box in route[1:]:
        middle_x, next_y = _shift(box)
        end = middle_x - box.width / 2 + INSET
        half = (x + end) / 2
        path.append(
            f"C{half:.1f},{y:.1f} {half:.1f},{next_y:.1f} {end:.1f},{next_y:.1f}"
        )
        x, y = middle_x + box.width / 2 - INSET, next_y
        if box is not last:
            path.append(f"H{x:.1f}")
    return "".join(path)
