"""What each work-item has of a tile, and the indices that it stands for."""

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

__all__ = [
    "Points",
    "RaggedShare",
    "Share",
    "are_dealt_evenly",
    "is_even",
    "points_of",
    "ragged_shares",
    "shares_of",
    "size_of",
]

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
