"""Pictures: induced graphs as DOT text, SVG, PNG or PDF; rooflines, and tunings."""

from feinsum.drawing.dot import dot_text
from feinsum.drawing.draw import SUFFIXES, check_plots, draw
from feinsum.drawing.roofline import Chart, Dot, Step, draw_roofline

__all__ = [
    "SUFFIXES",
    "Chart",
    "Dot",
    "Step",
    "check_plots",
    "dot_text",
    "draw",
    "draw_roofline",
]
