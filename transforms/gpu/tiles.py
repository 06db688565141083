"""Tiles of work-groups: loops over a grid, shares of work-items, and their sums.

Loopy maps loops with the tags ``g.0``, ``g.1``, ... to work-groups, and those with
``l.0``, ``l.1``, ... to the work-items of a group. Neighbours along ``l.0`` are in one
warp. For an output ``ij`` with the extents N and 5, and blocks of 256::

    group  0 <= group, 256*group < 5*N          g.0
    item   0 <= item < 256                      l.0
    i = (256*group + item) / 5,  j = (256*group + item) % 5

The divisions are slow, so :meth:`GroupWriter.compute_points` computes each of them
once, before the loops that use it. A sum is in a register of one work-item; if several
share it, a tree in shared memory adds up their parts::

    part    p0  p1  p2  p3     half = 2, then 1:
            p0+p2  p1+p3       a barrier after each
            p0+p1+p2+p3

Source for trees: Harris, Optimizing Parallel Reduction in CUDA (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from loopy.symbolic import TypeCast
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import Extent
from feinsum.transforms.gpu.heuristics import MAX_COUNTED
from feinsum.transforms.gpu.layouts import (
    Flat,
    Share,
    Swizzle,
    TileLayout,
    split_into_grid_axes,
)
from feinsum.transforms.gpu.sources import OperandSource
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.copy_async import AsyncCopy
from feinsum.transforms.primitives.schedule import Expression, Names

Point: TypeAlias = Mapping[str, Expression]
"""The value of each index."""


class Items(NamedTuple):
    """The work-items of a group.

    Attributes:
        inames: inames of the axes, the fastest first.
        sizes: number of work-items along each axis.
    """

    inames: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        return prod(self.sizes)

    @property
    def number(self) -> Expression:
        """The number of a work-item in its group."""
        strides = tuple(prod(self.sizes[:k]) for k in range(len(self.sizes)))
        return TileLayout(self.sizes, strides)(*map(var, self.inames))


@dataclass(frozen=True)
class SharedTile:
    """The tiles of an operand in shared memory, several at once.

    Attributes:
        array: name of the shared array, with an axis for the slots.
        is_deep: whether the summed indices are the last axis.
        swizzle: the order of entries along the other axis.
    """

    array: str
    is_deep: bool
    swizzle: Swizzle

    def at(self, slot: Expression, deep: Expression, wide: Expression) -> p.Subscript:
        """Return the entry by its numbers along the sum and in the order of results."""
        return self._get_entry(slot, deep, self.swizzle.position(wide))

    def loaded(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        """Return the entry by its numbers along the sum and in the order of loads."""
        return self._get_entry(slot, deep, self.swizzle.compute_load_position(wide))

    def _get_entry(
        self, slot: Expression, deep: Expression, wide: Expression
    ) -> p.Subscript:
        subscripts = (wide, deep) if self.is_deep else (deep, wide)
        return var(self.array)[(slot, *subscripts)]


@dataclass(frozen=True)
class Tiled:
    """An operand in one iteration of the loop over tiles.

    Attributes:
        tiles: the tiles of the arrays that it reads.
        slot: the scalar with the slot of the tiles.
        dtype: dtype of the operand.
        value: computes the operand from the entries and the number along the sum.
        is_function: whether that is more than the entry of one tile.
    """

    tiles: tuple[SharedTile, ...]
    slot: str
    dtype: np.dtype[Any]
    value: Callable[[Sequence[Expression], Expression], Expression]
    is_function: bool

    def at(self, deep: Expression, wide: Expression) -> Expression:
        entries = [tile.at(var(self.slot), deep, wide) for tile in self.tiles]
        return self.value(entries, deep)


@dataclass(frozen=True)
class Points:
    """The values of indices at each step of a share, computed once.

    Attributes:
        arrays: a private array for each index, with a value for each step.
        value: the private array of the values of the flat index.
        limit: the scalar that flat values inside are below; empty if all are inside.
        statements: ids of the statements that compute these.
    """

    arrays: Mapping[str, str]
    value: str
    limit: str
    statements: tuple[str, ...]

    def at(self, step: Expression) -> dict[str, Expression]:
        return {index: var(array)[step] for index, array in self.arrays.items()}

    def inside(self, step: Expression) -> tuple[Expression, ...]:
        """Return the guard of a ragged edge; empty if all steps are inside."""
        if not self.limit:
            return ()
        return (p.Comparison(var(self.value)[step], "<", var(self.limit)),)

    def get_rest(self, step: Expression) -> Expression:
        """Return the number of values from the one at a step on, if it is inside."""
        # counts are unsigned
        limit, value = (
            TypeCast(np.int64, x) for x in (var(self.limit), var(self.value)[step])
        )
        return limit - value


class GroupWriter(NestWriter):
    """Writes nests of work-groups.

    Args:
        element: a long index of which a group has ``n_elements`` values at a time. In
            points of the group, it is counted from the group's first one. By default
            there is none.

    Attributes:
        extent: the extent of the element.
        group: the iname of the groups; see :meth:`loop_over_groups`.
    """

    def __init__(
        self, schedule: Schedule, element: str = "", n_elements: int = 0
    ) -> None:
        super().__init__(schedule)
        self.element, self.n_elements = element, n_elements
        self.extent = schedule.extents[element] if element else 0
        self.group = ""

    # extents within a group

    def length(self, index: str) -> int:
        """Return the number of values of an index within a group."""
        if index == self.element:
            return self.n_elements
        extent = self.schedule.extents[index]
        # no such family fits an einsum with a second run-time extent
        assert isinstance(extent, int)
        return extent

    def volume(self, indices: Iterable[str]) -> int:
        return prod(map(self.length, indices))

    def flat(self, indices: Names) -> Flat:
        return Flat(indices, tuple(self.length(i) for i in indices))

    def loop_over_groups(self) -> None:
        """Loop over groups that have ``n_elements`` elements each."""
        limit = f"{self.n_elements}*{{}} < {self.extent}"
        self.group = self.loop("group", limit, tag="g.0")

    def points_of_all(self, points: Point) -> dict[str, Expression]:
        """Return points with elements counted from the first of all groups."""
        # points without an element are the same for all groups
        if self.element not in points:
            return dict(points)
        start = self.n_elements * var(self.group)
        return {**points, self.element: p.Sum((start, points[self.element]))}

    # loops

    def unroll(self, n: int) -> str:
        return self.loop("u", size=n, tag="unr")

    def loop_over(
        self, indices: Iterable[str], tag: str = ""
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loop over all values of indices within a group; return inames and points."""
        inames = {i: self.loop(i, size=self.length(i), tag=tag) for i in indices}
        return [*inames.values()], {i: var(iname) for i, iname in inames.items()}

    def loop_over_output(
        self, stem: str, n_items: int, tag: str = "l.0"
    ) -> tuple[list[str], str, dict[str, Expression]]:
        """Loop over the output, with ``n_items`` entries in a group.

        Returns:
            The inames of the groups, that of the entries of a group, and the value of
            each index of the output.

        Raises:
            TransformError: if the output has more run-time extents than a grid axes.
        """
        axes = split_into_grid_axes(self.schedule.output, self.schedule.extents)
        if axes is None:
            raise TransformError(
                "the output has more run-time extents than a grid axes"
            )
        first, *outer_axes = axes
        group = self.loop("group", f"{n_items}*{{}} < {first.size}", tag="g.0")
        # the last group may be ragged, so the items have a bound, too
        item = self.loop(
            stem, f"{n_items}*{group} + {{}} < {first.size}", size=n_items, tag=tag
        )
        points = first.unravel(p.Sum((n_items * var(group), var(item))))
        groups = [group]
        for axis, flat in enumerate(outer_axes, start=1):
            groups.append(self.loop("group", size=flat.extents[0], tag=f"g.{axis}"))
            points[flat.indices[0]] = var(groups[-1])
        return groups, item, points

    def strided(
        self, stem: str, item: str, n_items: int, *limits: str
    ) -> tuple[str, Expression]:
        """Loop over values distributed round-robin; return the iname and the value.

        Args:
            stem: beginning of the loop's name.
            item: iname of the axis of the ``n_items`` work-items.
            n_items: number of work-items.
            limits: each a condition in isl's syntax, with ``{}`` for the value.
        """
        step = self.loop(
            stem, *(limit.format(f"({item} + {n_items}*{{0}})") for limit in limits)
        )
        return step, p.Sum((var(item), n_items * var(step)))

    def hold_starts(
        self, shares: Sequence[Share], around: Sequence[str], after: Names
    ) -> tuple[list[Share], Names]:
        """Assign the first values of shares to scalars; return the shares and the ids.

        Without a scalar, each step would divide the number of the work-item again,
        which takes tens of instructions.
        """
        scalars = [self.scalar("first", share.first, around, after) for share in shares]
        return (
            [
                replace(share, first=var(first))
                for share, (first, _) in zip(shares, scalars, strict=True)
            ],
            tuple(insn_id for _, insn_id in scalars),
        )

    def begin_copy(
        self,
        entry: p.Subscript,
        source: OperandSource,
        values: Sequence[Expression],
        n_copied: tuple[str, str],
        loops: Names,
        before: Names,
        lanes: int = 1,
    ) -> str:
        """Begin an asynchronous copy to shared memory; return the statement's id.

        Args:
            entry: the first entry that is written.
            source: the array that is read.
            values: arguments of the operand there.
            n_copied: the scalar with the number of entries to copy, and the id of the
                statement that computes it; the others are set to zero.
            loops: inames of the loops around the statements.
            before: ids of the statements before them.
            lanes: contiguous entries that are written.
        """
        target, target_id = self.point_to(entry, loops, before)
        origin, origin_id = self.scalar("origin", source.at(values), loops, before)
        copy = AsyncCopy(lanes, target, (source.array, origin), n_copied[0])
        return self.state("copy", copy, loops, (target_id, origin_id, n_copied[1]))

    # sums

    def add_up(
        self,
        dtype: np.dtype[Any],
        term: Expression,
        around: Sequence[str],
        sums: Sequence[str],
        after: Collection[str] = (),
        *,
        conditions: Collection[Expression] = (),
    ) -> tuple[Expression, str]:
        """Sum terms in a register of a work-item; return it and the last id.

        Rewrite::

            total = 0
            for sums:  if conditions:  total = total + term

        Args:
            dtype: dtype of the sum.
            term: the term to add.
            around: inames of the loops of the work-item.
            sums: inames of the loops of the sum.
            after: ids of the statements before.
            conditions: conditions that all have to hold.
        """
        total = var(self.array("total", (), dtype))
        zero = self.assign("zero", total, dtype.type(0), around, after)
        add = self.assign(
            "add", total, p.Sum((total, term)), [*around, *sums], [zero, *after],
            predicates=conditions,
        )  # fmt: skip
        return total, add

    def add_in_tree(
        self,
        entry: Callable[[Expression], Expression],
        value: Expression,
        item: str,
        n: int,
        around: Sequence[str],
        after: Collection[str],
        tag: str = "l.0",
    ) -> tuple[str, str]:
        """Sum a number of each of ``n`` work-items into the first entry.

        Rewrite::

            entry[item] = value
            (barrier)
            for half in n/2, ..., 2, 1:  if lane < half:
                entry[lane] = entry[lane] + entry[lane + half]
                (barrier)

        Args:
            entry: maps a position to an entry of shared memory.
            value: the number of a work-item.
            item: the iname of the work-items.
            n: how many there are, a power of two.
            around: inames of the loops around the statements.
            after: ids of the statements before.
            tag: the axis of the group that has the work-items.

        Returns:
            A loop that only the first work-item enters, and the id of the last step.
        """
        last = self.assign("share", entry(var(item)), value, [*around, item], after)
        # Loopy puts a barrier between two steps, as each reads what the other writes
        while n := n // 2:
            lane = self.loop("lane", size=n, tag=tag)
            near, far = entry(var(lane)), entry(p.Sum((var(lane), n)))
            loops = [*around, lane]
            last = self.assign("halve", near, p.Sum((near, far)), loops, [last])
        return self.loop("lane", size=1, tag=tag), last

    # values of a flat index

    def compute_points(
        self,
        flat: Flat,
        n: int,
        value_at: Callable[[Expression], Expression],
        loops: Sequence[str],
        after: Collection[str] = (),
        *,
        tile: int | None,
    ) -> Points:
        """Compute the indices of flat values, with one division for each index.

        Rewrite, for indices i and j, of which j is the faster, of extent J::

            for step:  value[step] = at(step)
            for step:  j[step] = value[step] % J
            for step:  i[step] = value[step] / J

        Args:
            flat: the flat index.
            n: number of steps.
            value_at: returns its value at a step.
            loops: inames of the loops around the statements.
            after: ids of the statements before.
            tile: length of the tiles that contain the values; None if values may be
                beyond the last tile.
        """
        statements: list[str] = []

        def steps_of(
            stem: str, dtype: Any, value: Callable[[Expression], Expression]
        ) -> str:
            array = self.array(stem, (n,), np.dtype(dtype))
            step = self.loop("step", size=n, tag="unr")
            entry, before = var(array)[var(step)], [*after, *statements]
            statements.append(
                self.assign(stem, entry, value(var(step)), [*loops, step], before)
            )
            return array

        is_long = not flat.is_known or flat.n_values >= MAX_COUNTED
        # unsigned, since C rounds signed quotients towards zero and not down
        count = np.uint64 if is_long else np.uint32
        limit = ""
        if tile is None or not flat.is_divided_by(tile):
            limit = self.array("limit", (), np.dtype(count))
            size = flat.size_in_c
            statements.append(self.assign("limit", var(limit), size, loops, after))
        # the quotient of each division is the dividend of the next one
        value = quotient = steps_of("value", count, value_at)
        parts_of_index: dict[str, list[tuple[int, str]]] = {}
        for index, factor, extent in flat.parts[:0:-1]:
            part_array = steps_of(
                index, np.int64, _apply_operation(p.Remainder, quotient, extent)
            )
            quotient = steps_of(
                "rest", count, _apply_operation(p.FloorDiv, quotient, extent)
            )
            parts_of_index.setdefault(index, []).append((factor, part_array))
        index, factor, _ = flat.parts[0]
        part_array = steps_of(index, np.int64, lambda step: var(quotient)[step])
        parts_of_index.setdefault(index, []).append((factor, part_array))
        # an index that is cut in pieces has two parts: the piece, and the offset in it
        arrays = {
            index: index_parts[0][1]
            if len(index_parts) == 1
            else steps_of(index, np.int64, _join_parts(index_parts))
            for index, index_parts in parts_of_index.items()
        }
        return Points(arrays, value, limit, tuple(statements))


def _join_parts(
    index_parts: Sequence[tuple[int, str]],
) -> Callable[[Expression], Expression]:
    return lambda step: p.Sum(
        tuple(factor * var(array)[step] for factor, array in index_parts)
    )


def _apply_operation(
    operation: Any, array: str, extent: Extent
) -> Callable[[Expression], Expression]:
    return lambda step: operation(var(array)[step], extent)
