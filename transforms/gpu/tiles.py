"""Tiles of work-groups: loops over a grid, shares of work-items, and their sums.

Loopy maps loops with the tags ``g.0``, ``g.1``, ... to work-groups and those with
``l.0``, ``l.1``, ... to the work-items of a group, of which the neighbours along
``l.0`` make up a warp. For an output ``ij`` with extents N and 5, blocks of 256::

    group  0 <= group, 256*group < 5*N          g.0
    item   0 <= item < 256                      l.0
    i = (256*group + item) / 5,  j = (256*group + item) % 5

Divisions are the expensive part of this: :meth:`GroupWriter.points_of` makes each of
them once, before the loops that use it. A sum ends in a register of a work-item, or in
a tree of those that share it::

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
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent
from feinsum.records.environment import DeviceKind
from feinsum.transforms.gpu.heuristics import MAX_COUNTED
from feinsum.transforms.gpu.layouts import Flat, Layout, Share, grid_axes
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names

GPUS: frozenset[DeviceKind] = frozenset({"gpu"})
"""The kinds of devices that these families are for."""

Point: TypeAlias = Mapping[str, Expression]
"""The value of each index."""


def has_plain_dtype(einsum: BatchedEinsum) -> bool:
    """Tell whether GPU kernels support all dtypes: no complex numbers."""
    return all(operand.dtype.kind in "biuf" for operand in einsum.operands)


def is_double(einsum: BatchedEinsum) -> bool:
    """Tell whether all operands are of double precision."""
    return {operand.dtype for operand in einsum.operands} == {np.dtype(np.float64)}


def extent_of(extent: Extent) -> Expression:
    """Return an extent in terms of the kernel: a number, or a parameter's variable."""
    return extent if isinstance(extent, int) else var(extent.name)


class Items(NamedTuple):
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
        """The number of a work-item in its group, neighbours first."""
        strides = tuple(prod(self.sizes[:k]) for k in range(len(self.sizes)))
        return Layout(self.sizes, strides)(*map(var, self.inames))


class OutputGrid(NamedTuple):
    """A work-item for each entry of an output, or a row of them.

    Attributes:
        groups: the inames of the work-groups.
        item: that of the entries of a group.
        points: the value of each index of the output.
    """

    groups: Names
    item: str
    points: dict[str, Expression]


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
        """Return the guard of a ragged edge; empty if all are known to be inside."""
        if not self.limit:
            return ()
        return (p.Comparison(var(self.value)[step], "<", var(self.limit)),)


class GroupWriter(NestWriter):
    """Writes nests of work-groups.

    Args:
        element: a long index of which a group has ``n_elements`` values at a time;
            points of the group count them from its first one. None by default.
    """

    def __init__(
        self, schedule: Schedule, element: str = "", n_elements: int = 0
    ) -> None:
        super().__init__(schedule)
        self.element, self.n_elements = element, n_elements

    # extents within a group

    def length(self, index: str) -> int:
        """Return how many values an index has within a group."""
        if index == self.element:
            return self.n_elements
        extent = self.schedule.extents[index]
        # families offer no einsum with a second extent that is known at run time only
        assert isinstance(extent, int)
        return extent

    def volume(self, indices: Iterable[str]) -> int:
        return prod(map(self.length, indices))

    def flat(self, indices: Names) -> Flat:
        return Flat(indices, tuple(self.length(i) for i in indices))

    def points_of_all(self, points: Point, group: str) -> dict[str, Expression]:
        """Return points with the elements counted from the first of all."""
        # what has no element is the same for all groups
        if self.element not in points:
            return dict(points)
        start = self.n_elements * var(group)
        return {**points, self.element: p.Sum((start, points[self.element]))}

    # loops

    def unroll(self, n: int) -> str:
        return self.loop("u", size=n, tag="unr")

    def loops_over(
        self, indices: Iterable[str], tag: str = ""
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loop over all values of indices within a group; return their points, too."""
        inames = {i: self.loop(i, size=self.length(i), tag=tag) for i in indices}
        return [*inames.values()], {i: var(iname) for i, iname in inames.items()}

    def output_grid(self, stem: str, n_items: int, tag: str = "l.0") -> OutputGrid:
        """Loop over the output, ``n_items`` entries a group.

        Raises:
            TransformError: if the output has more run-time extents than a grid axes.
        """
        axes = grid_axes(self.schedule.output, self.schedule.extents)
        if axes is None:
            raise TransformError(
                "the output has more run-time extents than a grid axes"
            )
        first, *others = axes
        group = self.loop("group", f"{n_items}*{{}} < {first.size}", tag="g.0")
        # the last group may be ragged: its bound is that of the items
        item = self.loop(
            stem, f"{n_items}*{group} + {{}} < {first.size}", size=n_items, tag=tag
        )
        points = first.unravel(p.Sum((n_items * var(group), var(item))))
        groups = [group]
        for axis, flat in enumerate(others, start=1):
            groups.append(self.loop("group", size=flat.extents[0], tag=f"g.{axis}"))
            points[flat.indices[0]] = var(groups[-1])
        return OutputGrid(tuple(groups), item, points)

    def strided(
        self, stem: str, item: str, n_items: int, *limits: str
    ) -> tuple[str, Expression]:
        """Loop over values distributed round-robin to work-items; return the value.

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
        """Compute where shares begin; return those from scalars on, and the ids.

        Else each step would divide the number of the work-item anew, which takes tens
        of instructions.
        """
        scalars = [self.scalar("first", share.first, around, after) for share in shares]
        return (
            [
                replace(share, first=var(first))
                for share, (first, _) in zip(shares, scalars, strict=True)
            ],
            tuple(insn_id for _, insn_id in scalars),
        )

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
        n: int,
        around: Sequence[str],
        last: str,
        tag: str = "l.0",
    ) -> str:
        """Sum ``n`` shared numbers into the first one; return the id of the last step.

        Rewrite::

            for half in n/2, ..., 2, 1:  if lane < half:
                entry[lane] = entry[lane] + entry[lane + half]
                (barrier)

        Args:
            entry: one of the numbers.
            n: number of numbers, a power of two.
            around: inames of the loops around the statements.
            last: id of the statement before.
            tag: the axis of the group whose work-items add.
        """
        # Loopy puts a barrier between two steps, of which one reads what the other
        # writes
        while n := n // 2:
            lane = self.loop("lane", size=n, tag=tag)
            near, far = entry(var(lane)), entry(p.Sum((var(lane), n)))
            loops = [*around, lane]
            last = self.assign("halve", near, p.Sum((near, far)), loops, [last])
        return last

    # indices that are taken apart

    def points_of(
        self,
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
            flat: the indices that make up one, with their extents.
            n: number of steps.
            at: returns the value of the merged index at a step.
            loops: inames of the loops around the statements.
            after: ids of the statements before.
            tile: length of the tiles that contain the values; None if these may go
                beyond the end.
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
        # unsigned, as C rounds quotients of signed numbers towards zero, not down
        count = np.uint64 if is_long else np.uint32
        limit = ""
        if tile is None or not flat.is_divided_by(tile):
            limit = self.array("limit", (), np.dtype(count))
            size = flat.size_in_c
            statements.append(self.assign("limit", var(limit), size, loops, after))
        # the quotient of one division is the dividend of the next one
        value = rest = steps_of("value", count, at)
        parts: dict[str, list[tuple[int, str]]] = {}
        for index, factor, extent in flat.parts[:0:-1]:
            part = steps_of(index, np.int64, _applied(p.Remainder, rest, extent))
            rest = steps_of("rest", count, _applied(p.FloorDiv, rest, extent))
            parts.setdefault(index, []).append((factor, part))
        index, factor, _ = flat.parts[0]
        part = steps_of(index, np.int64, lambda step: var(rest)[step])
        parts.setdefault(index, []).append((factor, part))
        # an index that is cut in pieces has two parts: the piece, and the value in it
        arrays = {
            index: of[0][1] if len(of) == 1 else steps_of(index, np.int64, _joined(of))
            for index, of in parts.items()
        }
        return Points(arrays, value, limit, tuple(statements))


def _joined(parts: Sequence[tuple[int, str]]) -> Callable[[Expression], Expression]:
    return lambda step: p.Sum(
        tuple(factor * var(array)[step] for factor, array in parts)
    )


def _applied(
    operation: Any, array: str, extent: Extent
) -> Callable[[Expression], Expression]:
    return lambda step: operation(var(array)[step], extent)
