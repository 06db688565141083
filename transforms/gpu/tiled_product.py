"""Products of two operands by tiles: what is the same however a tile is multiplied.

That is their cost, too, and parts of sums: groups hand them to a second launch.

An einsum of two operands is ``C[along, across] = sum(summed, ...)``: ``across`` are the
indices of the operand that has the last index of the output, so that neighbouring
work-items write neighbours, ``along`` are those of the other one::

                  across                     each group has a tile of C, and goes
               +----+----+----+              through the tiles of both operands
               |    | B0 |    |  depth
               |    | B1 |    |              share s of S has the tiles s, s + S, ...
               +----+----+----+              and leaves its part of C to the
     +-------+ +----+----+----+              second launch
     |       | |    |    |    |
     | A0 A1 | |    | C  |    |  along
     |       | |    |    |    |
     +-------+ +----+----+----+

Source: Osama, Merrill, Cecka, Garland and Owens, Stream-K (2023), section 2: "split-k".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

import loopy as lp
from pymbolic import parse, var
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum
from feinsum.raising import LoopNest
from feinsum.targets.cuda.figures import MAX_REGISTERS
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    LATENCY_S,
    LINE_BYTES,
    UNROLLED,
    WARP,
    LaunchWork,
    itemsize_of,
    launch_s,
    loads,
    read_bytes,
)
from feinsum.transforms.gpu.grid import Items, Points, add_up, points_of
from feinsum.transforms.gpu.layouts import Flat, Swizzle
from feinsum.transforms.gpu.sides import Sides, sides_of
from feinsum.transforms.gpu.tiles import Key, Side, Tiled, TileRange, TileWriter
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.copy_async import COPIES
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number

COPY_WAYS = ("asynchronous", "registers")
"""How arrays come to tiles; functions of arrays come through registers."""

ARGUMENTS = "arguments"
"""A third way: what functions read is copied, and they are evaluated on tiles."""

FEW = 16
"""Tiles of the shorter side, up to which it is the faster one of the grid."""

MAX_ROWS = 1 << 20
"""Entries of the longer side: a grid has 65535 groups along its second axis."""

ADDING_ITEMS = 128
"""Work-items of a group that adds parts of sums."""


def _has_few_tiles(flat: Flat, tile: int, other: Flat) -> bool:
    """Whether a side has two or more tiles, but few.

    Work-groups with the same tile of the longer side then follow each other, and find
    it in the cache.
    """
    if not (flat.is_known and other.is_known):
        return False
    n = flat.n_values
    return tile < n <= FEW * tile and n < other.n_values <= MAX_ROWS


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
            batch = [writer.loop("batch", f"{{}} < {sides.batch.size}", tag="g.0")]
        self.batch = sides.batch.unravel(var(batch[0])) if batch else {}
        self.across, self.along = self._sides(parameters, piece, len(batch))
        n_shares = number(parameters, "shares") if "shares" in parameters else 1
        self.parts = PartialSums(writer, self.across, self.along, n_shares)
        # outermost first; Loopy maps them to axes of the grid by their tags alone
        grid = (*batch, self.across.group, self.along.group, *self.parts.loops)
        self.tiles = TileWriter(
            writer, self.items(parameters), sides.summed, self.depth, self.batch, grid,
            stages=number(parameters, "stages"),
            is_copied=parameters["copies"] != COPY_WAYS[1],
            is_late=parameters["copies"] == ARGUMENTS,
            keeps_order=self.keeps_order, tile_range=self.parts.tile_range,
        )  # fmt: skip
        self.around = self.tiles.around

    def _sides(
        self, parameters: Parameters, piece: int | None, axis: int
    ) -> tuple[Side, Side]:
        """Loops over the tiles of both sides, from an axis of the grid on."""
        x, y = self.sides.across, self.sides.along
        n_x, n_y = number(parameters, "across"), number(parameters, "along")
        # groups are started along the first axis of the grid first
        is_exchanged = piece is not None and _has_few_tiles(y, n_y, x)
        across = self._side(x, n_x, axis + is_exchanged)
        along = self._side(y, n_y, axis + (not is_exchanged))
        if piece is not None and x.cut:
            across = replace(across, swizzle=Swizzle(piece, n_x // piece))
        return across, along

    def _side(self, flat: Flat, tile: int, axis: int) -> Side:
        group = self.writer.loop("group", f"{tile}*{{}} < {flat.size}", tag=f"g.{axis}")
        return Side(flat, group, tile)

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        first = self.sides.first
        wanted: dict[Key, tuple[str, Side]] = {}
        for row in self.schedule.rows:
            # rows that share an operand share its tiles; one that is on both sides has
            # two
            wanted[row[first], True] = row[first], self.across
            wanted[row[1 - first], False] = row[1 - first], self.along
        self.tiles.write_products(wanted, self._sums)
        self.parts.add_up()
        return self.writer.finished().with_preamble(COPIES)

    def _sums(
        self, tiles: Mapping[Key, Tiled], loops: Names, after: Names
    ) -> tuple[Names, Names]:
        """Write the sums of all rows of the batch."""
        first = self.sides.first
        reads: list[str] = []
        last: list[str] = []
        for k, row in enumerate(self.schedule.rows):
            pair = tiles[row[1 - first], False], tiles[row[first], True]
            row_reads, row_last = self.sum(k, *pair, loops, after)
            reads += row_reads
            last.append(row_last)
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


class PartialSums:
    """The parts of sums that groups leave to a second launch, if there are shares.

    Rewrite::

        for y, x:  out[y,x] = sum(k, A[y,k]*B[k,x])

        for share, y, x:  part[share,y,x] = sum(k in share, A[y,k]*B[k,x])
        (second launch)
        for y, x:  out[y,x] = sum(share, part[share,y,x])

    Args:
        n: shares of the tiles along the summed indices.

    Attributes:
        loops: over the shares.
        tile_range: the tiles of a group.
    """

    def __init__(self, writer: NestWriter, across: Side, along: Side, n: int) -> None:
        self.writer, self.across, self.along, self.n = writer, across, along, n
        self.loops: Names = ()
        self.tile_range = TileRange()
        if n > 1:
            # the third axis: only products without batch indices have it free
            share = writer.loop("share", size=n, tag="g.2")
            self.loops, self.tile_range = (share,), TileRange(share, n)
        self.stored: dict[int, tuple[Expression, str]] = {}

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
        # sides stay flat: the indices are taken apart by the second launch, once
        at = var(rows.value)[at_row], var(columns.value)[at_column]
        stored = writer.assign(
            "part", part[(var(self.tile_range.share), *at)], value, loops, after,
            predicates=(*rows.inside(at_row), *columns.inside(at_column)),
        )  # fmt: skip
        writer.note_apart(stored)
        self.stored[row] = part, stored

    def add_up(self) -> None:
        """Write the second launch, if there is one."""
        if not self.stored:
            return
        writer, stored = self.writer, [insn_id for _, insn_id in self.stored.values()]
        after = (*stored, writer.launch_end(stored))
        n = ADDING_ITEMS
        group = writer.loop("group", f"{n}*{{}} < {self.across.flat.size}", tag="g.0")
        line = writer.loop("line", f"{{}} < {self.along.flat.size}", tag="g.1")
        item = writer.loop("item", size=n, tag="l.0")
        around = (group, line, item)
        at_x = p.Sum((n * var(group), var(item)))
        x = points_of(
            writer, self.across.flat, 1, lambda _: at_x, around, after, tile=n
        )
        y = points_of(
            writer, self.along.flat, 1, lambda _: var(line), around, after, tile=1
        )
        before = (*after, *y.statements, *x.statements)
        for row, (part, _) in self.stored.items():
            share = writer.loop("share", size=self.n)
            term = part[var(share), var(y.value)[0], var(x.value)[0]]
            total, step = add_up(
                writer, writer.schedule.dtype_of_row(row), term, around, [share],
                before, conditions=x.inside(0),
            )  # fmt: skip
            points = {**y.at(0), **x.at(0)}
            before_store = [step, *before]
            writer.store(
                row, total, points, around, before_store, predicates=x.inside(0)
            )
            writer.note_apart(writer.schedule.instructions[row])


STEPS_OF_TILE = 4
"""Latency of a tile until it is in shared memory, in loads of a sum."""


class TileSizes(NamedTuple):
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
    tiles: TileSizes,
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
        registers, chains: see :class:`feinsum.transforms.gpu.cost.LaunchWork`.
    """
    gpu, sides = machine.gpu, sides_of(einsum, einsum.extents, tiles.piece)
    assert gpu is not None
    assert sides is not None
    if registers > MAX_REGISTERS:
        return inf
    n_rows = einsum.batch_size
    n_groups, n_tiles = _n_groups_and_tiles(sides, tiles)
    tile_bytes, out_bytes = _bytes_of_group(einsum, sides, tiles)
    # tiles are read from the caches and written to shared memory
    requests = 2 * tile_bytes / LINE_BYTES + n_items / WARP * tiles.depth * cycles
    entries = tiles.depth * tiles.across * tiles.along
    launch = LaunchWork(
        n_groups=n_groups,
        n_items=n_items,
        itemsize=itemsize_of(einsum),
        # also of ragged tiles, which are multiplied as if they were full
        multiply_adds=n_groups * n_tiles * entries * n_rows,
        requests=n_groups * (n_tiles * requests + out_bytes / LINE_BYTES),
        cached_bytes=n_groups * (n_tiles * tile_bytes + out_bytes),
        distinct_bytes=sum(distinct_bytes(einsum)),
        # tiles that are ahead wait together
        steps=STEPS_OF_TILE * n_tiles / max(tiles.stages - 1, 1),
        shared_bytes=shared_bytes,
        registers=registers,
        chains=chains,
        is_on_tensor_cores=is_on_tensor_cores,
    )
    return launch_s(gpu, launch) + _adding_s(einsum, machine, tiles.shares)


def _n_groups_and_tiles(sides: Sides, tiles: TileSizes) -> tuple[int, int]:
    """Work-groups of a product, and tiles along the sum that each has."""
    n_tiles = -(-sides.summed.n_values // (tiles.depth * tiles.shares))
    n_of_output = (
        -(-sides.across.n_values // tiles.across)
        * -(-sides.along.n_values // tiles.along)
    )  # fmt: skip
    return sides.batch.n_values * tiles.shares * n_of_output, n_tiles


def _bytes_of_group(
    einsum: BatchedEinsum, sides: Sides, tiles: TileSizes
) -> tuple[float, float]:
    """What a group reads for a step along the sum, and what it writes in all."""
    box = {
        **sides.across.box_of(tiles.across),
        **sides.along.box_of(tiles.along),
        **sides.summed.box_of(tiles.depth),
    }
    tile_bytes = sum(read_bytes(einsum, *load, box) for load in loads(einsum))
    of_row = read_bytes(einsum, einsum.output, itemsize_of(einsum), box)
    return tile_bytes, of_row * einsum.batch_size


def _adding_s(einsum: BatchedEinsum, machine: Machine, shares: int) -> float:
    """Predict the seconds to write parts of sums and to add them."""
    gpu = machine.gpu
    assert gpu is not None
    if shares == 1:
        return 0.0
    n_bytes = points(einsum, einsum.output) * itemsize_of(einsum) * einsum.batch_size
    # parts are written once and read once
    rate = gpu.bandwidth_bytes_per_s
    return gpu.launch_s + LATENCY_S * shares / UNROLLED + 2 * shares * n_bytes / rate
