"""The induced graph as DOT text, SVG, PNG or PDF."""

from feinsum.drawing.graph.draw import SUFFIXES, dot_text, draw, svg_of

__all__ = ["SUFFIXES", "dot_text", "draw", "svg_of"]
