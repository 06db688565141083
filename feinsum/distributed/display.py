"""Plans as text and as pictures.

:func:`format_plan` is what ``print(plan)`` shows, :func:`format_blocks` lists the
blocks that ranks need and hold, :func:`format_steps` the steps of one rank.
:func:`rows_of` and :func:`build_flow` are the data of pictures: the blocks of every
group, and the graph of a program. :mod:`feinsum.drawing` and the pages of the service
draw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from feinsum.distributed.boxes import Box
from feinsum.distributed.counts import predict_by_edge
from feinsum.distributed.distribution import (
    ONE_PROCESS,
    Distribution,
    get_axis_name,
    insert_bars,
)
from feinsum.distributed.groups import Access, Group, get_shape
from feinsum.distributed.levels import moved_by_level
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.distributed.steps import Free, Leaf, Make, Step, Transfer
from feinsum.drawing import Arrow, FlowBox, Node, Panel, StepRow, draw_flow
from feinsum.errors import PlanError
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.distributed.program_plan import ProgramPlan

MAX_DRAWN = 64
"""Processes of a plan whose blocks can be distinguished in a picture."""


# ---- text


def format_plan(plan: Plan, statements: Sequence[object] = ()) -> str:
    """Return groups, their machines and partitions, and what moves.

    Args:
        plan: the plan to describe.
        statements: those of a program. The plan has their indices with the name of the
            result before them, which is left out.
    """
    n = format_count(plan.processes, "process")
    title = f"{plan.title} on {n} ({plan.name})"
    return "\n".join([title, *_format_groups(plan, statements), *_format_counts(plan)])


def _format_groups(plan: Plan, statements: Sequence[object]) -> Iterator[str]:
    def shorten(text: str, group: Group) -> str:
        return text.replace(f"{group.output.tensor}_", "") if statements else text

    def format_notation(
        distribution: Distribution, access: Access, group: Group
    ) -> str:
        return distribution.notation([shorten(i, group) for i in access.indices])

    lines = zip(statements or plan.groups, plan.scheduled, strict=True)
    for line, (group, schedule) in lines:
        yield f"  {line}"
        yield f"    {shorten(format_schedule(group, schedule), group)}"
    # reversed, so that the first use of a tensor remains
    readers = {a.tensor: g for g in reversed(plan.groups) for a in g.inputs}
    for name, start in plan.starts.items():
        access = plan.first_accesses[name]
        yield f"  {name} starts as {format_notation(start, access, readers[name])}"
    for group in plan.groups:
        if (name := group.output.tensor) in plan.outputs:
            end = plan.final_distributions[name]
            yield f"  {name} ends as {format_notation(end, group.output, group)}"


def _format_counts(plan: Plan) -> Iterator[str]:
    counts = plan.counts
    yield (
        f"moved {format_count(counts.moved, 'element', ',')} "
        f"({counts.received:,} fetched, "
        f"{counts.reduced:,} reduced), {counts.most_received:,} by one process at most"
    )
    if plan.units:
        yield format_levels(plan, plan.units)
    yield (
        f"{format_count(counts.messages, 'message', ',')}; at most "
        f"{format_count(plan.peak_bytes, 'byte', ',')} in a process"
    )
    if n_idle := plan.processes - counts.busy:
        yield (
            "one process has no work"
            if n_idle == 1
            else f"{format_count(n_idle, 'process')} have no work"
        )


def format_schedule(group: Group, schedule: GroupSchedule) -> str:
    """Return which axis partitions which index, the sequential loop, the reduction."""
    sums = {
        "none": "",
        "scatter": "; sums in blocks",
        "owner": "; sums at one place",
        "mixed": "; sums in blocks and at one place",
    }[schedule.reduction(group)]
    return f"{_format_machine(schedule)}{_format_loop(schedule)}{sums}"


def format_levels(plan: Plan, units: Sequence[int]) -> str:
    """Return the elements that pass at each level; see :func:`moved_by_level`."""
    *between, within = moved_by_level(plan, units)
    pairs = zip(units, between, strict=True)
    words = [
        f"{n:,} between groups of {format_count(unit, 'rank')}" for unit, n in pairs
    ]
    return f"by level: {', '.join(words)}, {within:,} within"


def _format_machine(schedule: GroupSchedule) -> str:
    pairs = zip(schedule.machine.sizes, schedule.axes, strict=True)
    cuts = [
        f"{get_axis_name(k)}={n} {'deals' if k in schedule.cyclic else 'cuts'} {index}"
        if index is not None
        else f"{get_axis_name(k)}={n}"
        for k, (n, index) in enumerate(pairs)
    ]
    text = ", ".join(insert_bars(cuts, schedule.machine.bounds))
    # a bar takes the place of a comma
    return text.replace(", |,", " |") or ONE_PROCESS


def _format_loop(schedule: GroupSchedule) -> str:
    loop = schedule.loop
    if loop is None:
        return ""
    axes = "".join(get_axis_name(k) for k in loop.rotate)
    rotation = f", turned by {axes}" if axes else ""
    return f"; {loop.index} in {format_count(loop.parts, 'step')}{rotation}"


def format_blocks(plan: Plan) -> str:
    """Return for every group which ranks need and hold which blocks.

    >>> import feinsum
    >>> A, x = feinsum.array("A", (4, 6)), feinsum.array("x", 6)
    >>> print(format_blocks(feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2)))
    out[i] = A[i,j] * x[j]
      needs A[i,j]
        0:4, 0:3  on 0
        0:4, 3:6  on 1
      needs x[j]
        0:3  on 0
        3:6  on 1
      leaves out[i]
        0:2  on 0
        2:4  on 1
    """
    return "\n".join(_format_block_lines(plan))


def _format_block_lines(plan: Plan) -> Iterator[str]:
    for group, schedule in plan.scheduled:
        yield str(group)
        needs = [(f"needs {a}", a, schedule.needs(a)) for a in group.inputs]
        result = f"leaves {group.output}", group.output, schedule.result
        for title, access, distribution in (*needs, result):
            yield f"  {title}"
            boxes = distribution.boxes(get_shape(access, plan.extents), plan.processes)
            # copies: several ranks with the same box
            ranks: dict[Box, list[int]] = {}
            for rank, box in boxes.items():
                ranks.setdefault(box, []).append(rank)
            for box, holders in ranks.items():
                yield f"    {_format_box(box)}  on {format_ranks(holders)}"


def format_steps(plan: Plan, rank: int) -> str:
    """Return the steps of a rank, one per line.

    Raises:
        PlanError: if the plan has no such rank.
    """
    if not 0 <= rank < plan.processes:
        raise PlanError(
            f"rank {rank}; expected one from 0 to {plan.processes - 1}",
            rules=("processes",),
        )
    return "\n".join(_format_step(step, rank) for step in plan.steps[rank])


def _format_step(step: Step, rank: int) -> str:
    match step:
        case Make(buffer, box, is_zero):
            zeros = " of zeros" if is_zero else ""
            return f"make     {buffer}[{_format_box(box)}]{zeros}"
        case Transfer(sender, receiver, source, target, box, is_added):
            if sender == receiver:
                verb = "add to" if is_added else "into"
                return f"take     {source}[{_format_box(box)}] {verb} {target}"
            if sender == rank:
                return f"send     {source}[{_format_box(box)}] to {receiver}"
            verb = "reduce " if is_added else "receive"
            return f"{verb}  {target}[{_format_box(box)}] from {sender}"
        case Leaf(_, sources, target, box):
            factors = " * ".join(
                f"{name}[{_format_box(operand_box)}]" for name, operand_box in sources
            )
            return f"compute  {target}[{_format_box(box)}] += {factors}"
        case Free(buffer):
            return f"free     {buffer}"


def _format_box(box: Box) -> str:
    steps = [f":{side.step}" if side.step > 1 else "" for side in box]
    sides = zip(box, steps, strict=True)
    return ", ".join(f"{s.start}:{s.stop}{step}" for s, step in sides) or "()"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, as short as possible.

    >>> format_ranks([0]), format_ranks([0, 1, 2, 3]), format_ranks([0, 2, 4, 6])
    ('0', '0-3', '0,2..6')
    >>> format_ranks([1, 2, 5])
    '1,2,5'
    """
    if len(ranks) < 3:
        return ",".join(map(str, ranks))
    step = ranks[1] - ranks[0]
    if list(ranks) != list(range(ranks[0], ranks[-1] + 1, step)):
        # ranks are irregular only if some are idle; the first ones are enough
        few = ",".join(map(str, ranks[:4]))
        return few if len(ranks) <= 4 else f"{few} .."
    if step == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return f"{ranks[0]},{ranks[1]}..{ranks[-1]}"


# ---- the picture of a plan: the blocks of every group


def rows_of(plan: Plan, n_groups: int | None = None) -> tuple[StepRow, ...]:
    """Return a row for every group: the blocks of its inputs, and of its result.

    Tensors with more than two axes show the two with the most parts; those with fewer
    have an unnamed side. Every block names the ranks that hold it. Entries of a cyclic
    distribution are drawn part by part; their index has a ``%``.

    Args:
        plan: the plan to draw.
        n_groups: rows of the first groups alone; of all, if it is not given.
    """
    return tuple(
        StepRow(
            f"{group}\n{format_schedule(group, schedule)}",
            tuple(_make_panels(plan, group, schedule)),
        )
        for group, schedule in islice(plan.scheduled, n_groups)
    )


def _make_panels(plan: Plan, group: Group, schedule: GroupSchedule) -> list[Panel]:
    needs = [(a, schedule.needs(a), f"needs {a}") for a in group.inputs]
    result = group.output, schedule.result, f"{group.output}"
    return [_make_panel(plan, *part) for part in (*needs, result)]


def _make_panel(
    plan: Plan, access: Access, distribution: Distribution, title: str
) -> Panel:
    shape = get_shape(access, plan.extents)
    boxes = distribution.boxes(shape, plan.processes)
    of_rank = dict(boxes.items())
    positions = [
        _compute_positions({box[k] for box in of_rank.values()})
        for k in range(len(shape))
    ]
    # the two axes with the most parts, in the order of the tensor
    by_parts = sorted(range(len(shape)), key=lambda k: (-len(positions[k]), k))
    shown = sorted(by_parts[:2])
    ranks: dict[Box, list[int]] = {}
    for rank, box in of_rank.items():
        ranks.setdefault(tuple(box[k] for k in shown), []).append(rank)
    blocks = tuple(
        _make_block(
            [positions[k][side] for k, side in zip(shown, box, strict=True)], holders
        )
        for box, holders in ranks.items()
    )
    names = [access.indices[k] + "%" * (boxes.steps[k] > 1) for k in shown]
    # a vector is drawn as a row, without a name of its only line
    vertical, horizontal = {0: ("", ""), 1: ("", *names), 2: tuple(names)}[len(names)]
    return Panel(title, blocks, vertical, horizontal)


def _compute_positions(sides: set[range]) -> dict[range, tuple[float, float]]:
    """Return where the parts of an axis are drawn, one after the other, in shares."""
    ranges = sorted(sides, key=lambda side: side.start)
    ends = [0, *accumulate(map(len, ranges))]
    # cyclic parts are drawn side by side, though their values alternate
    shares = [end / max(1, ends[-1]) for end in ends]
    return dict(zip(ranges, pairwise(shares), strict=True))


def _make_block(sides: Sequence[tuple[float, float]], ranks: Sequence[int]) -> FlowBox:
    full_sides = ((0.0, 1.0),) * (2 - len(sides))
    (top, bottom), (left, right) = (*full_sides, *sides)
    return FlowBox(
        left, top, right - left, bottom - top, min(ranks), format_ranks(ranks)
    )


# ---- the picture of a program plan: the graph of statements


def draw_program(plan: ProgramPlan, path: str | Path) -> None:
    """Draw the graph of statements, how each is partitioned, and what moves.

    Each machine axis has a color. Bold arrows are labeled with the elements that move.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    nodes, arrows = build_flow(plan)
    n = format_count(plan.plan.processes, "process")
    title = (
        f"{plan.plan.title} on {n}: "
        f"{format_count(plan.counts.moved, 'element', ',')} moved"
    )
    draw_flow(title, nodes, arrows, path)


def build_flow(plan: ProgramPlan) -> tuple[tuple[Node, ...], tuple[Arrow, ...]]:
    """Return nodes and arrows of the picture.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.softmax(array("X", (4, 4)), name="Y")
    >>> nodes, arrows = build_flow(p.plan(2))
    >>> nodes[1].layer, nodes[1].cells, [a.source for a in arrows][:2]
    (1, ('x=2 a',), ['X', 'X'])
    """
    layers: dict[str, int] = dict.fromkeys(plan.plan.operands, 0)
    nodes = [Node(name, 0, name) for name in layers]
    pairs = zip(plan.program.statements, plan.plan.schedules, strict=True)
    for statement, schedule in pairs:
        result = statement.result
        layers[result] = 1 + max(layers[name] for name in statement.operands)
        cells = tuple(_format_cells(result, schedule))
        reduction = statement.reduction if statement.reduced_indices else "map"
        text = f"{result}[{','.join(statement.output)}]\n{reduction:.20}"
        nodes.append(Node(result, layers[result], text, cells))
    moved = predict_by_edge(plan.plan)
    arrows = []
    for statement in plan.program.statements:
        for name in dict.fromkeys(statement.operands):
            n = moved.get((name, statement.result), 0)
            arrows.append(Arrow(name, statement.result, f"{n:,}" if n else ""))
    return tuple(nodes), tuple(arrows)


def _format_cells(result: str, schedule: GroupSchedule) -> Iterator[str]:
    pairs = zip(schedule.machine.sizes, schedule.axes, strict=True)
    for k, (n, index) in enumerate(pairs):
        # indices of programs begin with the name of the result
        cut = "" if index is None else f" {index.removeprefix(f'{result}_')}"
        yield f"{get_axis_name(k)}={n}{cut}"
