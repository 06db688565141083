"""Outlines of vertices, by the words that DOT has for them."""

from __future__ import annotations

from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from feinsum.drawing.shapes import POLYGONS

__all__ = ["outline"]


def outline(
    shape: str, x: float, y: float, width: float, height: float, radius: float = 6.0
) -> Path:
    """The outline of a shape of that size around a point.

    Args:
        shape: a key of :data:`POLYGONS`, or one of circle, ellipse, rounded.
        x, y, width, height, radius: in points; the radius is of rounded corners.
    """
    if shape == "rounded":
        return _rounded(x, y, width / 2, height / 2, radius)
    if shape in ("circle", "ellipse"):
        path = Path.unit_circle()
    else:
        corners = POLYGONS[shape]
        path = Path([*corners, corners[0]], closed=True)
    return Affine2D().scale(width / 2, height / 2).translate(x, y).transform_path(path)


def _rounded(x: float, y: float, w: float, h: float, r: float) -> Path:
    corners = [(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)]
    steps = [(r, 0.0), (0.0, r), (-r, 0.0), (0.0, -r)]
    points, codes = [], []
    for k, (cx, cy) in enumerate(corners):
        (inx, iny), (outx, outy) = steps[k - 1], steps[k]
        points += [(cx - inx, cy - iny), (cx, cy), (cx + outx, cy + outy)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    codes[0] = Path.MOVETO
    return Path([*points, points[0]], [*codes, Path.CLOSEPOLY])
