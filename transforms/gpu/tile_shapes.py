"""Tiles of operands in shared memory: where entries lie, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.shares import are_dealt_evenly
from feinsum.transforms.primitives.schedule import Expression

__all__ = [
    "Dealt",
    "Items",
    "Side",
    "Tile",
    "Tiled",
    "Turn",
    "tile_entries",
    "uneven_tile",
]

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
