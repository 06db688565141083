"""Tiles in shared memory: what each work-item has of one, and where entries lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from loopy.symbolic import TypeCast
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import Extent
from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.schedule import Expression

LEAST_WIDTH = 4
"""Neighbours that read together: 32 bytes of double precision."""

MOST_COUNTED = 1 << 31
"""Up to which numbers are counted in 32 bits, in which GPUs divide faster."""


@dataclass(frozen=True)
class Share:
    """A work-item's part of an axis: ``first``, ``first + stride`` and so on."""

    first: Expression
    stride: int
    n: int

    def at(self, step: Expression) -> Expression:
        return p.Sum((self.first, self.stride * step))

    def after(self, start: Expression) -> Callable[[Expression], Expression]:
        """The values of an axis that begins at ``start``."""
        return lambda step: p.Sum((start, self.at(step)))


def shares_of(
    slow: int, fast: int, n_items: int, item: Expression, lanes: int = 1
) -> tuple[Share, Share]:
    """Distribute a tile of ``slow`` times ``fast`` entries, neighbours along ``fast``.

    Args:
        item: the number of the work-item, of ``n_items``.

        lanes: contiguous entries that go together; the values are those of the
            first one.

    >>> slow, fast = shares_of(16, 128, 256, var("item"))
    >>> (slow.stride, slow.n), (fast.stride, fast.n)
    ((2, 8), (128, 1))
    """
    if lanes > 1:
        few, many = shares_of(slow, fast // lanes, n_items, item)
        first = p.Product((lanes, many.first))
        return few, Share(first, lanes * many.stride, many.n)
    width = _width(slow, fast, n_items)
    if width == n_items:
        return Share(0, 1, slow), Share(item, n_items, fast // n_items)
    rows = n_items // width
    return (
        Share(p.FloorDiv(item, width), rows, slow // rows),
        Share(p.Remainder(item, width), width, fast // width),
    )


def _width(slow: int, fast: int, n_items: int) -> int:
    """The most neighbours along ``fast`` with which all have equally many; 0 if none.

    >>> _width(16, 64, 128), _width(16, 80, 128), _width(8, 80, 128)
    (64, 16, 16)
    """
    widths = (w for w in range(min(fast, n_items), LEAST_WIDTH - 1, -1)
              if fast % w == n_items % w == 0)  # fmt: skip
    return next((w for w in widths if slow % (n_items // w) == 0), 0)


@dataclass(frozen=True)
class RaggedShare(Share):
    """A share that may go beyond the end of its axis, or into that of others.

    Attributes:
        most: above all its values.
        is_idle: whether work-items whose first value is the stride or more have none.
    """

    most: int
    is_idle: bool


def ragged_shares(
    slow: int, fast: int, n_items: int, item: Expression
) -> tuple[RaggedShare, RaggedShare]:
    """Like :func:`shares_of`, of tiles of any shape.

    >>> slow, fast = ragged_shares(32, 35, 160, var("item"))
    >>> (slow.stride, slow.n, slow.most, slow.is_idle), (fast.n, fast.most)
    ((4, 8, 33, True), (1, 35))
    """
    if fast > n_items:
        n = -(-fast // n_items)
        return (
            RaggedShare(0, 1, slow, slow, False),
            RaggedShare(item, n_items, n, n * n_items, False),
        )
    rows = n_items // fast
    n, n_firsts = -(-slow // rows), -(-n_items // fast)
    return (
        RaggedShare(
            p.FloorDiv(item, fast), rows, n, rows * (n - 1) + n_firsts, n_firsts > rows
        ),
        RaggedShare(p.Remainder(item, fast), fast, 1, fast, False),
    )


def are_dealt_evenly(slow: int, fast: int, n_items: int) -> bool:
    """Whether :func:`shares_of` gives every work-item equally many entries."""
    return _width(slow, fast, n_items) > 0


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
    tile: int | None,
) -> Points:
    """Compute the indices that make up one, a division for each.

    Rewrite, for indices i and j, of which j is the faster, of extent J::

        for step:  value[step] = at(step)
        for step:  j[step] = value[step] % J
        for step:  i[step] = value[step] / J

    Args:
        n: how many steps there are.
        tile: the length of the tiles that they are in; None if these go beyond the end.
    """
    # unsigned, as C rounds quotients of signed numbers towards zero, not down
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
    if tile is None or not is_even(flat, tile):
        limit = writer.array("limit", (), count)
        done.append(writer.assign("limit", var(limit), size_of(flat), loops, after))
    value = rest = assigned("value", count, at)
    found: dict[str, list[tuple[int, str]]] = {}
    point = np.dtype(np.int64)
    for index, factor, extent in flat.parts[:0:-1]:
        part = assigned(index, point, _applied(p.Remainder, rest, extent))
        rest = assigned("rest", count, _applied(p.FloorDiv, rest, extent))
        found.setdefault(index, []).append((factor, part))
    index, factor, _ = flat.parts[0]
    part = assigned(index, point, lambda step: var(rest)[step])
    found.setdefault(index, []).append((factor, part))
    arrays = {
        index: parts[0][1] if len(parts) == 1 else assigned(index, point, _sum(parts))
        for index, parts in found.items()
    }
    return Points(arrays, value, limit, tuple(done))


def _sum(parts: Sequence[tuple[int, str]]) -> Callable[[Expression], Expression]:
    return lambda step: p.Sum(
        tuple(factor * var(array)[step] for factor, array in parts)
    )


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


def size_of(flat: Flat) -> Expression:
    """How many values several indices have together."""
    return p.Product(
        tuple(
            n if isinstance(n, int) else TypeCast(np.int64, var(n.name))
            for n in flat.extents
        )
    )


def _fixed_size(flat: Flat) -> int | None:
    """The number of values, if it is known."""
    fixed = [n for n in flat.extents if isinstance(n, int)]
    return prod(fixed) if len(fixed) == len(flat.extents) else None


PADDING = 4
"""Entries after each row of a tile: 16 that lie four by four, or in a row, are then in
16 banks of shared memory, where an entry has 8 bytes and rows are multiples of 8."""


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
class Turn:
    """The order of a tile along a side that is cut in pieces.

    Operands are read piece by piece, results are written across pieces. In shared
    memory, one entry after each run keeps those of a piece in different banks.

    Attributes:
        piece: its length; 1 if both orders are the same.
        run: how many pieces a tile has.
    """

    piece: int = 1
    run: int = 0

    @property
    def padding(self) -> int:
        """Entries after each row of a tile."""
        # one for each run, and as many as make it PADDING in the 16 banks
        return PADDING if self.piece == 1 else self.piece + (PADDING - self.piece) % 16

    def place(self, wide: Expression) -> Expression:
        """In shared memory, of the entries in the order of results."""
        return wide if self.piece == 1 else p.Sum((wide, p.FloorDiv(wide, self.run)))

    def place_of_load(self, wide: Expression) -> Expression:
        """The same in the order in which they are read."""
        if self.piece == 1:
            return wide
        row = p.Product((self.run + 1, p.Remainder(wide, self.piece)))
        return p.Sum((row, p.FloorDiv(wide, self.piece)))

    def load_of(self, wide: Expression) -> Expression:
        """From the order of results to that in which entries are read.

        >>> print(Turn(8, 16).load_of(var("k")))
        8*(k % 16) + k // 16
        """
        if self.piece == 1:
            return wide
        row = p.Product((self.piece, p.Remainder(wide, self.run)))
        return p.Sum((row, p.FloorDiv(wide, self.run)))


@dataclass(frozen=True)
class Tile:
    """Tiles of an operand in shared memory, of which several are there at once.

    Attributes:
        is_deep: whether entries along the summed indices lie side by side.
        turn: where entries along the others lie.
    """

    array: str
    is_deep: bool
    turn: Turn

    def at(self, slot: Expression, deep: Expression, wide: Expression) -> p.Subscript:
        """The entry at places along the summed indices and along the others."""
        return self._entry(slot, deep, self.turn.place(wide))

    def loaded(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        """The same, by its place in the order in which operands are read."""
        return self._entry(slot, deep, self.turn.place_of_load(wide))

    def _entry(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        place = (wide, deep) if self.is_deep else (deep, wide)
        return var(self.array)[(slot, *place)]


@dataclass(frozen=True)
class Side:
    """One operand's part of the output, cut into tiles.

    Attributes:
        group: the iname of the tiles.
        tile: its length.
        turn: the order of its entries.
    """

    flat: Flat
    group: str
    tile: int
    turn: Turn = Turn()

    @property
    def start(self) -> Expression:
        return self.tile * var(self.group)


@dataclass(frozen=True)
class Dealt:
    """Every so many-th tile along the summed indices, from one on.

    Attributes:
        share: the iname of the first one; empty for zero.
        n: in how many shares they are dealt out.
    """

    share: str = ""
    n: int = 1

    @property
    def text(self) -> str:
        """A tile by its number in a share, in isl's syntax with ``{}`` for that."""
        return f"{self.share} + {self.n}*{{}}" if self.share else "{}"

    def tile(self, number: Expression) -> Expression:
        return p.Sum((var(self.share), self.n * number)) if self.share else number


@dataclass(frozen=True)
class Tiled:
    """An operand at the present step of the loop over tiles.

    Attributes:
        tiles: of what it reads.
        slot: the scalar that says which ones they are.
        value: of the operand, given the entries and the place along the sums.
    """

    tiles: tuple[Tile, ...]
    slot: str
    dtype: np.dtype[Any]
    value: Callable[[Sequence[Expression], Expression], Expression]

    def at(self, deep: Expression, wide: Expression) -> Expression:
        entries = [tile.at(var(self.slot), deep, wide) for tile in self.tiles]
        return self.value(entries, deep)


def uneven_tile(tiles: Sequence[int], depth: int, n_items: int) -> str | None:
    """Why work-items cannot share tiles evenly, along either axis; None if they can."""
    for tile in tiles:
        if not all(
            are_dealt_evenly(*shape, n_items)
            for shape in ((tile, depth), (depth, tile))
        ):
            return f"{n_items} work-items do not share {tile} times {depth} entries"
    return None


def tile_entries(tile: int, depth: int, turn: Turn) -> int:
    """The most that a tile takes of shared memory, in entries."""
    return max(tile * (depth + PADDING), depth * (tile + turn.padding))
