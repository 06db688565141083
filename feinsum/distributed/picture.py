"""A picture of a plan: for every group, which ranks need and hold which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice, pairwise

from feinsum.distributed.boxes import Box
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.plan import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.distributed.text import schedule_text
from feinsum.drawing import Block, Panel, Row

MOST_DRAWN = 64
"""Processes of a plan whose blocks can be told apart in a picture."""


def rows_of(plan: Plan, n_groups: int | None = None) -> tuple[Row, ...]:
    """A row for every group: the blocks of its inputs, and where its result is left.

    Tensors with more than two axes show the two with the most parts; those with fewer
    have an unnamed side. Every block names the ranks that hold it. Entries dealt out
    cyclically are drawn part by part; their index has a ``%``.

    Args:
        n_groups: rows of the first groups alone; of all, if it is not given.
    """
    groups = zip(plan.groups, plan.schedules, strict=True)
    return tuple(
        Row(
            f"{group}\n{schedule_text(group, schedule)}",
            tuple(_panels(plan, group, schedule)),
        )
        for group, schedule in islice(groups, n_groups)
    )


def _panels(plan: Plan, group: Group, schedule: GroupSchedule) -> list[Panel]:
    found = [
        _panel(plan, access, schedule.needs(access), f"needs {access}")
        for access in group.inputs
    ]
    return [*found, _panel(plan, group.output, schedule.result, f"{group.output}")]


def _panel(plan: Plan, access: Access, held: Distribution, title: str) -> Panel:
    extents = plan.extents
    shape = tuple(extents[i] for i in access.indices)
    boxes = held.boxes(shape, plan.processes)
    there = {rank: boxes.box(rank) or () for rank in boxes.ranks()}
    places = [_places({box[k] for box in there.values()}) for k in range(len(shape))]
    order = sorted(range(len(shape)), key=lambda k: (-len(places[k]), k))[:2]
    shown = sorted(order)
    ranks: dict[Box, list[int]] = {}
    for rank, box in there.items():
        ranks.setdefault(tuple(box[k] for k in shown), []).append(rank)
    blocks = tuple(
        _block(
            [places[k][side] for k, side in zip(shown, box, strict=True)], min(of), of
        )
        for box, of in ranks.items()
    )
    names = [access.indices[k] + "%" * (boxes.steps[k] > 1) for k in shown]
    down, right = {0: ("", ""), 1: ("", *names), 2: tuple(names)}[len(names)]
    return Panel(title, blocks, down, right)


def _places(sides: set[range]) -> dict[range, tuple[float, float]]:
    """Where the parts of an axis are drawn, one after the other, in shares of it."""
    parts = sorted(sides, key=lambda side: side.start)
    ends = [0, *accumulate(map(len, parts))]
    shares = [end / max(1, ends[-1]) for end in ends]
    return dict(zip(parts, pairwise(shares), strict=True))


def _block(
    sides: Sequence[tuple[float, float]], number: int, ranks: Sequence[int]
) -> Block:
    whole = ((0.0, 1.0),) * (2 - len(sides))
    (top, bottom), (left, right) = (*whole, *sides)
    return Block(left, top, right - left, bottom - top, number, ranks_text(ranks))


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as text, as short as possible.

    >>> ranks_text([0]), ranks_text([0, 1, 2, 3]), ranks_text([0, 2, 4, 6])
    ('0', '0-3', '0,2..6')
    >>> ranks_text([1, 2, 5])
    '1,2,5'
    """
    if len(ranks) < 3:
        return ",".join(map(str, ranks))
    step = ranks[1] - ranks[0]
    if list(ranks) != list(range(ranks[0], ranks[-1] + 1, step)):
        few = ",".join(map(str, ranks[:4]))
        return few if len(ranks) <= 4 else f"{few} .."
    if step == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return f"{ranks[0]},{ranks[1]}..{ranks[-1]}"
