"""Outlines of vertices and ways of edges, as curves that every format can draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from feinsum.drawing.graph.layout import Box

__all__ = ["Command", "Curve", "edge", "outline", "padding", "svg_path"]

Point: TypeAlias = tuple[float, float]
Command: TypeAlias = Literal["M", "L", "C", "Z"]
"""As in SVG: move, line, cubic curve with two points that steer it, close."""
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
"""Where cubic curves are steered to, from an end to the corner, to be nearly an arc."""
INSET = 5.0
"""How far an edge goes below the vertices at its ends."""


def padding(shape: str, width: float, height: float) -> tuple[float, float]:
    """The size of a shape around a text of that size."""
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


def outline(shape: str, box: Box) -> Curve:
    """The outline of a vertex; ``shape`` is DOT's word for it."""
    w, h = box.width / 2, box.height / 2
    if shape in ("circle", "ellipse"):
        return _round_box(box, w, h)
    if shape == "rounded":
        radius = min(RADIUS, w, h)
        return _round_box(box, radius, radius)
    first, *others = ((box.x + w * x, box.y + h * y) for x, y in POLYGONS[shape])
    return [("M", (first,)), *(("L", (point,)) for point in others), ("Z", ())]


def _round_box(box: Box, rx: float, ry: float) -> Curve:
    """A box whose corners are quarters of an ellipse with these radii."""
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
        steered = _between(start, corner, ROUND), _between(end, corner, ROUND)
        curve += [("L" if k else "M", (start,)), ("C", (*steered, end))]
    return [*curve, ("Z", ())]


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])


def edge(route: Sequence[Box]) -> Curve:
    """From side to side, level at both ends and across every waypoint.

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
        curve.append(("C", ((middle, y), (middle, box.y), (end, box.y))))
        x, y = box.x + box.width / 2 - INSET, box.y
        if box is not last:
            curve.append(("L", ((x, y),)))
    return curve


def svg_path(curve: Curve) -> str:
    """A curve as the path of an SVG.

    >>> svg_path([("M", ((0, 1),)), ("L", ((2.25, 3),)), ("Z", ())])
    'M0.0,1.0L2.2,3.0Z'
    """
    return "".join(
        command + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        for command, points in curve
    )
