"""Places of vertices on a sheet, in points or any other unit of length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feinsum.drawing.layout import Layout
from feinsum.drawing.picture import Picture, Vertex

__all__ = ["PITCH", "Box", "boxes"]

PITCH = 40.0
"""Distance of vertices that are 1 apart."""


@dataclass(frozen=True)
class Box:
    """The place of a vertex: its middle, and the size of its outline."""

    x: float
    y: float
    width: float
    height: float


def boxes(
    picture: Picture,
    layout: Layout,
    size_of: Callable[[Vertex], tuple[float, float]],
) -> dict[int, Box]:
    """Where every vertex and waypoint is drawn; boxes do not overlap.

    A waypoint is as wide as its layer. Heights are measured downwards.

    Args:
        size_of: width and height of the outline of a vertex.
    """
    gap = min(40 + 4 * max(layout.heights.values()), 160)
    found, left = {}, 0.0
    for layer in layout.layers:
        sizes = {
            v: size_of(picture.vertices[v]) for v in layer if v < len(picture.vertices)
        }
        width = max(w for w, _ in sizes.values())
        for v in layer:
            w, h = sizes.get(v, (width, 0.0))
            found[v] = Box(left + width / 2, layout.heights[v] * PITCH, w, h)
        left += width + gap
    return found
