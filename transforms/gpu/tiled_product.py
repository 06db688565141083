"""Products of two operands by tiles: what is the same however a tile is multiplied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import loopy as lp
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.raising import LoopNest
from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.parts import Parts
from feinsum.transforms.gpu.sides import Sides, sides_of, size_of
from feinsum.transforms.gpu.tile_shapes import Items, Side, Tiled, Turn
from feinsum.transforms.gpu.tiles import Key, TileWriter
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.copy_async import COPIES
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number

__all__ = ["ARGUMENTS", "COPY_WAYS", "TiledProduct"]

COPY_WAYS = ("asynchronous", "registers")
"""How arrays come to tiles; functions of arrays come through registers."""

FEW = 16
"""Tiles of the shorter side, up to which it is the faster one of the grid."""

MOST_ROWS = 1 << 20
"""Entries of the longer side: a grid has 65535 groups along its second axis."""

ARGUMENTS = "arguments"
"""Another way: what functions read is copied, and they are evaluated in the end."""


def _has_few(flat: Flat, tile: int, other: Flat) -> bool:
    """Whether a side has few tiles, but several: one group after the other has them,
    then, so that what they read of the longer side is still in the cache.
    """
    if not (flat.is_known and other.is_known):
        return False
    n = flat.number()
    return tile < n <= FEW * tile and n < other.number() <= MOST_ROWS


class TiledProduct(ABC):
    """Writes the loops over tiles; those of one tile are left to others.

    All have the parameters ``across``, ``along``, ``depth``, ``stages`` and ``copies``.
    """

    keeps_order: bool
    """Whether a tile lies in shared memory as its operand does in global memory."""

    def __init__(
        self, t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
    ) -> None:
        self.schedule = schedule = begin(t_unit, nest)
        piece = number(parameters, "cut") if "cut" in parameters else None
        sides = sides_of(nest.einsum, schedule.extents, piece)
        if sides is None:
            raise TransformError(
                f"{nest.einsum.subscripts} is not a product of two operands with an "
                "output index and a sum each"
            )
        self.sides: Sides = sides
        self.writer = writer = NestWriter(schedule)
        self.depth = number(parameters, "depth")
        batch: list[str] = []
        if sides.batch.indices:
            batch = [writer.loop("batch", size_of(sides.batch), tag="g.0")]
        self.batch = sides.batch.points(var(batch[0])) if batch else {}
        self.across, self.along = self._sides(parameters, piece, len(batch))
        shares = number(parameters, "shares") if "shares" in parameters else 1
        self.parts = Parts(writer, self.across, self.along, shares)
        grid = (*batch, self.across.group, self.along.group, *self.parts.loops)
        self.tiles = TileWriter(
            writer, self.items(parameters), sides.summed, self.depth, self.batch, grid,
            stages=number(parameters, "stages"),
            is_copied=parameters["copies"] != COPY_WAYS[1],
            is_late=parameters["copies"] == ARGUMENTS,
            keeps_order=self.keeps_order, dealt=self.parts.dealt,
        )  # fmt: skip
        self.around = self.tiles.around

    def _sides(
        self, parameters: Parameters, piece: int | None, axis: int
    ) -> tuple[Side, Side]:
        """Loops over the tiles of both sides, from an axis of the grid on."""
        x, y = self.sides.across, self.sides.along
        n_x, n_y = number(parameters, "across"), number(parameters, "along")
        is_turned = piece is not None and _has_few(y, n_y, x)
        across = self._side(x, n_x, axis + is_turned)
        along = self._side(y, n_y, axis + (not is_turned))
        if piece is not None and x.cut:
            across = replace(across, turn=Turn(piece, n_x // piece))
        return across, along

    def _side(self, flat: Flat, tile: int, axis: int) -> Side:
        group = self.writer.loop("group", f"{tile}*{{}} < {flat.size}", tag=f"g.{axis}")
        return Side(flat, group, tile)

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        first = self.sides.first
        wanted: dict[Key, tuple[str, Side]] = {}
        for row in self.schedule.rows:
            wanted[row[first], True] = row[first], self.across
            wanted[row[1 - first], False] = row[1 - first], self.along
        self.tiles.multiplied(wanted, self._sums)
        self.parts.add()
        return self.writer.finished().with_preamble(COPIES)

    def _sums(
        self, tiles: Mapping[Key, Tiled], loops: Names, after: Names
    ) -> tuple[Names, Names]:
        """Of all rows."""
        first = self.sides.first
        reads: list[str] = []
        last: list[str] = []
        for k, row in enumerate(self.schedule.rows):
            pair = tiles[row[1 - first], False], tiles[row[first], True]
            read, done = self.sum(k, *pair, loops, after)
            reads += read
            last.append(done)
        return tuple(reads), tuple(last)

    @abstractmethod
    def items(self, parameters: Parameters) -> Items:
        """Make the loops over the work-items of a group."""

    @abstractmethod
    def sum(
        self, row: int, along: Tiled, across: Tiled, loops: Names, after: Names
    ) -> tuple[Names, str]:
        """Write the sums of a row: zero, a step for the tiles, and the stores.

        Returns:
            The ids of what reads tiles, and of the last statement in the loops.
        """

    def unrolled(self, n: int) -> str:
        return self.writer.loop("u", size=n, tag="unr")
