"""Layouts of graphs: vertices in layers by kind, ordered for few crossings.

Outlines of vertices and ways of edges are curves that every format can draw.

The unit of a layout is one vertex; boxes have positions on a sheet, in any unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Literal, TypeAlias

from feinsum.drawing.graph.picture import KINDS, Picture, Vertex

if TYPE_CHECKING:
    import networkx as nx

PITCH = 40.0
"""Distance of vertices that are 1 apart."""

N_SWEEPS = 24

TERM_GAP, WAYPOINT = 0.5, 0.5
"""Space between terms, and for an edge that passes a layer; a vertex needs 1."""

GRID = 4
"""Heights are whole multiples of ``1 / GRID``, so that lines are level or not."""


@dataclass(frozen=True)
class GraphLayout:
    """Positions of vertices and routes of edges.

    An edge between layers that are not neighbours has a waypoint in each layer
    between; waypoints are numbered after the vertices.

    Attributes:
        layers: the vertices and waypoints of each layer, from the left.
        heights: the depth of each, downwards; vertices of a layer are 1 apart.
        routes: for every edge, its vertices and waypoints from left to right.
    """

    layers: tuple[tuple[int, ...], ...]
    heights: dict[int, float]
    routes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Box:
    """The position of a vertex: its center, and the size of its outline."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class VertexColumn:
    """Vertices below each other, 1 apart, in a space of a given height."""

    vertices: tuple[int, ...]
    room: float

    @property
    def offset(self) -> float:
        """The distance from the upper end of the space to the first vertex."""
        return (self.room - len(self.vertices) + 1) / 2


Stack = list[VertexColumn]


def list_layers(picture: Picture) -> list[list[int]]:
    """Return the vertices of each nonempty layer, from the left."""
    layers: dict[int, list[int]] = {}
    for v, vertex in enumerate(picture.vertices):
        layers.setdefault(KINDS[vertex.kind].layer, []).append(v)
    return [layers[layer] for layer in sorted(layers)]


def place_vertices(picture: Picture) -> GraphLayout:
    """Compute a layout with short edges, the same in every process.

    Sweeps from left to right and back move every layer to the mean heights of its
    neighbours; the best sweep is taken.
    """
    # imported here, as most processes that import this module draw nothing
    import networkx as nx

    layers = list_layers(picture)
    # edges across a layer get a vertex there, so that they do not run through others
    routes = _route_edges(picture, layers)
    ways = nx.Graph()
    for route in routes:
        nx.add_path(ways, route)
    ways.add_nodes_from(range(len(picture.vertices)))
    stacks = [_make_stack(picture, layer) for layer in layers]
    heights = _find_best_heights(stacks, ways)
    return GraphLayout(tuple(map(tuple, layers)), heights, tuple(routes))


def place_boxes(
    picture: Picture,
    layout: GraphLayout,
    size_of: Callable[[Vertex], tuple[float, float]],
) -> dict[int, Box]:
    """Place every vertex and waypoint in a box, without overlaps.

    A waypoint is as wide as its layer. Heights are measured downwards.

    Args:
        picture: the graph.
        layout: the layers and heights of its vertices and waypoints.
        size_of: returns the width and height of the outline of a vertex.
    """
    # steep edges need room: the gap grows with the height, up to a page's width
    gap = min(40 + 4 * max(layout.heights.values()), 160)
    offsets, layer_left = {}, 0.0
    for layer in layout.layers:
        sizes = {
            v: size_of(picture.vertices[v]) for v in layer if v < len(picture.vertices)
        }
        width = max(w for w, _ in sizes.values())
        for v in layer:
            w, h = sizes.get(v, (width, 0.0))
            offsets[v] = Box(layer_left + width / 2, layout.heights[v] * PITCH, w, h)
        layer_left += width + gap
    return offsets


def _route_edges(picture: Picture, layers: list[list[int]]) -> list[tuple[int, ...]]:
    """Route every edge; add its waypoints to the layers."""
    layer_of = {v: k for k, layer in enumerate(layers) for v in layer}
    n = len(picture.vertices)
    routes = []
    for edge in picture.edges:
        # from left to right; vertices of one layer by number, the same in each process
        start, end = sorted(edge, key=lambda v: (layer_of[v], v))
        between = layers[layer_of[start] + 1 : layer_of[end]]
        for layer in between:
            layer.append(n)
            n += 1
        routes.append((start, *range(n - len(between), n), end))
    return routes


def _make_stack(picture: Picture, layer: list[int]) -> Stack:
    """Group a layer into blocks: the axes of each term are one block."""
    import networkx as nx

    axes = picture.list_kind("axis").intersection(layer)
    chains = nx.Graph(edge for edge in picture.edges if axes.issuperset(edge))
    chains.add_nodes_from(axes)
    terms = nx.connected_components(chains)
    blocks = [VertexColumn(tuple(sorted(t)), len(t) + TERM_GAP) for t in terms]
    n = len(picture.vertices)
    blocks += (
        VertexColumn((v,), 1 if v < n else WAYPOINT) for v in layer if v not in axes
    )
    return sorted(blocks, key=lambda block: block.vertices)


def _find_best_heights(stacks: Sequence[Stack], ways: nx.Graph) -> dict[int, float]:
    heights: dict[int, float] = {}
    for stack in stacks:
        _stack_positions(stack, [0.0] * len(stack), heights)
    # sweeps oscillate where preferred heights conflict: take the shortest layout
    trials = [_round_to_grid(heights)]
    for sweep in range(N_SWEEPS):
        for stack in stacks[:: -1 if sweep % 2 else 1]:
            _move(stack, ways, heights)
        trials.append(_round_to_grid(heights))
    return min(trials, key=lambda trial: _compute_length(trial, ways.edges))


def _move(stack: Stack, ways: nx.Graph, heights: dict[int, float]) -> None:
    """Move every block of a layer to the height of its neighbours in other layers."""

    def wish(block: VertexColumn) -> float:
        """Return the preferred height of the first vertex of a block."""
        wishes = [
            heights[u] - number
            for number, v in enumerate(block.vertices)
            for u in ways.neighbors(v)
            if u not in block.vertices
        ]
        first = heights[block.vertices[0]]
        mean = sum(wishes) / len(wishes) if wishes else first
        # rounded, since sums differ in the last digit with the order of neighbours
        return round(mean - block.offset, 6)

    wishes = {block: wish(block) for block in stack}
    stack.sort(key=lambda b: (round(wishes[b] + b.room / 2, 6), b.vertices))
    _stack_positions(stack, [wishes[block] for block in stack], heights)


def _stack_positions(
    stack: Stack, wishes: Sequence[float], heights: dict[int, float]
) -> None:
    """Place the blocks in this order, as near to the preferred heights as possible."""
    starts = [0.0]
    for block in stack[:-1]:
        starts.append(starts[-1] + block.room)
    shifts = _find_nearest_rising([w - s for w, s in zip(wishes, starts, strict=True)])
    for block, start, shift in zip(stack, starts, shifts, strict=True):
        for k, v in enumerate(block.vertices):
            heights[v] = start + shift + block.offset + k


def _find_nearest_rising(values: Sequence[float]) -> list[float]:
    """Find the rising sequence that is nearest in the sum of squares.

    >>> _find_nearest_rising([1.0, 4.0, 2.0, 5.0])
    [1.0, 3.0, 3.0, 5.0]
    """
    # pool adjacent violators: neighbours out of order share their mean
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, n = value, 1
        while pools and pools[-1][0] > mean:
            last, m = pools.pop()
            mean, n = (last * m + mean * n) / (m + n), m + n
        pools.append((mean, n))
    return [mean for mean, n in pools for _ in range(n)]


def _round_to_grid(heights: dict[int, float]) -> dict[int, float]:
    """Round heights to the grid, from 0 on; heights that are 1 apart stay so."""
    steps = {v: floor(GRID * round(y, 6) + 0.5) for v, y in heights.items()}
    top = min(steps.values())
    return {v: (step - top) / GRID for v, step in steps.items()}


def _compute_length(
    heights: dict[int, float], edges: Iterable[tuple[int, int]]
) -> float:
    return sum(abs(heights[u] - heights[v]) for u, v in edges)


Point: TypeAlias = tuple[float, float]

Command: TypeAlias = Literal["M", "L", "C", "Z"]
"""Commands as in SVG: move, line, cubic curve with two control points, close."""

Curve: TypeAlias = Sequence[tuple[Command, tuple[Point, ...]]]

POLYGONS: dict[str, Sequence[Point]] = {
    "box": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "diamond": [(-1, 0), (0, -1), (1, 0), (0, 1)],
    "hexagon": [(-1, 0), (-0.75, -1), (0.75, -1), (1, 0), (0.75, 1), (-0.75, 1)],
    "parallelogram": [(-1, 1), (-0.7, -1), (1, -1), (0.7, 1)],
}
"""Corners in a square from -1 to 1."""

RADIUS = 6.0
"""Radius of rounded corners, where a box has room for them."""

ROUND = 0.5523
"""Position of control points, from an end to the corner, for a cubic near an arc."""

INSET = 5.0
"""How far an edge extends below the vertices at its ends."""


def compute_shape_size(shape: str, width: float, height: float) -> tuple[float, float]:
    """Compute the size of a shape around a text of the given size."""
    match shape:
        case "circle":
            side = max(width, height) + 10
            return side, side
        case "diamond":
            return width + 20, height + 16
        case "ellipse":
            return 1.25 * width + 12, height + 8
        case "hexagon" | "parallelogram":
            return 1.2 * width + 16, height + 8
        case _:
            return width + 14, height + 7


def draw_outline(shape: str, box: Box) -> Curve:
    """Draw the outline of a vertex; ``shape`` is DOT's word for it."""
    w, h = box.width / 2, box.height / 2
    if shape in ("circle", "ellipse"):
        return _round_box(box, w, h)
    if shape == "rounded":
        radius = min(RADIUS, w, h)
        return _round_box(box, radius, radius)
    first, *corners = ((box.x + w * x, box.y + h * y) for x, y in POLYGONS[shape])
    return [("M", (first,)), *(("L", (point,)) for point in corners), ("Z", ())]


def _round_box(box: Box, rx: float, ry: float) -> Curve:
    """Draw a box whose corners are quarters of an ellipse with these radii."""
    w, h = box.width / 2, box.height / 2
    steps = [(rx, 0.0), (0.0, ry), (-rx, 0.0), (0.0, -ry)]
    curve: list[tuple[Command, tuple[Point, ...]]] = []
    for k, (sx, sy) in enumerate([(-1, -1), (1, -1), (1, 1), (-1, 1)]):
        corner = box.x + sx * w, box.y + sy * h
        (inx, iny), (outx, outy) = steps[k - 1], steps[k]
        start, end = (
            (corner[0] - inx, corner[1] - iny),
            (
                corner[0] + outx,
                corner[1] + outy,
            ),
        )
        steered = _interpolate(start, corner, ROUND), _interpolate(end, corner, ROUND)
        curve += [("L" if k else "M", (start,)), ("C", (*steered, end))]
    return [*curve, ("Z", ())]


def _interpolate(start: Point, end: Point, share: float) -> Point:
    return start[0] + share * (end[0] - start[0]), start[1] + share * (
        end[1] - start[1]
    )


def draw_edge(route: Sequence[Box]) -> Curve:
    """Draw an edge from side to side, level at both ends and across every waypoint.

    Vertices below each other are joined by a line.
    """
    first, last = route[0], route[-1]
    if first.x == last.x:
        return [("M", ((first.x, first.y),)), ("L", ((last.x, last.y),))]
    x, y = first.x + first.width / 2 - INSET, first.y
    curve: list[tuple[Command, tuple[Point, ...]]] = [("M", ((x, y),))]
    for box in route[1:]:
        end = box.x - box.width / 2 + INSET
        middle = (x + end) / 2
        # both ends level: the control points are halfway, at the heights of the ends
        curve.append(("C", ((middle, y), (middle, box.y), (end, box.y))))
        x, y = box.x + box.width / 2 - INSET, box.y
        if box is not last:
            curve.append(("L", ((x, y),)))
    return curve


def write_svg_path(curve: Curve) -> str:
    """Write a curve as the path of an SVG.

    >>> write_svg_path([("M", ((0, 1),)), ("L", ((2.25, 3),)), ("Z", ())])
    'M0.0,1.0L2.2,3.0Z'
    """
    return "".join(
        command + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        for command, points in curve
    )
