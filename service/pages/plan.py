"""Pictures of plans: the grid at every step, and the graph of a program.

::

    step 1   A [0|1]   x [0 1]   out [0]      blocks, with the ranks that have them
               [2|3]     [2 3]       [1]

The planner draws them. It belongs to a higher layer, and is imported when a page needs
it; no plan runs here, so no code generator is needed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feinsum.errors import FeinsumError
from feinsum.records import PlanRecord
from feinsum.service.pages.words import make_notation

if TYPE_CHECKING:
    from feinsum.distributed.facts import AnyPlan
    from feinsum.drawing import Arrow, Node, StepRow

MAX_BLOCKS = 512
"""Most blocks of one tensor in all drawn steps; the first step is always drawn."""

MAX_NODES = 60
"""Larger graphs are not drawn: they would be unreadable."""

WIDTH, HEIGHT, GAP = 150.0, 46.0, 46.0
"""Size of a node of a graph, and the gap between layers, in pixels."""

COUNTS = {
    "moved": "elements moved",
    "reduced": "partial results among them",
    "most_received": "most received by one process",
    "messages": "messages",
    "peak": "most held by one process",
    "busy": "processes with work",
}
"""The counts on a page, with their labels."""


@dataclass(frozen=True)
class Flow:
    """The graph of a program.

    Attributes:
        positions: of the middle of the upper edge of each node, in pixels.
    """

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    positions: dict[str, tuple[float, float]]

    @property
    def width(self) -> float:
        """The width of the graph in pixels."""
        return max(x for x, _ in self.positions.values()) + WIDTH / 2 + 8

    @property
    def height(self) -> float:
        """The height of the graph in pixels."""
        return max(y for _, y in self.positions.values()) + HEIGHT + 8


@dataclass(frozen=True)
class PlanView:
    """A plan on a page.

    Attributes:
        steps: the first ones; none for more processes than can be distinguished.
        n_steps: number of steps of the plan.
        flow: of a program that is not too large.
        text: the plan in words.
        extents: of indices, as they are named in it.
    """

    steps: tuple[StepRow, ...]
    n_steps: int
    flow: Flow | None
    text: str
    extents: str


def make_title(record: PlanRecord) -> str:
    """Return the title of a plan, in one line, without reading all of it."""
    try:
        document = json.loads(record.plan)
    except ValueError:
        return "a plan"
    # stored plans were checked, but older releases wrote other documents
    if not isinstance(document, dict) or "program" in document:
        return "a program"
    return make_notation(str(document.get("einsum", ""))).title or "a plan"


def make_plan_view(record: PlanRecord) -> PlanView | None:
    """Return the pictures of a plan; None of one that this release cannot read."""
    # most pages need no planner: it is imported when a plan is drawn
    from feinsum.distributed.display import MAX_DRAWN, rows_of
    from feinsum.distributed.facts import get_inner_plan, read_plan

    try:
        planned = read_plan(record.plan)
    # a plan of another release is shown without pictures
    except FeinsumError:
        return None
    plan = get_inner_plan(planned)
    # an SVG of thousands of blocks stalls a browser
    n_drawn = max(1, MAX_BLOCKS // plan.processes)
    rows = rows_of(plan, n_drawn) if plan.processes <= MAX_DRAWN else ()
    extents = ", ".join(f"{i} = {n}" for i, n in plan.extents.items())
    flow = _make_flow(planned)
    return PlanView(tuple(rows), len(plan.groups), flow, str(planned), extents)


def _make_flow(planned: AnyPlan) -> Flow | None:
    from feinsum.distributed.display import build_flow
    from feinsum.distributed.program_plan import ProgramPlan
    from feinsum.drawing.flow import place_nodes

    if not isinstance(planned, ProgramPlan):
        return None
    nodes, arrows = build_flow(planned)
    if len(nodes) > MAX_NODES:
        return None
    positions = {
        name: ((x + 0.5) * (WIDTH + 16), 8 + layer * (HEIGHT + GAP))
        for name, (x, layer) in place_nodes(nodes).items()
    }
    return Flow(tuple(nodes), tuple(arrows), positions)
