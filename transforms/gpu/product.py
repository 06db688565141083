"""Products with much to reuse: tiles in shared memory, blocks in registers.

Source: Nath, Tomov and Dongarra, An Improved MAGMA GEMM for Fermi GPUs (2010).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent, Operand, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.gpu.grid import (
    GPUS,
    MOST_ITEMS,
    SHARED_BYTES,
    Flat,
    flat_of,
    has_plain_dtype,
)
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression
from feinsum.transforms.registry import Parameters, Space, Transform, register
from feinsum.transforms.roles import number, reuse

__all__ = ["GPU_PRODUCT"]

LEAST_REUSE = 4.0
"""Points of the loop nest per entry, below which tiles are no use."""


@dataclass(frozen=True)
class Sides:
    """The indices by where they occur, each kind as one.

    Attributes:
        batch: in both operands and the output.
        across: of the operand that has the last index of the output; neighbouring
            work-items have neighbouring values.
        along: of the other operand.
        summed: in the output nowhere.
        first: the position of the operand that has ``across``.
    """

    batch: Flat
    across: Flat
    along: Flat
    summed: Flat
    first: int


def sides_of(einsum: BatchedEinsum, extents: Mapping[str, Extent]) -> Sides | None:
    """The sides of a product of two operands; None if it is none.

    >>> from feinsum import array, einsum
    >>> product = einsum("bik,bkj->bij", array("A", (9, 8, 7)), array("B", (9, 7, 6)))
    >>> sides = sides_of(product, product.extents)
    >>> sides.batch.indices, sides.across.indices, sides.along.indices, sides.first
    (('b',), ('j',), ('i',), 1)
    """
    if einsum.n_operands != 2 or not einsum.output:
        return None
    terms = [set(term) for term in einsum.inputs]
    both = terms[0] & terms[1]
    last = next((i for i in reversed(einsum.output) if i not in both), None)
    if last is None:
        return None
    first = 0 if last in terms[0] else 1
    kinds = (
        [i for i in einsum.output if i in both],
        [i for i in einsum.output if i in terms[first] - both],
        [i for i in einsum.output if i in terms[1 - first] - both],
        sorted(einsum.summation_indices, key=_place(einsum)),
    )
    flats = [flat_of(kind, extents) for kind in kinds]
    if any(flat is None for flat in flats) or not all(kinds[1:]):
        return None
    batch, across, along, summed = (flat for flat in flats if flat is not None)
    return Sides(batch, across, along, summed, first)


def _place(einsum: BatchedEinsum) -> Callable[[str], tuple[int, str]]:
    """Where an index stands in the operands: late ones lie side by side."""

    def place(index: str) -> tuple[int, str]:
        terms = einsum.inputs
        return max(t.index(index) for t in terms if index in t), index

    return place


def gpu_product(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Tiles of both operands in shared memory, a block of sums in registers.

    Rewrite, for ``ik,kj->ij`` with j across and i along::

        for i, j:  out[i,j] = sum(k, A[i,k]*B[k,j])

        for group_j, group_i, y, x in parallel:
            acc[:,:] = 0
            for k_tile:
                B_tile[:,:], A_tile[:,:] = B(...), A(...)    # all work-items
                (barrier)
                for k:  for r, c:
                    acc[r,c] += A_tile[k, y + items_y*r] * B_tile[k, x + items_x*c]
                (barrier)
            for r, c:  out[...] = acc[r,c]

    Several indices of one kind are counted as one. The last tiles are not full.

    Parameters:
        across: length of a tile over the output indices of the first operand.
        along: over those of the second one.
        depth: over the summed indices.
        columns: of the block of sums of a work-item, from the first operand.
        rows: from the second one.
    """
    schedule = begin(t_unit, nest)
    sides = sides_of(nest.einsum, schedule.extents)
    if sides is None:
        raise TransformError(
            f"{nest.einsum.subscripts} is not a product of two operands with an output "
            "index and a sum each"
        )
    return _Product(schedule, sides, parameters).written().t_unit


@dataclass(frozen=True)
class _Side:
    """One operand's part of the output.

    Attributes:
        group: the iname of the tiles.
        item: the iname of the work-items.
        n_items: how many work-items there are.
        tile: its length.
        block: sums of a work-item.
    """

    flat: Flat
    group: str
    item: str
    n_items: int
    tile: int
    block: int

    def start(self) -> str:
        return f"{self.tile}*{self.group}"


class _Product:
    """Writes the loops; see :func:`gpu_product`."""

    def __init__(
        self, schedule: Schedule, sides: Sides, parameters: Parameters
    ) -> None:
        self.schedule, self.sides = schedule, sides
        self.writer = writer = NestWriter(schedule)
        self.depth = number(parameters, "depth")
        self.batch: list[str] = []
        if sides.batch.indices:
            self.batch = [writer.loop("batch", size_of(sides.batch), tag="g.0")]
        axis = len(self.batch)
        self.across = self._side(
            sides.across, parameters, ("across", "columns"), f"g.{axis}", "l.0"
        )
        self.along = self._side(
            sides.along, parameters, ("along", "rows"), f"g.{axis + 1}", "l.1"
        )
        self.tile = writer.loop("tile", f"{self.depth}*{{}} < {sides.summed.size}")
        self.grid = [*self.batch, self.across.group, self.along.group]
        self.items = [self.along.item, self.across.item]
        self.around = [*self.grid, *self.items]

    def _side(
        self,
        flat: Flat,
        parameters: Parameters,
        names: tuple[str, str],
        group_tag: str,
        item_tag: str,
    ) -> _Side:
        tile, block = (number(parameters, name) for name in names)
        group = self.writer.loop("group", f"{tile}*{{}} < {flat.size}", tag=group_tag)
        item = self.writer.loop("item", size=tile // block, tag=item_tag)
        return _Side(flat, group, item, tile // block, tile, block)

    def written(self) -> Schedule:
        """The schedule with the nest replaced.

        All operands of all rows are loaded before anything is added, so that there
        are two barriers for a tile.
        """
        first = self.sides.first
        wanted = {}
        for row in self.schedule.rows:
            wanted[row[first], True] = self.across
            wanted[row[1 - first], False] = self.along
        tiles: dict[tuple[str, bool], str] = {}
        loads: list[str] = []
        for (name, is_across), side in wanted.items():
            array, load = self._load(name, side)
            tiles[name, is_across] = array
            loads.append(load)
        for k, row in enumerate(self.schedule.rows):
            pair = tiles[row[first], True], tiles[row[1 - first], False]
            self._sum(k, *pair, loads)
        return self.writer.finished()

    def _load(self, operand: str, side: _Side) -> tuple[str, str]:
        """Fill a tile; neighbouring work-items read along the operand's last index."""
        writer, schedule = self.writer, self.schedule
        array = writer.array(
            f"{operand}_tile", (self.depth, side.tile), schedule.dtypes[operand],
            is_shared=True,
        )  # fmt: skip
        span = schedule.spans[operand]
        is_deep = bool(span) and span[-1] in self.sides.summed.indices
        x, y = self.across, self.along
        fast, slow = (x.item, x.n_items), (y.item, y.n_items)
        deep, wide = (fast, slow) if is_deep else (slow, fast)
        k_step = writer.loop(
            "step",
            f"{deep[0]} + {deep[1]}*{{0}} < {self.depth}",
            f"{self.depth}*{self.tile} + {deep[0]} + {deep[1]}*{{0}} "
            f"< {self.sides.summed.size}",
        )
        s_step = writer.loop(
            "step",
            f"{wide[0]} + {wide[1]}*{{0}} < {side.tile}",
            f"{side.start()} + {wide[0]} + {wide[1]}*{{0}} < {side.flat.size}",
        )
        k, s = (
            p.Sum((var(item), n * var(step)))
            for (item, n), step in ((deep, k_step), (wide, s_step))
        )
        points = {
            **self._batch_points(),
            **self.sides.summed.points(p.Sum((self.depth * var(self.tile), k))),
            **side.flat.points(p.Sum((side.tile * var(side.group), s))),
        }
        rule = var(schedule.rules[operand])
        value = rule(*(points[index] for index in span))
        loops = [*self.around, self.tile, k_step, s_step]
        return array, writer.assign("load", var(array)[k, s], value, loops)

    def _sum(self, row: int, across: str, along: str, loads: list[str]) -> None:
        writer, x, y = self.writer, self.across, self.along
        dtype = self.schedule.dtype_of_row(row)
        acc = var(writer.array("acc", (y.block, x.block), dtype))

        def block() -> tuple[list[str], tuple[Expression, Expression]]:
            inames = [writer.loop("r", size=y.block, tag="unr"),
                      writer.loop("c", size=x.block, tag="unr")]  # fmt: skip
            return inames, (var(inames[0]), var(inames[1]))

        loops, place = block()
        zero = writer.assign("zero", acc[place], dtype.type(0), [*self.around, *loops])
        k = writer.loop(
            "k", f"{self.depth}*{self.tile} + {{}} < {self.sides.summed.size}",
            size=self.depth,
        )  # fmt: skip
        loops, (r, c) = block()
        pair = (
            var(along)[var(k), p.Sum((var(y.item), y.n_items * r))],
            var(across)[var(k), p.Sum((var(x.item), x.n_items * c))],
        )
        first, second = pair if self.sides.first else pair[::-1]
        step = writer.assign(
            "add",
            acc[r, c],
            p.Sum((acc[r, c], p.Product((first, second)))),
            [*self.around, self.tile, k, *loops],
            [zero, *loads],
        )
        r, c = (
            writer.loop(
                name,
                f"{side.start()} + {side.item} + {side.n_items}*{{}} "
                f"< {side.flat.size}",
                size=side.block,
                tag="unr",
            )
            for name, side in (("r", y), ("c", x))
        )
        points = self._batch_points()
        for side, iname in ((x, c), (y, r)):
            inside = p.Sum((var(side.item), side.n_items * var(iname)))
            value = p.Sum((side.tile * var(side.group), inside))
            points |= side.flat.points(value)
        writer.store(row, acc[var(r), var(c)], points, [*self.around, r, c], [step])

    def _batch_points(self) -> dict[str, Expression]:
        return self.sides.batch.points(var(self.batch[0])) if self.batch else {}


def size_of(flat: Flat) -> str:
    return f"{{}} < {flat.size}"


TILES = (64, 32, 128, 16)
BLOCKS = (4, 2, 8, 1)


def _space(workload: Workload) -> Space | None:
    einsum = workload.einsum
    is_product = sides_of(einsum, einsum.extents) is not None
    if not is_product or not has_plain_dtype(einsum) or reuse(einsum) < LEAST_REUSE:
        return None
    return {
        "across": TILES,
        "along": TILES,
        "depth": (16, 8, 32),
        "columns": BLOCKS,
        "rows": BLOCKS,
    }


def _constraint(workload: Workload, parameters: Parameters) -> str | None:
    """A group of a warp or more, and tiles that every GPU has room for."""
    across, along, depth, columns, rows = (
        number(parameters, name)
        for name in ("across", "along", "depth", "columns", "rows")
    )
    n_items = across // columns * (along // rows)
    if not 32 <= n_items <= MOST_ITEMS:
        return f"{n_items} work-items in a group, expected 32 to {MOST_ITEMS}"
    n_bytes = sum(
        depth * (across if is_across else along) * op.dtype.itemsize
        for op, is_across in staged(workload.einsum)
    )
    if n_bytes > SHARED_BYTES:
        return f"{n_bytes} bytes of shared memory, of {SHARED_BYTES}"
    return None


def staged(einsum: BatchedEinsum) -> set[tuple[Operand, bool]]:
    """The operands that have tiles, and whether these are across."""
    sides = sides_of(einsum, einsum.extents)
    assert sides is not None
    return {(op, k == sides.first) for row in einsum.rows for k, op in enumerate(row)}


def _starts(workload: Workload) -> tuple[Parameters, ...]:
    """Small tiles for short indices, large ones for the rest."""
    names = ("across", "along", "depth", "columns", "rows")
    tried = ((32, 32, 16, 2, 2), (16, 16, 16, 1, 1), (128, 64, 8, 8, 4),
             (64, 128, 8, 4, 8), (128, 128, 8, 8, 8))  # fmt: skip
    starts = (dict(zip(names, values, strict=True)) for values in tried)
    return tuple(s for s in starts if _constraint(workload, s) is None)


GPU_PRODUCT = register(
    Transform(
        "gpu_product",
        1,
        "products of two operands, tiled in shared memory and in registers",
        _space,
        gpu_product,
        _constraint,
        devices=GPUS,
        starts=_starts,
    )
)
