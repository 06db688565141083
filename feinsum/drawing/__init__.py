"""Pictures: induced graphs as DOT text, SVG, PNG or PDF; rooflines, and tuning runs."""

from feinsum.drawing.flow import (
    Arrow,
    FlowBox,
    Node,
    Panel,
    StepRow,
    draw_blocks,
    draw_flow,
)
from feinsum.drawing.graph import SUFFIXES, draw, draw_svg, write_dot
from feinsum.drawing.plots import can_plot, check_plots
from feinsum.drawing.roofline import (
    Chart,
    Dot,
    LadderKernel,
    Roof,
    draw_roofline,
    list_roofs,
)

__all__ = [
    "SUFFIXES",
    "Arrow",
    "Chart",
    "Dot",
    "FlowBox",
    "LadderKernel",
    "Node",
    "Panel",
    "Roof",
    "StepRow",
    "can_plot",
    "check_plots",
    "draw",
    "draw_blocks",
    "draw_flow",
    "draw_roofline",
    "draw_svg",
    "list_roofs",
    "write_dot",
]
