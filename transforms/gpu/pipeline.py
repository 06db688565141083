"""The loop over tiles of operands in shared memory: who loads what, and when.

A tile of an operand is ``depth`` values of the summed indices by ``side.tile`` of the
others; ``stages`` of them are in shared memory at once. With three stages, copies are
two tiles ahead of the products::

    tile     0        1        2        3
    copy     0  1 |   2    |   3    |   4          (| is a barrier)
    wait          0   |    1   |    2   |    3     (all copies but the last one)
    multiply      0   |    1   |    2   |    3
    slot of the copy  2        0        1          later = (tile + 2) % 3

One barrier for each tile is enough: behind it, all work-items have their copies of this
tile, and none still reads the tile before, whose slot is the one that is filled next.

An operand is an array, or a function that the kernel computes where it is read, such as
``A(i,k) = scale*0.5*(a[i,k] + b[i,k])``. An array is copied without registers, by
instructions that run while products are computed. A function is computed into registers
before the products and stored after them; or ``a`` and ``b`` are copied, and the rest
is evaluated on entries of their tiles.

Source: NVIDIA, CUTLASS, "Efficient GEMM in CUDA", "Pipelining".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import loopy as lp
import numpy as np
from loopy.symbolic import (
    SubstitutionMapper,
    SubstitutionRuleExpander,
    WalkMapper,
    get_dependencies,
)
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.transforms.gpu.layouts import (
    UNSWIZZLED,
    Flat,
    Share,
    Swizzle,
    is_evenly_partitioned,
    partition,
)
from feinsum.transforms.gpu.tiles import GroupWriter, Items, Point, Points
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.copy_async import (
    VECTOR_BYTES,
    AsyncCopy,
    await_groups,
    close_group,
    copy_async,
)
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.primitives.vector_store import flat_subscript

COPY_WAYS = ("asynchronous", "registers")
"""How arrays come to tiles; functions of arrays come through registers."""

ARGUMENTS = "arguments"
"""A third way: what functions read is copied, and they are evaluated on tiles."""

Key: TypeAlias = tuple[str, bool]
"""An operand, and whether it is the one that is across."""


@dataclass(frozen=True)
class OperandSource:
    """The array that an operand is, and where its entries lie.

    Attributes:
        arguments: those of its rule.
        offset: of an entry, in terms of the arguments.
        neighbour: the argument along which entries lie side by side; may be empty.
    """

    array: str
    arguments: tuple[str, ...]
    offset: Expression
    neighbour: str

    def at(self, values: Sequence[Expression]) -> Expression:
        """Return the offset of an entry for values of the arguments."""
        value_of = dict(zip(self.arguments, values, strict=True))
        offset: Expression = SubstitutionMapper(make_subst_func(value_of))(self.offset)
        return offset


def source_of(schedule: Schedule, operand: str) -> OperandSource | None:
    """Find the array that an operand is; None if it takes arithmetic."""
    rule = schedule.kernel.substitutions[schedule.rules[operand]]
    if not isinstance(rule.expression, p.Subscript):
        return None
    dtype = schedule.dtypes[operand]
    return _source_of(schedule.kernel, rule.expression, rule.arguments, dtype)


def _source_of(
    kernel: lp.LoopKernel, entry: p.Subscript, arguments: Names, dtype: np.dtype[Any]
) -> OperandSource | None:
    """Find the array of a subscript; None if its entries cannot be copied."""
    array = kernel.arg_dict.get(entry.aggregate.name)
    if array is None or array.dtype.numpy_dtype != dtype or array.offset:
        return None
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    # cp.async moves 4, 8 or 16 bytes
    if dtype.itemsize not in (4, 8) or None in strides:
        return None
    # entries are neighbours along the last argument only if no other axis has it
    last, *others = entry.index_tuple[::-1]
    is_alone = isinstance(last, p.Variable) and not any(
        last.name in get_dependencies(other) for other in others
    )
    neighbour = last.name if is_alone and strides[-1] == 1 else ""
    offset = flat_subscript(kernel, entry)
    return OperandSource(array.name, arguments, offset, neighbour)


class Reads(NamedTuple):
    """A function of entries of arrays, which are copied before it is evaluated.

    Attributes:
        value: of the function, given those of the entries.
    """

    sources: tuple[OperandSource, ...]
    value: Callable[[Sequence[Expression]], Expression]


def reads_of(schedule: Schedule, operand: str) -> Reads | None:
    """Find the entries of which an operand is a function; None if indices matter."""
    kernel, dtype = schedule.kernel, schedule.dtypes[operand]
    rule = kernel.substitutions[schedule.rules[operand]]
    body = SubstitutionRuleExpander(kernel.substitutions)(rule.expression)
    entries: list[p.Subscript] = []

    class Collector(WalkMapper):  # type: ignore[misc]
        def map_subscript(self, expr: p.Subscript) -> None:
            entries.append(expr)

    Collector()(body)
    # by their text, so that the same kernel gets the same tiles in every process
    entries = sorted({*entries}, key=str)

    def value(values: Sequence[Expression]) -> Expression:
        value_of = dict(zip(entries, values, strict=True))
        result: Expression = SubstitutionMapper(value_of.get)(body)
        return result

    sources = [_source_of(kernel, entry, rule.arguments, dtype) for entry in entries]
    copied = tuple(source for source in sources if source is not None)
    # what is left without the entries may not depend on the point: tiles lack it
    rest = get_dependencies(value([0] * len(entries)))
    is_function = bool(copied) and len(copied) == len(entries)
    return (
        Reads(copied, value) if is_function and not {*rule.arguments} & rest else None
    )


@dataclass(frozen=True)
class Side:
    """One operand's part of the output, cut into tiles.

    Attributes:
        group: the iname of the tiles.
        tile: its length.
        swizzle: the order of its entries.
    """

    flat: Flat
    group: str
    tile: int
    swizzle: Swizzle = UNSWIZZLED

    @property
    def start(self) -> Expression:
        return self.tile * var(self.group)


@dataclass(frozen=True)
class SharedTile:
    """Tiles of an operand in shared memory, of which several are there at once.

    Attributes:
        is_deep: whether entries along the summed indices lie side by side.
        swizzle: where entries along the others lie.
    """

    array: str
    is_deep: bool
    swizzle: Swizzle

    def at(self, slot: Expression, deep: Expression, wide: Expression) -> p.Subscript:
        """Return the entry by its places along the sums, and along the others."""
        return self._entry(slot, deep, self.swizzle.position(wide))

    def loaded(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        """Return the entry by its place in the order in which operands are read."""
        return self._entry(slot, deep, self.swizzle.position_of_load(wide))

    def _entry(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        at = (wide, deep) if self.is_deep else (deep, wide)
        return var(self.array)[(slot, *at)]


@dataclass(frozen=True)
class Tiled:
    """An operand at the present step of the loop over tiles.

    Attributes:
        tiles: of what it reads.
        slot: the scalar that says which ones they are.
        value: of the operand, given the entries and the place along the sums.
    """

    tiles: tuple[SharedTile, ...]
    slot: str
    dtype: np.dtype[Any]
    value: Callable[[Sequence[Expression], Expression], Expression]

    def at(self, deep: Expression, wide: Expression) -> Expression:
        entries = [tile.at(var(self.slot), deep, wide) for tile in self.tiles]
        return self.value(entries, deep)


@dataclass(frozen=True)
class Load:
    """An operand, and the way that it takes to its tiles.

    Attributes:
        deep, wide: what a work-item has of a tile.
        partitioned: the ids of what computes where these begin.
        points: of the indices that are not summed.
        source: if it is copied; else it is computed in registers first.
        lanes: entries of one copy.
        registers: the array of these; empty for copies.
    """

    operand: str
    tile: SharedTile
    deep: Share
    wide: Share
    partitioned: Names
    points: Points
    source: OperandSource | None
    lanes: int
    registers: str


class TileLoop:
    """Writes the loop over tiles, in which later ones are loaded ahead.

    Rewrite::

        for tile:  acc += A(tile)*B(tile)

        A_tile[0], B_tile[0] = A(0), B(0)
        for tile:
            (barrier)
            A_tile[(tile + 1) % 2], B_tile[(tile + 1) % 2] = A(tile + 1), B(tile + 1)
            acc += A_tile[tile % 2]*B_tile[tile % 2]

    Entries beyond the extents are zero, so that whoever reads a tile reads all of it.

    Args:
        batch: the values of indices that are the same for a whole tile.
        grid: the inames of the work-groups.
        stages: how many tiles of an operand are there at once, 2 or more.
        copies: one of ``COPY_WAYS``, or ``ARGUMENTS``.
        keeps_order: whether entries that are neighbours in an operand are so in its
            tile; else those are that are not along the summed indices.
        shares: the iname of the share of the tiles that a group has, and their number:
            share s of S has the tiles s, s + S, ...; by default, a group has all.
    """

    def __init__(
        self,
        writer: GroupWriter,
        items: Items,
        summed: Flat,
        depth: int,
        batch: Point,
        grid: Sequence[str],
        *,
        stages: int,
        copies: str,
        keeps_order: bool,
        shares: tuple[str, int] = ("", 1),
    ) -> None:
        self.writer, self.items = writer, items
        self.summed, self.depth, self.batch = summed, depth, batch
        self.stages, self.keeps_order, self.shares = stages, keeps_order, shares
        self.is_copied, self.is_late = copies != COPY_WAYS[1], copies == ARGUMENTS
        self.around = (*grid, *reversed(items.inames))
        self.item = writer.array("number", (), np.dtype(np.uint32))
        self.numbered = writer.assign(
            "number", var(self.item), items.number, self.around
        )

    def write_products(
        self,
        wanted: Mapping[Key, tuple[str, Side]],
        multiply: Callable[[Mapping[Key, Tiled], Names, Names], tuple[Names, Names]],
    ) -> None:
        """Write the loop.

        Args:
            wanted: operands with the side that each has.
            multiply: given the tiles, the loops and what has to be done before, it
                writes the products; the ids of those that read tiles, and of the last
                ones.
        """
        writer, n_ahead = self.writer, self.stages - 1
        by_key = {key: self._loads(*pair) for key, pair in wanted.items()}
        loads = [load for several in by_key.values() for load in several]
        # all tiles but one come before the loop
        early = writer.loop("early", size=n_ahead, tag="unr")
        first = [
            self._load_tile(load, var(early), [*self.around, early], [], var(early))
            for load in loads
        ]
        closed = self._close_copies([*self.around, early], first)
        share, n_shares = self.shares
        number = f"{share} + {n_shares}*{{}}" if share else "{}"
        tile = writer.loop("tile", f"{self.depth}*({number}) < {self.summed.size}")
        loops = (*self.around, tile)
        now, set_now = writer.scalar("now", p.Remainder(var(tile), self.stages), loops)
        later = p.Sum((var(tile), n_ahead))
        slot, set_slot = writer.scalar("slot", p.Remainder(later, self.stages), loops)
        before = [*closed, set_now, set_slot]
        if any(load.source is not None for load in loads):
            # stages - 1 tiles are on their way; the oldest has to be there
            wait = partial(await_groups, self.stages - 2)
            before = [writer.add("wait", wait, loops, before)]
        # one barrier for each tile: after it, nobody reads the one before, whose
        # place is filled next
        barrier = (writer.barrier(loops, before), set_now, set_slot)
        begun = [
            self._load_tile(
                load, later, loops, barrier, var(slot) if load.source else None
            )
            for load in loads
        ]
        closed = self._close_copies(loops, begun)
        size, sized = self._summed_size(wanted)
        tiled = {
            key: self._tiled(wanted[key][0], several, now, self._tile(var(tile)), size)
            for key, several in by_key.items()
        }
        reads, last = multiply(tiled, loops, (*barrier, *closed, *sized))
        after = [*last, *begun, set_slot]
        settled = [
            self._settle(load, var(slot), loops, after)
            for load in loads
            if load.source is None
        ]
        # the barrier and the waits above order these, which Loopy cannot see
        writer.note_ordered(*first, *begun, *reads, *settled)

    def _tile(self, number: Expression) -> Expression:
        """Return a tile of all by its number in the share."""
        share, n = self.shares
        return p.Sum((var(share), n * number)) if share else number

    def _loads(self, operand: str, side: Side) -> list[Load]:
        """Make one of an operand, or one of each array that it is a function of."""
        reads = self._reads(operand)
        if reads is not None:
            return [self._load(operand, side, source) for source in reads.sources]
        source = source_of(self.writer.schedule, operand) if self.is_copied else None
        return [self._load(operand, side, source)]

    def _reads(self, operand: str) -> Reads | None:
        """Find what it reads, if it is a function that is evaluated in the end."""
        schedule = self.writer.schedule
        if not self.is_late or source_of(schedule, operand) is not None:
            return None
        return reads_of(schedule, operand)

    def _summed_size(
        self, wanted: Mapping[Key, tuple[str, Side]]
    ) -> tuple[Expression, Names]:
        """Return the number of terms, and the ids of what computes it."""
        is_late = any(
            self._reads(operand) is not None for operand, _ in wanted.values()
        )
        if self.summed.is_known or not is_late:
            return self.summed.size_in_c, ()
        # in a scalar, as Loopy understands no casts where it checks bounds
        size, computed = self.writer.scalar("size", self.summed.size_in_c, self.around)
        return var(size), (computed,)

    def _tiled(
        self,
        operand: str,
        loads: Sequence[Load],
        now: str,
        tile: Expression,
        size: Expression,
    ) -> Tiled:
        """Return the tiles that an operand reads; it is zero beyond the sums."""
        reads, tiles = self._reads(operand), tuple(load.tile for load in loads)
        dtype = self.writer.schedule.dtypes[operand]
        if reads is None:
            return Tiled(tiles, now, dtype, lambda entries, _: entries[0])
        start = self.depth * tile

        def value(entries: Sequence[Expression], deep: Expression) -> Expression:
            in_full = reads.value(entries)
            if self.summed.is_divided_by(self.depth):
                return in_full
            # the entries beyond are zero, of which the function may be anything
            inside = p.Comparison(p.Sum((start, deep)), "<", size)
            return p.If(inside, in_full, dtype.type(0))

        return Tiled(tiles, now, dtype, value)

    def _load(self, operand: str, side: Side, source: OperandSource | None) -> Load:
        """Declare the tiles of an operand, and find the part that a work-item loads."""
        writer, schedule = self.writer, self.writer.schedule
        span, dtype = schedule.spans[operand], schedule.dtypes[operand]
        # neighbours in memory are loaded by neighbours: along the last index
        is_deep = bool(span) and span[-1] in self.summed.indices
        shape = (side.tile, self.depth) if is_deep else (self.depth, side.tile)
        is_kept = self.keeps_order or not is_deep
        n_rows, n_columns = shape if is_kept else shape[::-1]
        swizzle = UNSWIZZLED if is_deep else side.swizzle
        array = writer.array(
            f"{operand}_tile", (self.stages, n_rows, n_columns + swizzle.padding),
            dtype, is_shared=True,
        )  # fmt: skip
        lanes = 1
        if source is not None and is_kept and swizzle.piece == 1:
            fast = self.summed if is_deep else side.flat
            lanes = self._lanes(source, operand, fast, shape)
        axes = partition(*shape, self.items.n, var(self.item), lanes)
        parts, ids = writer.hold_starts(axes, self.around, (self.numbered,))
        deep, wide = parts[::-1] if is_deep else parts
        points = writer.points_of(
            side.flat, wide.n, lambda step: p.Sum((side.start, wide.at(step))),
            self.around, ids, tile=side.tile,
        )  # fmt: skip
        registers = ""
        if source is None:
            registers = writer.array("ahead", (deep.n, wide.n), dtype)
        tile = SharedTile(array, is_deep and is_kept, swizzle)
        return Load(operand, tile, deep, wide, ids, points, source, lanes, registers)

    def _lanes(
        self, source: OperandSource, operand: str, fast: Flat, shape: tuple[int, int]
    ) -> int:
        """Return the most entries that one copy can move within a row."""
        schedule, (last, _, extent) = self.writer.schedule, fast.parts[-1]
        span = schedule.spans[operand]
        is_row = bool(span) and span[-1] == last
        if not is_row or source.neighbour != source.arguments[-1]:
            return 1
        lanes = VECTOR_BYTES // schedule.dtypes[operand].itemsize
        fits = (
            isinstance(extent, int)
            and extent % lanes == 0
            and is_evenly_partitioned(shape[0], shape[1] // lanes, self.items.n)
        )
        return lanes if fits else 1

    def _close_copies(self, loops: Sequence[str], begun: list[str]) -> list[str]:
        """Make a group of the copies of a tile, so that it can be waited for."""
        if not self.is_copied:
            return begun
        return [self.writer.add("close", close_group, loops, begun), *begun]

    def _load_tile(
        self,
        load: Load,
        tile: Expression,
        loops: Sequence[str],
        after: Collection[str],
        slot: Expression | None,
    ) -> str:
        """Load a work-item's part of a tile, to registers if there is no slot yet.

        Args:
            load: what to load.
            tile: number of the tile in the share; it may be beyond the last one.
            loops: inames of the loops around the statement.
            after: ids of the statements before it.
            slot: slot of the buffer that receives the tile; None to load to registers.
        """
        writer, schedule, start = self.writer, self.writer.schedule, self._tile(tile)
        deep = writer.points_of(
            self.summed, load.deep.n,
            lambda step: p.Sum((self.depth * start, load.deep.at(step))),
            loops, [*load.partitioned, *after], tile=None,
        )  # fmt: skip
        steps, (k, s) = self._steps(load)
        points = {**self.batch, **load.points.at(s), **deep.at(k)}
        at = tuple(points[index] for index in schedule.spans[load.operand])
        inside = (*deep.inside(k), *load.points.inside(s))
        before = (
            *load.partitioned, *load.points.statements, *deep.statements, *after
        )  # fmt: skip
        loops = (*loops, *steps)
        if slot is None:
            target = var(load.registers)[k, s]
        else:
            target = load.tile.loaded(slot, load.deep.at(k), load.wide.at(s))
        if load.source is not None:
            return self._begin_copy(
                load, load.source, target, at, inside, loops, before
            )
        value = var(schedule.rules[load.operand])(*at)
        if inside:
            zero = schedule.dtypes[load.operand].type(0)
            value = p.If(p.LogicalAnd(inside), value, zero)
        computed = writer.assign("load", target, value, loops, before)
        writer.note_apart(computed)
        return computed

    def _begin_copy(
        self,
        load: Load,
        source: OperandSource,
        entry: p.Subscript,
        at: tuple[Expression, ...],
        inside: tuple[Expression, ...],
        loops: Names,
        before: Names,
    ) -> str:
        """Begin to copy entries to a tile, or zeros where ``inside`` does not hold."""
        writer = self.writer
        target, target_id = writer.offset_scalar(entry, loops, before)
        origin, origin_id = writer.scalar("origin", source.at(at), loops, before)
        # outside, the copy writes zeros: no branch, and no tile with old entries
        condition = p.If(p.LogicalAnd(inside), 1, 0) if inside else 1
        is_inside, inside_id = writer.scalar("inside", condition, loops, before)
        copy = AsyncCopy(
            load.lanes, (load.tile.array, target), (source.array, origin), is_inside
        )
        begun = writer.add(
            "copy", partial(copy_async, copy), loops, (target_id, origin_id, inside_id)
        )
        writer.note_apart(begun)
        return begun

    def _settle(
        self, load: Load, slot: Expression, loops: Sequence[str], after: Collection[str]
    ) -> str:
        """Move what is in registers to the tile, after the products of this step.

        By then the loads have had as long as the products took.
        """
        steps, (k, s) = self._steps(load)
        target = load.tile.loaded(slot, load.deep.at(k), load.wide.at(s))
        settled = self.writer.assign(
            "settle", target, var(load.registers)[k, s], [*loops, *steps],
            [*load.partitioned, *after],
        )  # fmt: skip
        self.writer.note_apart(settled)
        return settled

    def _steps(self, load: Load) -> tuple[Names, tuple[Expression, Expression]]:
        """Loop over a work-item's entries, along the sums and along the others."""
        k, s = (
            self.writer.loop("step", size=part.n, tag="unr")
            for part in (load.deep, load.wide)
        )
        return (k, s), (var(k), var(s))
