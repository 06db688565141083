"""Operands in another order: written by one launch, for the next ones to read."""

from __future__ import annotations

from typing import NamedTuple

from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import Extent
from feinsum.transforms.gpu.cost import WARP
from feinsum.transforms.gpu.grid import parts_of
from feinsum.transforms.gpu.shares import points_of
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.schedule import Expression, Names

ITEMS = 256
FEW = 8
"""Entries side by side, of one array and of the other: 64 bytes of double precision."""
MOST_STEPS = 8
"""Entries of a work-item, for which it computes the other indices once."""


class Entries(NamedTuple):
    """Loops over points.

    Attributes:
        points: the value of each index.
        inside: conditions that have to hold.
        before: the ids of what computes points.
    """

    loops: Names
    points: dict[str, Expression]
    inside: tuple[Expression, ...]
    before: Names


def each_entry(writer: NestWriter, order: Names, near: str, after: Names) -> Entries:
    """Visit the points of indices; a warp visits neighbours in two orders.

    Rewrite, for the order ``kij`` with k near::

        for k, i, j:  packed[k,i,j] = A[i,j,k]

        for group, chunk, item, lane in parallel:
            i, j = (32*group + item) / J, (32*group + item) % J
            for step:
                k = 8*(steps*chunk + step) + lane
                packed[k,i,j] = A[i,j,k]

    Args:
        order: the indices, the last one the fastest of one array.
        near: that of the other one.
        after: ids of what has to be done before.
    """
    schedule = writer.schedule
    extent = schedule.extents[near]
    is_wide = order[-1] == near and isinstance(extent, int) and extent % WARP == 0
    lanes = WARP if is_wide else FEW
    steps = _steps(extent, lanes)
    chunk = writer.loop("chunk", f"{lanes * steps}*{{}} < {extent}", tag="g.1")
    lane = writer.loop("lane", size=lanes, tag="l.0")
    others = [i for i in order if i != near]
    rest = _others(writer, others, ITEMS // lanes, (chunk, lane), after)
    step = writer.loop("step", size=steps, tag="unr")
    place = p.Sum((steps * var(chunk), var(step)))
    value = p.Sum((lanes * place, var(lane)))
    inside = rest.inside
    if not isinstance(extent, int) or extent % (lanes * steps):
        inside = (*inside, p.Comparison(value, "<", extent_of(extent)))
    points = {**rest.points, near: value}
    return Entries((*rest.loops, step), points, inside, rest.before)


def _others(
    writer: NestWriter, order: list[str], n_rows: int, within: Names, after: Names
) -> Entries:
    """Loops over groups and their ``n_rows`` rows, with what the points take."""
    parts = parts_of(order, writer.schedule.extents)
    assert parts is not None
    first, *alone = parts
    group = writer.loop("group", f"{n_rows}*{{}} < {first.size}", tag="g.0")
    single = {
        part.indices[0]: writer.loop("group", size=part.extents[0], tag=f"g.{axis}")
        for axis, part in enumerate(alone, start=2)
    }
    item = writer.loop("item", size=n_rows, tag="l.1")
    chunk, lane = within
    loops = (group, chunk, *single.values(), item, lane)
    row = p.Sum((n_rows * var(group), var(item)))
    rest = points_of(writer, first, 1, lambda _: row, loops, after, tile=n_rows)
    points = {**rest.at(0), **{i: var(name) for i, name in single.items()}}
    return Entries(loops, points, rest.inside(0), (*after, *rest.statements))


def _steps(extent: Extent, lanes: int) -> int:
    """As many as leave few work-items idle.

    >>> [_steps(n, 8) for n in (5, 40, 72, 296)]
    [1, 5, 5, 8]
    """
    if not isinstance(extent, int):
        return MOST_STEPS
    n = -(-extent // lanes)
    return -(-n // -(-n // MOST_STEPS))


def extent_of(extent: Extent) -> Expression:
    return extent if isinstance(extent, int) else var(extent.name)


def packed(
    writer: NestWriter, operand: str, order: Names, after: Names
) -> tuple[str, Names]:
    """Write an operand, array or function, in an order of its indices.

    Returns:
        The new array, and what has to be done before it is read.
    """
    schedule = writer.schedule
    span = schedule.spans[operand]
    entries = each_entry(writer, order, span[-1], after)
    shape = [extent_of(schedule.extents[i]) for i in order]
    array = writer.array(
        f"{operand}_packed", shape, schedule.dtypes[operand], is_global=True
    )
    done = writer.assign(
        "pack",
        var(array)[tuple(entries.points[i] for i in order)],
        var(schedule.rules[operand])(*(entries.points[i] for i in span)),
        entries.loops,
        entries.before,
        predicates=entries.inside,
    )
    writer.note_apart(done)
    return array, (done, writer.launch_end([done]))
