"""A picture of a program plan: the graph, colored by how statements are partitioned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from feinsum.distributed.machine import axis_name
from feinsum.distributed.program_plan import ProgramPlan
from feinsum.distributed.report import predicted_by_edge
from feinsum.distributed.schedule import GroupSchedule
from feinsum.drawing import Arrow, Node, draw_flow
from feinsum.words import counted


def draw_program(plan: ProgramPlan, path: str | Path) -> None:
    """Draw the graph of statements, how each is partitioned, and what moves.

    Each machine axis has a color. Bold arrows are labeled with the elements that move.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    nodes, arrows = flow_of(plan)
    n = counted(plan.plan.processes, "process")
    title = (
        f"{plan.plan.title} on {n}: {counted(plan.counts.moved, 'element', ',')} moved"
    )
    draw_flow(title, nodes, arrows, path)


def flow_of(plan: ProgramPlan) -> tuple[tuple[Node, ...], tuple[Arrow, ...]]:
    """Nodes and arrows of the picture.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.softmax(array("X", (4, 4)), name="Y")
    >>> nodes, arrows = flow_of(p.plan(2))
    >>> nodes[1].layer, nodes[1].cells, [a.source for a in arrows][:2]
    (1, ('x=2 a',), ['X', 'X'])
    """
    layers: dict[str, int] = dict.fromkeys(plan.plan.operands, 0)
    nodes = [Node(name, 0, name) for name in layers]
    pairs = zip(plan.program.statements, plan.plan.schedules, strict=True)
    for one, schedule in pairs:
        layers[one.result] = 1 + max(layers[name] for name in one.operands)
        cells = tuple(_cells(one.result, schedule))
        reduction = one.reduction if one.reduced_indices else "map"
        text = f"{one.result}[{','.join(one.output)}]\n{reduction:.20}"
        nodes.append(Node(one.result, layers[one.result], text, cells))
    moved = predicted_by_edge(plan.plan)
    arrows = [
        Arrow(name, one.result, _text(moved.get((name, one.result), 0)))
        for one in plan.program.statements
        for name in dict.fromkeys(one.operands)
    ]
    return tuple(nodes), tuple(arrows)


def _cells(result: str, schedule: GroupSchedule) -> Iterator[str]:
    for k, (n, index) in enumerate(
        zip(schedule.machine.sizes, schedule.axes, strict=True)
    ):
        cut = "" if index is None else f" {index.removeprefix(f'{result}_')}"
        yield f"{axis_name(k)}={n}{cut}"


def _text(n_elements: int) -> str:
    return f"{n_elements:,}" if n_elements else ""
