"""Plans as pictures: one of the grid for every step, and the graph of a program.

What draws them stands above the database, and is imported when a page is asked for: it
needs no code generator, as nothing here runs a plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feinsum.errors import FeinsumError
from feinsum.records import PlanRecord
from feinsum.service.pages.notation import notation_of

if TYPE_CHECKING:
    from feinsum.distributed.facts import AnyPlan
    from feinsum.drawing import Arrow, Node, Panel, StepRow

SIDE = 132.0
"""Side of a tensor's square, in pixels."""

N_COLORS = 6
"""Colors of blocks in the style sheet."""

MAX_BLOCKS = 512
"""Most blocks of one tensor in all drawn steps; the first step is always drawn."""

MAX_NODES = 60
"""Larger graphs are not drawn: nobody could read them."""

WIDTH, HEIGHT, GAP = 150.0, 46.0, 46.0
"""Size of a node of a graph, and the gap between layers."""

COUNTS = {
    "moved": "elements moved",
    "reduced": "partial results among them",
    "most_received": "most received by one process",
    "messages": "messages",
    "peak": "most held by one process",
    "busy": "processes with work",
}
"""The counts that a page has, and what they are called."""


@dataclass(frozen=True)
class BlockView:
    """A block, in pixels, with the ranks that have it."""

    x: float
    y: float
    width: float
    height: float
    color: int
    text: str


@dataclass(frozen=True)
class Square:
    """A tensor: its blocks, and what runs down and to the right."""

    title: str
    tiles: tuple[BlockView, ...]
    down: str
    right: str

    @property
    def words(self) -> str:
        """The picture in words."""
        blocks = "; ".join(tile.text for tile in self.tiles[:16])
        return f"{self.title}: blocks of ranks {blocks}"


@dataclass(frozen=True)
class StepView:
    """One step: what is computed, how it is cut, and a square for every tensor."""

    title: str
    words: str
    squares: tuple[Square, ...]


@dataclass(frozen=True)
class Cell:
    """The part that one machine axis cuts."""

    x: float
    y: float
    width: float
    color: int
    text: str


@dataclass(frozen=True)
class Spot:
    """An array or a statement, with a line of text or two."""

    x: float
    y: float
    lines: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Way:
    """From who makes an array to who reads it, with what moves."""

    path: str
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Flow:
    """The graph of a program, in pixels."""

    width: float
    height: float
    spots: tuple[Spot, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class PlanView:
    """A plan on a page.

    Attributes:
        steps: the first ones; none for more processes than can be told apart.
        n_steps: number of steps of the plan.
        flow: of a program that is not too large.
        text: the plan in words.
        extents: of indices, as they are named in it.
    """

    steps: tuple[StepView, ...]
    n_steps: int
    flow: Flow | None
    text: str
    extents: str


def title_of(record: PlanRecord) -> str:
    """The title of a plan, in one line, without reading all of it.

    >>> from feinsum.service.examples import PLAN
    >>> title_of(PLAN)
    'ij, j → i'
    """
    try:
        document = json.loads(record.plan)
    except ValueError:
        return "a plan"
    # stored plans were checked, but older releases wrote other documents
    if not isinstance(document, dict) or "program" in document:
        return "a program"
    return notation_of(str(document.get("einsum", ""))).title or "a plan"


def view_of(record: PlanRecord) -> PlanView | None:
    """The pictures of a plan; None of one that this release cannot read."""
    # most pages need no planner: it is imported when a plan is drawn
    from feinsum.distributed.display import MAX_DRAWN, rows_of
    from feinsum.distributed.facts import plan_in, read_plan

    try:
        planned = read_plan(record.plan)
    # a plan of another release is shown without pictures
    except FeinsumError:
        return None
    plan = plan_in(planned)
    # an SVG of thousands of blocks stalls a browser
    n_drawn = max(1, MAX_BLOCKS // plan.processes)
    rows = rows_of(plan, n_drawn) if plan.processes <= MAX_DRAWN else ()
    extents = ", ".join(f"{i} = {n}" for i, n in plan.extents.items())
    steps = tuple(map(_step, rows))
    return PlanView(steps, len(plan.groups), _flow(planned), str(planned), extents)


def _step(row: StepRow) -> StepView:
    title, _, words = row.title.partition("\n")
    return StepView(title, words, tuple(map(_square, row.panels)))


def _square(panel: Panel) -> Square:
    tiles = tuple(
        BlockView(
            round(SIDE * block.left, 1),
            round(SIDE * block.top, 1),
            round(SIDE * block.width, 1),
            round(SIDE * block.height, 1),
            # neighbours differ, as their numbers are consecutive
            block.number % N_COLORS,
            block.text,
        )
        for block in panel.blocks
    )
    return Square(panel.title, tiles, panel.down, panel.right)


def _flow(planned: AnyPlan) -> Flow | None:
    from feinsum.distributed.display import flow_of
    from feinsum.distributed.program_plan import ProgramPlan
    from feinsum.drawing.flow import places_of

    if not isinstance(planned, ProgramPlan):
        return None
    nodes, arrows = flow_of(planned)
    if len(nodes) > MAX_NODES:
        return None
    positions = {
        name: ((x + 0.5) * (WIDTH + 16), 8 + layer * (HEIGHT + GAP))
        for name, (x, layer) in places_of(nodes).items()
    }
    return Flow(
        width=max(x for x, _ in positions.values()) + WIDTH / 2 + 8,
        height=max(y for _, y in positions.values()) + HEIGHT + 8,
        spots=tuple(_spot(node, *positions[node.name]) for node in nodes),
        ways=tuple(_ways(arrows, positions)),
    )


def _spot(node: Node, x: float, y: float) -> Spot:
    each = WIDTH / max(1, len(node.cells))
    cells = tuple(
        Cell(x - WIDTH / 2 + k * each, y + HEIGHT - 16, each, k % N_COLORS, text)
        for k, text in enumerate(node.cells)
    )
    return Spot(x, y, tuple(node.text.split("\n")), cells)


def _ways(
    arrows: Sequence[Arrow], positions: dict[str, tuple[float, float]]
) -> Iterator[Way]:
    for arrow in arrows:
        (x, y), (to_x, to_y) = positions[arrow.source], positions[arrow.target]
        path = f"M{x:.1f},{y + HEIGHT:.1f}L{to_x:.1f},{to_y:.1f}"
        yield Way(path, (x + to_x) / 2, (y + HEIGHT + to_y) / 2 + 4, arrow.text)
