"""Pictures: induced graphs as DOT text, SVG, PNG or PDF; rooflines, and tunings."""

from feinsum.drawing.graph import SUFFIXES, check_plots, dot_text, draw
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
