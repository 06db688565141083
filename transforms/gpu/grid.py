"""Work-groups and work-items: the loops over a grid, and the points that each has.

Loopy maps loops with the tags ``g.0``, ``g.1``, ... to work-groups and those with
``l.0``, ``l.1``, ... to the work-items of a group, of which the neighbours along
``l.0`` make up a warp. For an output ``ij`` with extents N and 5, blocks of 256::

    group  0 <= group, 256*group < 5*N          g.0
    item   0 <= item < 256                      l.0
    i = (256*group + item) / 5,  j = (256*group + item) % 5

Divisions are the expensive part of this: :func:`points_of` makes each of them once,
before the loops that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Extent
from feinsum.records.environment import DeviceKind
from feinsum.transforms.gpu.layouts import Flat, grid_axes
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names

GPUS: frozenset[DeviceKind] = frozenset({"gpu"})
"""The kinds of devices that these families are for."""

MAX_ITEMS = 1024
"""Work-items of one work-group, on every GPU."""

SHARED_BYTES = 48 << 10
"""Shared memory that a work-group has on every GPU; one for CUDA may have more."""

MAX_COUNTED = 1 << 31
"""Numbers below it are counted in 32 bits, in which GPUs divide faster."""


def has_plain_dtype(einsum: BatchedEinsum) -> bool:
    """Whether GPU kernels support all dtypes: no complex numbers."""
    return all(operand.dtype.kind in "biuf" for operand in einsum.operands)


def extent_of(extent: Extent) -> Expression:
    """An extent in terms of the kernel: a number, or the variable of a parameter."""
    return extent if isinstance(extent, int) else var(extent.name)


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
        """The number of a work-item in its group, neighbours first."""
        terms: list[Expression] = []
        stride = 1
        for iname, size in zip(self.inames, self.sizes, strict=True):
            terms.append(stride * var(iname))
            stride *= size
        return p.Sum(tuple(terms))


class OutputGrid(NamedTuple):
    """A work-item for each entry of an output, or a row of them.

    Attributes:
        groups: the inames of the work-groups.
        item: that of the ``n_items`` entries of a group.
        points: the value of each index of the output.
    """

    groups: Names
    item: str
    points: dict[str, Expression]

    @classmethod
    def of(
        cls, writer: NestWriter, stem: str, n_items: int, tag: str = "l.0"
    ) -> OutputGrid:
        """Make the loops.

        Raises:
            TransformError: if the output has more run-time extents than a grid axes.
        """
        schedule = writer.schedule
        axes = grid_axes(schedule.output, schedule.extents)
        if axes is None:
            raise TransformError(
                "the output has more run-time extents than a grid axes"
            )
        first, *others = axes
        group = writer.loop("group", f"{n_items}*{{}} < {first.size}", tag="g.0")
        # the last group may be ragged: its bound is that of the items
        item = writer.loop(
            stem, f"{n_items}*{group} + {{}} < {first.size}", size=n_items, tag=tag
        )
        points = first.unravel(p.Sum((n_items * var(group), var(item))))
        groups = [group]
        for axis, flat in enumerate(others, start=1):
            groups.append(writer.loop("group", size=flat.extents[0], tag=f"g.{axis}"))
            points[flat.indices[0]] = var(groups[-1])
        return cls(tuple(groups), item, points)


def n_output_groups(einsum: BatchedEinsum, n_items: int) -> tuple[Flat, int]:
    """The first axis of :class:`OutputGrid`, and the number of groups."""
    axes = grid_axes(einsum.output, einsum.extents)
    assert axes is not None
    first, *others = axes
    n_groups = -(-first.n_values // n_items) * prod(axis.n_values for axis in others)
    return first, n_groups


class Strided(NamedTuple):
    """A loop in which neighbouring work-items have neighbouring values.

    Attributes:
        iname: of the loop.
        value: of the index.
    """

    iname: str
    value: Expression


def strided(
    writer: NestWriter, stem: str, item: str, n_items: int, *limits: str
) -> Strided:
    """All values below limits, dealt out to the items of an axis of the group.

    Args:
        item: the iname of the axis.
        limits: each a condition in isl's syntax, with ``{}`` for the value.
    """
    step = writer.loop(
        stem, *(limit.format(f"({item} + {n_items}*{{0}})") for limit in limits)
    )
    return Strided(step, p.Sum((p.Variable(item), n_items * p.Variable(step))))


def add_up(
    writer: NestWriter,
    dtype: np.dtype[Any],
    term: Expression,
    around: Sequence[str],
    sums: Sequence[str],
    after: Collection[str] = (),
    *,
    conditions: Collection[Expression] = (),
) -> tuple[Expression, str]:
    """A sum in a register of a work-item.

    Rewrite::

        total = 0
        for sums:  if conditions:  total = total + term

    Args:
        around: the loops of the work-item.
        sums: those of the sum.

    Returns:
        The register, and the id of the last statement.
    """
    total = var(writer.array("total", (), dtype))
    zero = writer.assign("zero", total, dtype.type(0), around, after)
    add = writer.assign(
        "add", total, p.Sum((total, term)), [*around, *sums], [zero, *after],
        predicates=conditions,
    )  # fmt: skip
    return total, add


@dataclass(frozen=True)
class Points:
    """The values of indices at each step of a partition, computed once.

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
        """The guard of a ragged edge: to be inside; empty if that is known."""
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
    is_long = not flat.is_known or flat.n_values >= MAX_COUNTED
    # unsigned, as C rounds quotients of signed numbers towards zero, not down
    count = np.dtype(np.uint64 if is_long else np.uint32)
    steps = _StepArrays(writer, n, loops, after)
    limit = ""
    if tile is None or not flat.is_divided_by(tile):
        limit = writer.array("limit", (), count)
        steps.statements.append(
            writer.assign("limit", var(limit), flat.size_in_c, loops, after)
        )
    # the quotient of one division is the dividend of the next one
    value = rest = steps.assign("value", count, at)
    parts: dict[str, list[tuple[int, str]]] = {}
    point = np.dtype(np.int64)
    for index, factor, extent in flat.parts[:0:-1]:
        part = steps.assign(index, point, _applied(p.Remainder, rest, extent))
        rest = steps.assign("rest", count, _applied(p.FloorDiv, rest, extent))
        parts.setdefault(index, []).append((factor, part))
    index, factor, _ = flat.parts[0]
    part = steps.assign(index, point, lambda step: var(rest)[step])
    parts.setdefault(index, []).append((factor, part))
    # an index that is cut in pieces has two parts: the piece, and the value in it
    arrays = {
        index: of[0][1] if len(of) == 1 else steps.assign(index, point, _joined(of))
        for index, of in parts.items()
    }
    return Points(arrays, value, limit, tuple(steps.statements))


class _StepArrays:
    """Private arrays with an entry for each step, assigned one after another."""

    def __init__(
        self, writer: NestWriter, n: int, loops: Sequence[str], after: Collection[str]
    ) -> None:
        self.writer, self.n, self.loops, self.after = writer, n, loops, after
        self.statements: list[str] = []

    def assign(
        self, stem: str, dtype: np.dtype[Any], value: Callable[[Expression], Expression]
    ) -> str:
        """A new array, with the value of each step."""
        array = self.writer.array(stem, (self.n,), dtype)
        step = self.writer.loop("step", size=self.n, tag="unr")
        insn_id = self.writer.assign(
            stem, var(array)[var(step)], value(var(step)), [*self.loops, step],
            [*self.after, *self.statements],
        )  # fmt: skip
        self.statements.append(insn_id)
        return array


def _joined(parts: Sequence[tuple[int, str]]) -> Callable[[Expression], Expression]:
    return lambda step: p.Sum(
        tuple(factor * var(array)[step] for factor, array in parts)
    )


def _applied(
    operation: Any, array: str, extent: Extent
) -> Callable[[Expression], Expression]:
    return lambda step: operation(var(array)[step], extent)


class ElementGroup:
    """A work-group that has ``n_elements`` values of one long index at a time.

    Base of the writers of operators on many elements. Points of the group count the
    elements from the first one of the group.
    """

    def __init__(self, schedule: Schedule, element: str, n_elements: int) -> None:
        self.schedule, self.writer = schedule, NestWriter(schedule)
        self.element, self.n_elements = element, n_elements
        self.extent = schedule.extents[element]

    def length(self, index: str) -> int:
        """How many values an index has within a group."""
        extent = self.schedule.extents[index]
        if index == self.element:
            return self.n_elements
        # families offer no einsum with a second extent that is known at run time only
        assert isinstance(extent, int)
        return extent

    def volume(self, indices: Sequence[str]) -> int:
        return prod(map(self.length, indices))

    def flat(self, indices: Names) -> Flat:
        return Flat(indices, tuple(self.length(i) for i in indices))

    def points_of_all(
        self, points: Mapping[str, Expression], group: str
    ) -> dict[str, Expression]:
        """Points with the elements counted from the first of all."""
        # what has no element is the same for all groups
        if self.element not in points:
            return dict(points)
        start = self.n_elements * var(group)
        return {**points, self.element: p.Sum((start, points[self.element]))}
