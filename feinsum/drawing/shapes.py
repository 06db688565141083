"""Shapes of vertices: their corners, and how large they are around a text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["POLYGONS", "padding"]

POLYGONS: dict[str, Sequence[tuple[float, float]]] = {
    "box": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "diamond": [(-1, 0), (0, -1), (1, 0), (0, 1)],
    "hexagon": [(-1, 0), (-0.75, -1), (0.75, -1), (1, 0), (0.75, 1), (-0.75, 1)],
    "parallelogram": [(-1, 1), (-0.7, -1), (1, -1), (0.7, 1)],
}
"""Corners in a square from -1 to 1."""


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
