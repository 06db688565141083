"""The induced graph as DOT text, SVG, PNG or PDF."""

from feinsum.drawing.graph.draw import SUFFIXES, draw, draw_svg, write_dot

__all__ = ["SUFFIXES", "draw", "draw_svg", "write_dot"]
