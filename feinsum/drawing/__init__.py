"""Pictures: the induced graph as DOT text, SVG, PNG or PDF, and rooflines as PNG."""

from feinsum.drawing.dot import dot_text
from feinsum.drawing.draw import SUFFIXES, draw
from feinsum.drawing.roofline import Chart, Dot, Step, draw_roofline

__all__ = ["SUFFIXES", "Chart", "Dot", "Step", "dot_text", "draw", "draw_roofline"]
