"""Products of two operands by tiles: what is the same however a tile is multiplied.

That is their cost, too, and parts of sums: groups hand them to a second launch.

Source: Osama, Merrill, Cecka, Garland and Owens, Stream-K (2023), section 2: "split-k".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import loopy as lp
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum
from feinsum.raising import LoopNest
from feinsum.targets.cuda.figures import MOST_REGISTERS
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    LATENCY_S,
    LINE_BYTES,
    UNROLLED,
    WARP,
    Launch,
    itemsize_of,
    launch_s,
    loads,
    read_bytes,
)
from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.shares import (
    Dealt,
    Items,
    Points,
    Side,
    Tiled,
    Turn,
    points_of,
)
from feinsum.transforms.gpu.sides import Sides, sides_of, size_of
from feinsum.transforms.gpu.tiles import Key, TileWriter
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.copy_async import COPIES
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number

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
            predicates=(*rows.inside(at_row), *columns.inside(at_column)),
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
            predicates=x.inside(0),
        )  # fmt: skip
        points = {**y.at(0), **x.at(0)}
        writer.store(
            row, total, points, around, [step, *before], predicates=x.inside(0)
        )
        writer.note_apart(writer.schedule.instructions[row])


def _always(value: Expression) -> Any:
    return lambda _step: value


STEPS_OF_TILE = 4
"""Latency of a tile until it is in shared memory, in loads of a sum."""


class Tiles(NamedTuple):
    """Lengths of the tiles; ``stages`` of them are in shared memory at once.

    Attributes:
        piece: see :func:`feinsum.transforms.gpu.sides.sides_of`.
        shares: of the tiles along the summed indices.
    """

    across: int
    along: int
    depth: int
    stages: int
    piece: int | None = None
    shares: int = 1


def tiled_s(
    einsum: BatchedEinsum,
    machine: Machine,
    tiles: Tiles,
    *,
    n_items: int,
    cycles: float,
    shared_bytes: int,
    registers: int,
    chains: int,
    is_on_tensor_cores: bool = False,
) -> float:
    """Seconds of a product; tiles come from the caches once for each group.

    Args:
        n_items: of a work-group.
        cycles: in which a warp begins to read what it needs for a step of the sum.
        registers, chains: see :class:`feinsum.transforms.gpu.cost.Launch`.
    """
    gpu, sides = machine.gpu, sides_of(einsum, einsum.extents, tiles.piece)
    assert gpu is not None
    assert sides is not None
    if registers > MOST_REGISTERS:
        return inf
    n_tiles = -(-sides.summed.number() // (tiles.depth * tiles.shares))
    n_groups = (
        sides.batch.number()
        * tiles.shares
        * (
            -(-sides.across.number() // tiles.across)
            * -(-sides.along.number() // tiles.along)
        )
    )
    itemsize, n_rows = itemsize_of(einsum), einsum.batch_size
    held = {
        **sides.across.held(tiles.across),
        **sides.along.held(tiles.along),
        **sides.summed.held(tiles.depth),
    }
    tile_bytes = sum(read_bytes(einsum, *load, held) for load in loads(einsum))
    out = read_bytes(einsum, einsum.output, itemsize, held) * n_rows
    # tiles are read from the caches and written to shared memory
    requests = 2 * tile_bytes / LINE_BYTES + n_items / WARP * tiles.depth * cycles
    entries = tiles.depth * tiles.across * tiles.along
    product_s = launch_s(
        gpu,
        Launch(
            n_groups=n_groups,
            n_items=n_items,
            itemsize=itemsize,
            multiply_adds=n_groups * n_tiles * entries * n_rows,
            requests=n_groups * (n_tiles * requests + out / LINE_BYTES),
            cached_bytes=n_groups * (n_tiles * tile_bytes + out),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=STEPS_OF_TILE * n_tiles / max(tiles.stages - 1, 1),
            shared_bytes=shared_bytes,
            registers=registers,
            chains=chains,
            is_on_tensor_cores=is_on_tensor_cores,
        ),
    )
    return product_s + _parts_s(einsum, machine, tiles.shares)


def _parts_s(einsum: BatchedEinsum, machine: Machine, shares: int) -> float:
    """To write parts of sums, and to add them in a second launch."""
    gpu = machine.gpu
    assert gpu is not None
    if shares == 1:
        return 0.0
    n_bytes = points(einsum, einsum.output) * itemsize_of(einsum) * einsum.batch_size
    rate = gpu.bandwidth_bytes_per_s
    return gpu.launch_s + LATENCY_S * shares / UNROLLED + 2 * shares * n_bytes / rate
