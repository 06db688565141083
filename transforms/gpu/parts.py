"""Parts of sums, which groups hand to a second launch that adds them.

Source: Osama, Merrill, Cecka, Garland and Owens, Stream-K (2023), section 2: "split-k".
"""

from __future__ import annotations

from typing import Any

from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.transforms.gpu.shares import Points, points_of
from feinsum.transforms.gpu.tile_shapes import Dealt, Side
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.schedule import Expression, Names

__all__ = ["Parts"]

ITEMS = 128
"""Work-items of a group that adds parts."""


class Parts:
    """Where each group leaves its part of the sums, if there are several shares.

    Rewrite::

        for y, x:  out[y,x] = sum(k, A[y,k]*B[k,x])

        for share, y, x:  part[share,y,x] = sum(k in share, A[y,k]*B[k,x])
        (second launch)
        for y, x:  out[y,x] = sum(share, part[share,y,x])

    Args:
        shares: of the tiles along the summed indices.

    Attributes:
        loops: over the shares.
        dealt: the tiles of a group.
    """

    def __init__(
        self, writer: NestWriter, across: Side, along: Side, shares: int
    ) -> None:
        self.writer, self.across, self.along, self.n = writer, across, along, shares
        self.loops: Names = ()
        self.dealt = Dealt()
        if shares > 1:
            share = writer.loop("share", size=shares, tag="g.2")
            self.loops, self.dealt = (share,), Dealt(share, shares)
        self.written: dict[int, tuple[Expression, str]] = {}

    def store(
        self,
        row: int,
        value: Expression,
        y: tuple[Points, Expression],
        x: tuple[Points, Expression],
        loops: Names,
        after: Names,
    ) -> None:
        """Leave a part of a row's sums.

        Args:
            y, x: points along each side, and the step at which they are meant.
        """
        writer = self.writer
        shape = self.n, *(parse(side.flat.size) for side in (self.along, self.across))
        dtype = writer.schedule.dtype_of_row(row)
        part = var(writer.array("part", shape, dtype, is_global=True))
        (rows, at_row), (columns, at_column) = y, x
        place = var(rows.value)[at_row], var(columns.value)[at_column]
        done = writer.assign(
            "part", part[(var(self.dealt.share), *place)], value, loops, after,
            where=(*rows.inside(at_row), *columns.inside(at_column)),
        )  # fmt: skip
        writer.note_apart(done)
        self.written[row] = part, done

    def add(self) -> None:
        """Write the second launch, if there is one."""
        if not self.written:
            return
        writer, done = self.writer, [done for _, done in self.written.values()]
        after = (*done, writer.launch_end(done))
        group = writer.loop(
            "group", f"{ITEMS}*{{}} < {self.across.flat.size}", tag="g.0"
        )
        line = writer.loop("line", f"{{}} < {self.along.flat.size}", tag="g.1")
        item = writer.loop("item", size=ITEMS, tag="l.0")
        around = (group, line, item)
        x, y = (
            points_of(writer, side.flat, 1, _always(value), around, after, tile=tile)
            for side, value, tile in (
                (self.across, p.Sum((ITEMS * var(group), var(item))), ITEMS),
                (self.along, var(line), 1),
            )
        )
        before = (*after, *y.statements, *x.statements)
        for row, (part, _) in self.written.items():
            self._sum(row, part, y, x, around, before)

    def _sum(
        self,
        row: int,
        part: Expression,
        y: Points,
        x: Points,
        around: Names,
        before: Names,
    ) -> None:
        writer = self.writer
        dtype = writer.schedule.dtype_of_row(row)
        total = var(writer.array("total", (), dtype))
        zero = writer.assign("zero", total, dtype.type(0), around, before)
        share = writer.loop("share", size=self.n)
        value = part[var(share), var(y.value)[0], var(x.value)[0]]
        step = writer.assign(
            "add", total, p.Sum((total, value)), (*around, share), [zero, *before],
            where=x.inside(0),
        )  # fmt: skip
        points = {**y.at(0), **x.at(0)}
        writer.store(row, total, points, around, [step, *before], where=x.inside(0))
        writer.note_apart(writer.schedule.instructions[row])


def _always(value: Expression) -> Any:
    return lambda _step: value
