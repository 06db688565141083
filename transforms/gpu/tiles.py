"""Tiles of operands in shared memory: who loads what, and where it lies there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import Extent
from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.schedule import Expression

__all__ = ["Items", "Side", "Tile", "TileWriter", "are_dealt_evenly", "tile_entries"]

PADDING = 4
"""Entries after each row of a tile: 16 that lie four by four, or in a row, are then in
16 banks of shared memory, where an entry has 8 bytes and rows are multiples of 8."""

MOST_COUNTED = 1 << 31
"""Up to which numbers are counted in 32 bits, in which GPUs divide faster."""


@dataclass(frozen=True)
class Items:
    """The work-items of a group.

    Attributes:
        inames: of the axes, that of neighbours first.
        sizes: how many work-items each axis has.
    """

    inames: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        return prod(self.sizes)

    @property
    def number(self) -> Expression:
        """Of a work-item in its group."""
        terms: list[Expression] = []
        stride = 1
        for iname, size in zip(self.inames, self.sizes, strict=True):
            terms.append(stride * var(iname))
            stride *= size
        return p.Sum(tuple(terms))


@dataclass(frozen=True)
class Share:
    """What a work-item has of an axis: ``first``, ``first + stride`` and so on."""

    first: Expression
    stride: int
    n: int

    def at(self, step: Expression) -> Expression:
        return p.Sum((self.first, self.stride * step))

    def after(self, start: Expression) -> Callable[[Expression], Expression]:
        """The values of an axis that begins at ``start``."""
        return lambda step: p.Sum((start, self.at(step)))


def shares_of(
    slow: int, fast: int, n_items: int, item: Expression
) -> tuple[Share, Share]:
    """Deal out a tile of ``slow`` times ``fast`` entries, neighbours along ``fast``.

    Args:
        item: the number of the work-item, of ``n_items``.

    >>> slow, fast = shares_of(16, 128, 256, var("item"))
    >>> (slow.stride, slow.n), (fast.stride, fast.n)
    ((2, 8), (128, 1))
    """
    if fast >= n_items:
        return Share(0, 1, slow), Share(item, n_items, fast // n_items)
    rows = n_items // fast
    return (
        Share(p.FloorDiv(item, fast), rows, slow // rows),
        Share(p.Remainder(item, fast), fast, 1),
    )


def are_dealt_evenly(slow: int, fast: int, n_items: int) -> bool:
    """Whether :func:`shares_of` gives every work-item equally many entries."""
    if fast >= n_items:
        return fast % n_items == 0
    return n_items % fast == 0 and slow % (n_items // fast) == 0


@dataclass(frozen=True)
class Points:
    """The values of indices at each step of a share, computed once.

    Attributes:
        arrays: of a work-item, one for each index.
        value: the array of the values of all indices as one.
        limit: the scalar below which these are inside; empty if they always are.
        statements: the ids of those that compute them.
    """

    arrays: Mapping[str, str]
    value: str
    limit: str
    statements: tuple[str, ...]

    def at(self, step: Expression) -> dict[str, Expression]:
        return {index: var(array)[step] for index, array in self.arrays.items()}

    def inside(self, step: Expression) -> tuple[Expression, ...]:
        """The condition of being inside, if there is one."""
        if not self.limit:
            return ()
        return (p.Comparison(var(self.value)[step], "<", var(self.limit)),)


def points_of(
    writer: NestWriter,
    flat: Flat,
    n: int,
    at: Callable[[Expression], Expression],
    loops: Sequence[str],
    after: Collection[str] = (),
    *,
    tile: int,
) -> Points:
    """Compute the indices that make up one, a division for each.

    Rewrite, for indices i and j, of which j is the faster, of extent J::

        for step:  value[step] = at(step)
        for step:  j[step] = value[step] % J
        for step:  i[step] = value[step] / J

    Args:
        n: how many steps there are.
        tile: the length of the tiles that they are in.
    """
    count = np.dtype(np.uint64 if _is_long(flat) else np.uint32)
    done: list[str] = []

    def assigned(
        stem: str, dtype: np.dtype[Any], value: Callable[[Expression], Expression]
    ) -> str:
        array = writer.array(stem, (n,), dtype)
        step = writer.loop("step", size=n, tag="unr")
        before, inames = [*after, *done], [*loops, step]
        done.append(
            writer.assign(stem, var(array)[var(step)], value(var(step)), inames, before)
        )
        return array

    limit = ""
    if not is_even(flat, tile):
        limit = writer.array("limit", (), count)
        done.append(writer.assign("limit", var(limit), _size(flat), loops, after))
    value = rest = assigned("value", count, at)
    arrays: dict[str, str] = {}
    point = np.dtype(np.int64)
    for index, extent in list(zip(flat.indices, flat.extents, strict=True))[:0:-1]:
        arrays[index] = assigned(index, point, _applied(p.Remainder, rest, extent))
        rest = assigned("rest", count, _applied(p.FloorDiv, rest, extent))
    first = flat.indices[0]
    arrays[first] = assigned(first, point, lambda step: var(rest)[step])
    return Points(arrays, value, limit, tuple(done))


def _applied(
    operation: Any, array: str, extent: Extent
) -> Callable[[Expression], Expression]:
    return lambda step: operation(var(array)[step], extent)


def _is_long(flat: Flat) -> bool:
    size = _fixed_size(flat)
    return size is None or size >= MOST_COUNTED


def is_even(flat: Flat, tile: int) -> bool:
    """Whether all tiles are known to be full."""
    size = _fixed_size(flat)
    return size is not None and size % tile == 0


def _size(flat: Flat) -> Expression:
    """How many values several indices have together."""
    return p.Product(
        tuple(n if isinstance(n, int) else var(n.name) for n in flat.extents)
    )


def _fixed_size(flat: Flat) -> int | None:
    """The number of values, if it is known."""
    fixed = [n for n in flat.extents if isinstance(n, int)]
    return prod(fixed) if len(fixed) == len(flat.extents) else None


@dataclass(frozen=True)
class Tile:
    """A tile of an operand in shared memory.

    Attributes:
        is_deep: whether neighbours are along the summed indices.
    """

    array: str
    is_deep: bool

    def at(self, deep: Expression, wide: Expression) -> Expression:
        """The entry at places along the summed indices and along the others."""
        place = (wide, deep) if self.is_deep else (deep, wide)
        return var(self.array)[place]


@dataclass(frozen=True)
class Side:
    """One operand's part of the output, cut into tiles.

    Attributes:
        group: the iname of the tiles.
        tile: its length.
    """

    flat: Flat
    group: str
    tile: int

    @property
    def start(self) -> Expression:
        return self.tile * var(self.group)


class TileWriter:
    """Writes the statements that fill tiles.

    Entries beyond the extents are zero, so that whoever reads a tile reads all of it.
    """

    def __init__(
        self,
        writer: NestWriter,
        items: Items,
        summed: Flat,
        depth: int,
        batch: Mapping[str, Expression],
        grid: Sequence[str],
    ) -> None:
        self.writer, self.items = writer, items
        self.summed, self.depth, self.batch = summed, depth, batch
        self.around = (*grid, *reversed(items.inames))
        self.item = writer.array("number", (), np.dtype(np.uint32))
        self.numbered = writer.assign(
            "number", var(self.item), items.number, self.around
        )

    def filled(self, operand: str, side: Side, tile: str) -> tuple[Tile, str]:
        """The tile of an operand at each value of the iname ``tile``; the last id."""
        writer, schedule = self.writer, self.writer.schedule
        span = schedule.spans[operand]
        is_deep = bool(span) and span[-1] in self.summed.indices
        shape = (side.tile, self.depth) if is_deep else (self.depth, side.tile)
        array = writer.array(
            f"{operand}_tile", (shape[0], shape[1] + PADDING), schedule.dtypes[operand],
            is_shared=True,
        )  # fmt: skip
        made = Tile(array, is_deep)
        shares = shares_of(*shape, self.items.n, var(self.item))
        deep, wide = shares[::-1] if is_deep else shares
        loops = (*self.around, tile)
        across = points_of(
            writer, side.flat, wide.n, wide.after(side.start), self.around,
            [self.numbered], tile=side.tile,
        )  # fmt: skip
        along = points_of(
            writer, self.summed, deep.n, deep.after(self.depth * var(tile)), loops,
            [self.numbered], tile=self.depth,
        )  # fmt: skip
        k, s = (writer.loop("step", size=x.n, tag="unr") for x in (deep, wide))
        points = {**self.batch, **across.at(var(s)), **along.at(var(k))}
        value = var(schedule.rules[operand])(*(points[index] for index in span))
        conditions = (*along.inside(var(k)), *across.inside(var(s)))
        if conditions:
            zero = schedule.dtypes[operand].type(0)
            value = p.If(p.LogicalAnd(conditions), value, zero)
        load = writer.assign(
            "load", made.at(deep.at(var(k)), wide.at(var(s))), value, [*loops, k, s],
            [self.numbered, *across.statements, *along.statements],
        )  # fmt: skip
        writer.note_apart(load)
        return made, load


def tile_entries(tile: int, depth: int) -> int:
    """The most that a tile takes of shared memory, in entries."""
    return max(tile * (depth + PADDING), depth * (tile + PADDING))
