"""The blocks of a plan and the steps of a rank, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from feinsum.distributed.boxes import Box
from feinsum.distributed.picture import ranks_text
from feinsum.distributed.plan import Plan
from feinsum.distributed.steps import (
    Free,
    Leaf,
    Make,
    Receive,
    Reduce,
    Send,
    Step,
    Take,
)
from feinsum.errors import PlanError


def blocks_text(plan: Plan) -> str:
    """For every group, which ranks need and hold which blocks.

    >>> import feinsum
    >>> A, x = feinsum.array("A", (4, 6)), feinsum.array("x", 6)
    >>> print(blocks_text(feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2)))
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
    return "\n".join(_blocks(plan))


def steps_text(plan: Plan, rank: int) -> str:
    """The steps of a rank, one per line.

    Raises:
        PlanError: if the plan has no such rank.
    """
    if not 0 <= rank < plan.processes:
        raise PlanError(
            f"rank {rank}; expected one from 0 to {plan.processes - 1}",
            rules=("processes",),
        )
    return "\n".join(map(_step, plan.steps[rank]))


def _blocks(plan: Plan) -> Iterator[str]:
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        yield str(group)
        held = [(f"needs {a}", a, schedule.needs(a)) for a in group.inputs]
        result = f"leaves {group.output}", group.output, schedule.result
        for title, access, where in (*held, result):
            yield f"  {title}"
            shape = tuple(plan.extents[i] for i in access.indices)
            boxes = where.boxes(shape, plan.processes)
            ranks: dict[Box, list[int]] = {}
            for rank in boxes.ranks():
                if (box := boxes.box(rank)) is not None:
                    ranks.setdefault(box, []).append(rank)
            for box, of in ranks.items():
                yield f"    {_box(box)}  on {ranks_text(of)}"


def _side(side: range) -> str:
    step = f":{side.step}" if side.step > 1 else ""
    return f"{side.start}:{side.stop}{step}"


def _box(box: Box) -> str:
    return ", ".join(_side(side) for side in box) or "()"


def _step(step: Step) -> str:
    match step:
        case Make(buffer, box, is_zero):
            return f"make     {buffer}[{_box(box)}]{' of zeros' if is_zero else ''}"
        case Take(source, target, box, is_added):
            verb = "add to" if is_added else "into"
            return f"take     {source}[{_box(box)}] {verb} {target}"
        case Send(rank, source, box):
            return f"send     {source}[{_box(box)}] to {rank}"
        case Receive(rank, target, box):
            return f"receive  {target}[{_box(box)}] from {rank}"
        case Reduce(rank, target, box):
            return f"reduce   {target}[{_box(box)}] from {rank}"
        case Leaf(_, sources, target, box):
            factors = " * ".join(f"{name}[{_box(part)}]" for name, part in sources)
            return f"compute  {target}[{_box(box)}] += {factors}"
        case Free(buffer):
            return f"free     {buffer}"
