"""Pictures: induced graphs as DOT text, SVG, PNG or PDF; rooflines, and tunings."""

from feinsum.drawing.graph import SUFFIXES, check_plots, dot_text, draw
from feinsum.drawing.roofline import Chart, Dot, Roof, Step, draw_roofline, roofs

__all__ = [
    "SUFFIXES",
    "Chart",
    "Dot",
    "Roof",
    "Step",
    "check_plots",
    "dot_text",
    "draw",
    "draw_roofline",
    "roofs",
]
