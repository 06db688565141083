"""Layouts: which coordinate lies where, and which work-item has it.

A layout maps coordinates to a position, ``sum(stride * coordinate)``, as in CuTe. Both
memory and work-items are described this way; a *partition* of an axis is the layout of
one work-item's entries.

Several indices are treated as one (:class:`Flat`), so that every einsum of two operands
is ``C[m,n] = A[m,k] B[k,n]``. For ``aebf,dfce->abcd`` with extents 6, 8, 4, 5, ...::

    m = (a, b) : (4, 1)       m = 4*a + b, and a = m / 4, b = m % 4
    k = (e, f) : (5, 1)

Sixteen work-items load a tile of 4 by 16 entries, neighbours along the fast axis, so
that the memory sees runs (:func:`partition`)::

                 fast: 0  1  2 ...  15
    slow 0             w0 w1 w2 ... w15       slow: first 0, stride 1, 4 steps
    slow 1             w0 w1 w2 ... w15       fast: first w, stride 16, 1 step
    slow 2             w0 w1 w2 ... w15
    slow 3             w0 w1 w2 ... w15

A tile whose rows would all begin in the same bank of shared memory gets ``PADDING``
entries after each row, and :class:`Swizzle` where it is read in one order and written
in another.

Source: NVIDIA, CUTLASS, "CuTe Layouts" and "CuTe Layout Algebra".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from loopy.symbolic import TypeCast
from numpy import int64
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import Extent
from feinsum.transforms.primitives.schedule import Expression

MIN_WIDTH = 4
"""Work-items along a row of a tile: 32 bytes of double precision, a sector."""

PIECE = 4
"""Values of an index that stay together: a sector of double precision."""

PADDING = 4
"""Entries after each row of a tile: 16 that lie four by four, or in a row, are then in
16 banks of shared memory, where an entry has 8 bytes and rows are multiples of 8."""

MAX_AXES = 3
"""Axes of a grid of work-groups."""


@dataclass(frozen=True)
class Layout:
    """The position ``sum(stride * coordinate)`` of an entry.

    >>> row_of_fragment = Layout((2, 8), (8, 1))
    >>> print(row_of_fragment(var("half"), var("group")))
    8*half + group
    >>> row_of_fragment.positions() == [*range(16)]
    True
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, *coordinates: Expression) -> Expression:
        terms = zip(coordinates, self.strides, strict=True)
        # a stride of 1 is left out, so that the generated code reads well
        return p.Sum(tuple(x if step == 1 else step * x for x, step in terms))

    def positions(self) -> list[int]:
        """All positions, the last coordinate the fastest."""
        positions = [0]
        for extent, step in zip(self.shape, self.strides, strict=True):
            positions = [at + step * k for at in positions for k in range(extent)]
        return positions


@dataclass(frozen=True)
class Flat:
    """Several indices as one, the last of them the fastest.

    Attributes:
        indices: only the first may have an extent that is known at run time.
        extents: in terms of the kernel.
        cut: an index that is cut in pieces, which go faster than all others; it may be
            empty.
        piece: their length.
    """

    indices: tuple[str, ...]
    extents: tuple[Extent, ...]
    cut: str = ""
    piece: int = PIECE

    @property
    def parts(self) -> tuple[tuple[str, int, Extent], ...]:
        """What the indices are sums of: each with a factor and an extent, fastest last.

        >>> Flat(("i", "j"), (8, 3), cut="i").parts
        (('i', 4, 2), ('j', 1, 3), ('i', 1, 4))
        """
        parts: list[tuple[str, int, Extent]] = []
        for index, extent in zip(self.indices, self.extents, strict=True):
            if index == self.cut and isinstance(extent, int):
                parts.append((index, self.piece, extent // self.piece))
            else:
                parts.append((index, 1, extent))
        return (*parts, (self.cut, 1, self.piece)) if self.cut else tuple(parts)

    @property
    def size(self) -> str:
        """The number of values, in isl's syntax."""
        fixed = prod(n for n in self.extents if isinstance(n, int))
        running = [f"{n}" for n in self.extents if not isinstance(n, int)]
        return "*".join([str(fixed), *running])

    @property
    def size_in_c(self) -> Expression:
        """The number of values, as a product in 64 bits."""
        return p.Product(
            tuple(
                n if isinstance(n, int) else TypeCast(int64, var(n.name))
                for n in self.extents
            )
        )

    def unravel(self, value: Expression) -> dict[str, Expression]:
        """The value of each index, a division for all but the first.

        >>> flat = Flat(("i", "j"), (8, 3))
        >>> {i: str(x) for i, x in flat.unravel(var("m")).items()}
        {'j': 'm % 3', 'i': 'm // 3'}
        """
        points: dict[str, Expression] = {}
        for index, extent in list(zip(self.indices, self.extents, strict=True))[:0:-1]:
            points[index] = p.Remainder(value, extent)
            value = p.FloorDiv(value, extent)
        # the first one needs no remainder, and so its extent need not be known
        if self.indices:
            points[self.indices[0]] = value
        return points

    def ravel(self, points: Mapping[str, Expression]) -> Expression:
        """The inverse of :meth:`unravel`."""
        value: Expression = 0
        for index, extent in zip(self.indices, self.extents, strict=True):
            value = points[index] if value == 0 else value * extent + points[index]
        return value

    @property
    def is_known(self) -> bool:
        """Whether all extents are numbers."""
        return all(isinstance(n, int) for n in self.extents)

    @property
    def n_values(self) -> int:
        """The number of values, where all extents are known."""
        return prod(int(str(n)) for n in self.extents)

    def is_divided_by(self, tile: int) -> bool:
        """Whether all tiles are known to be full."""
        return self.is_known and self.n_values % tile == 0

    def unravel_number(self, value: int) -> dict[str, int]:
        """The value of each index, as a number."""
        points = {}
        for index, extent in list(zip(self.indices, self.extents, strict=True))[::-1]:
            points[index] = value % int(str(extent))
            value //= int(str(extent))
        return points

    def box_of(self, n_values: int) -> dict[str, int]:
        """Estimate how many values of each index a run of neighbouring values has.

        >>> Flat(("i", "j"), (9, 4)).box_of(8)
        {'j': 4, 'i': 2}
        """
        box: dict[str, int] = {}
        for index, _, extent in reversed(self.parts):
            n = int(str(extent))
            box[index] = box.get(index, 1) * min(n_values, n)
            n_values = -(-n_values // n)
        return box


def flat_of(indices: Sequence[str], extents: Mapping[str, Extent]) -> Flat | None:
    """Some indices in their order, but for the one that is known at run time, which
    comes first; None if there are several of these.
    """
    running = [i for i in indices if not isinstance(extents[i], int)]
    if len(running) > 1:
        return None
    order = (*running, *(i for i in indices if i not in running))
    return Flat(order, tuple(extents[i] for i in order))


def grid_axes(
    indices: Sequence[str], extents: Mapping[str, Extent]
) -> tuple[Flat, ...] | None:
    """Indices for the axes of a grid: the fastest axis has all fixed extents.

    None if there are more run-time extents than axes.

    >>> from feinsum.ir import SizeParam
    >>> axes = grid_axes("aib", {"a": SizeParam("A"), "i": 3, "b": SizeParam("B")})
    >>> [axis.indices for axis in axes]
    [('b', 'i'), ('a',)]
    """
    running = [i for i in indices if not isinstance(extents[i], int)]
    if len(running) > MAX_AXES:
        return None
    # the last run-time index shares an axis with the fixed ones; the others, of which
    # no quotient by a known extent exists, get an axis each
    last = running[-1] if running else None
    first = flat_of([i for i in indices if i == last or i not in running], extents)
    assert first is not None
    return (first, *(Flat((i,), (extents[i],)) for i in reversed(running[:-1])))


@dataclass(frozen=True)
class Partition:
    """A work-item's part of an axis: ``first``, ``first + stride`` and so on."""

    first: Expression
    stride: int
    n: int

    def at(self, step: Expression) -> Expression:
        return p.Sum((self.first, self.stride * step))

    def after(self, start: Expression) -> Callable[[Expression], Expression]:
        """The values of an axis that begins at ``start``."""
        return lambda step: p.Sum((start, self.at(step)))


def partition(
    slow: int, fast: int, n_items: int, item: Expression, lanes: int = 1
) -> tuple[Partition, Partition]:
    """Distribute a tile of ``slow`` times ``fast`` entries, neighbours along ``fast``.

    Args:
        item: the number of the work-item, of ``n_items``.
        lanes: contiguous entries that go together; the values are those of the
            first one.

    >>> slow, fast = partition(16, 128, 256, var("item"))
    >>> (slow.stride, slow.n), (fast.stride, fast.n)
    ((2, 8), (128, 1))
    """
    # vectors are distributed as single entries are, and then each is some entries long
    if lanes > 1:
        of_slow, of_vectors = partition(slow, fast // lanes, n_items, item)
        first = p.Product((lanes, of_vectors.first))
        return of_slow, Partition(first, lanes * of_vectors.stride, of_vectors.n)
    width = _width(slow, fast, n_items)
    if width == n_items:
        # all items fit in one row: no quotient is needed to find one's place
        return Partition(0, 1, slow), Partition(item, n_items, fast // n_items)
    rows = n_items // width
    return (
        Partition(p.FloorDiv(item, width), rows, slow // rows),
        Partition(p.Remainder(item, width), width, fast // width),
    )


def _width(slow: int, fast: int, n_items: int) -> int:
    """The most work-items along ``fast`` with which all have equally many; 0 if none.

    >>> _width(16, 64, 128), _width(16, 80, 128), _width(8, 80, 128)
    (64, 16, 16)
    """
    # the widest wins: long runs of neighbours are the fewest transactions
    widths = (w for w in range(min(fast, n_items), MIN_WIDTH - 1, -1)
              if fast % w == n_items % w == 0)  # fmt: skip
    return next((w for w in widths if slow % (n_items // w) == 0), 0)


def is_evenly_partitioned(slow: int, fast: int, n_items: int) -> bool:
    """Whether :func:`partition` gives every work-item equally many entries."""
    return _width(slow, fast, n_items) > 0


def uneven_tile(tiles: Sequence[int], depth: int, n_items: int) -> str | None:
    """Why work-items cannot share tiles evenly, along either axis; None if they can."""
    for tile in tiles:
        # either axis may be the one along which the operand lies
        shapes = ((tile, depth), (depth, tile))
        if not all(is_evenly_partitioned(*shape, n_items) for shape in shapes):
            return f"{n_items} work-items do not share {tile} times {depth} entries"
    return None


@dataclass(frozen=True)
class RaggedPartition(Partition):
    """A partition that may go beyond the end of its axis, or overlap with others.

    Attributes:
        limit: above all its values.
        is_idle: whether work-items whose first value is the stride or more have none.
    """

    limit: int
    is_idle: bool


def ragged_partition(
    slow: int, fast: int, n_items: int, item: Expression
) -> tuple[RaggedPartition, RaggedPartition]:
    """Like :func:`partition`, of tiles of any shape.

    >>> slow, fast = ragged_partition(32, 35, 160, var("item"))
    >>> (slow.stride, slow.n, slow.limit, slow.is_idle), (fast.n, fast.limit)
    ((4, 8, 33, True), (1, 35))
    """
    if fast > n_items:
        n = -(-fast // n_items)
        return (
            RaggedPartition(0, 1, slow, slow, False),
            RaggedPartition(item, n_items, n, n * n_items, False),
        )
    # whole rows at a time; the items that are left over start a row that others have
    rows = n_items // fast
    n, n_firsts = -(-slow // rows), -(-n_items // fast)
    of_slow = RaggedPartition(
        p.FloorDiv(item, fast), rows, n, rows * (n - 1) + n_firsts, n_firsts > rows
    )
    return of_slow, RaggedPartition(p.Remainder(item, fast), fast, 1, fast, False)


@dataclass(frozen=True)
class Swizzle:
    """The order of a tile along a side that is cut in pieces.

    Operands are read piece by piece, results are written across pieces. Of a side of 8
    values in pieces of 2, read as ``0 1 | 2 3 | 4 5 | 6 7``, results have first the
    first value of each piece. Shared memory has them in this order, with one entry
    after each run, so that the values of one piece are in different banks::

        result order    0  1  2  3  4  5  6  7
        load order      0  2  4  6  1  3  5  7
        position        0  1  2  3  5  6  7  8

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

    def position(self, wide: Expression) -> Expression:
        """The position in shared memory of an entry, by its place among results."""
        return wide if self.piece == 1 else p.Sum((wide, p.FloorDiv(wide, self.run)))

    def position_of_load(self, wide: Expression) -> Expression:
        """The position in shared memory of an entry, by its place among loads."""
        if self.piece == 1:
            return wide
        row = p.Product((self.run + 1, p.Remainder(wide, self.piece)))
        return p.Sum((row, p.FloorDiv(wide, self.piece)))

    def to_load_order(self, wide: Expression) -> Expression:
        """From the order of results to that of loads.

        >>> print(Swizzle(8, 16).to_load_order(var("k")))
        8*(k % 16) + k // 16
        """
        if self.piece == 1:
            return wide
        row = p.Product((self.piece, p.Remainder(wide, self.run)))
        return p.Sum((row, p.FloorDiv(wide, self.run)))


UNSWIZZLED = Swizzle()


def n_tile_entries(tile: int, depth: int, swizzle: Swizzle) -> int:
    """The most that a tile takes of shared memory, in entries, in either order."""
    return max(tile * (depth + PADDING), depth * (tile + swizzle.padding))


def clamped(value: Expression, extent: Expression) -> Expression:
    """The value, or the last one below an extent: a place that may be read."""
    return p.If(p.Comparison(value, "<", extent), value, extent - 1)
