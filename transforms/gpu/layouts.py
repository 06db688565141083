"""Layouts: the position of each coordinate, and the work-item that has it.

A layout ``shape:strides`` maps coordinates to the position ``sum(stride*coordinate)``.
It also maps a number to a position, by its coordinates, of which the first one is the
fastest. Layouts describe memory, work-groups, warps, registers and fragments of tensor
cores. Two examples are the lanes of a warp, and the sums of a fragment of 16 by 8::

    lane = 4*g + t     (4, 8):(1, 4)          column of a sum   (2, 4):(1, 2)
    number             t = lane % 4           of e and t        e + 2*t
                       g = lane / 4

Work-items share a tile in rows. If 16 of them read two rows of 8 entries,
``(8, 2):(1, 16)``, of a tile of 4 rows of 16 entries, each takes ``(2, 2):(8, 32)``,
two entries in each of two rows::

      fast: 0  1 ... 7   8  9 ... 15
      row 0   w0 w1 .. w7   w0 w1 .. w7      step (0, 0)   step (1, 0)
      row 1   w8 w9 .. w15  w8 w9 .. w15
      row 2   w0 w1 .. w7   w0 w1 .. w7      step (0, 1)   step (1, 1)
      row 3   w8 w9 .. w15  w8 w9 .. w15

:class:`Flat` makes one axis of several indices, so that every einsum of two operands
becomes ``C[m,n] = A[m,k] B[k,n]``. For ``aebf,dfce->abcd`` with 4 values of b::

    m = (a, b)       m = 4*a + b, and a = m / 4, b = m % 4
    k = (e, f)

Source: NVIDIA, CUTLASS, "CuTe Layouts".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from loopy.symbolic import TypeCast
from numpy import int64
from pymbolic import primitives as p

from feinsum.ir import Extent
from feinsum.raising import value_of
from feinsum.transforms.gpu.heuristics import MIN_WIDTH, PADDING, PIECE
from feinsum.transforms.primitives.copy_async import VECTOR_BYTES
from feinsum.transforms.primitives.schedule import Expression

MAX_AXES = 3
"""Axes of a grid of work-groups."""


@dataclass(frozen=True)
class TileLayout:
    """The position ``sum(stride * coordinate)`` of an entry.

    Attributes:
        shape: the extent of each coordinate, the fastest first.
        strides: of each coordinate.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __call__(self, *coordinates: Expression) -> Expression:
        """Return the position of coordinates.

        >>> print(TileLayout((4, 2), (1, 4))(p.Variable("t"), p.Variable("e")))
        t + 4*e
        """
        terms = zip(coordinates, self.strides, strict=True)
        # a stride of 1 is left out, so that the generated code reads well
        return p.Sum(tuple(x if stride == 1 else stride * x for x, stride in terms))

    def coordinates(self, number: Expression) -> tuple[Expression, ...]:
        """Return the coordinates of a number, which must be less than the size.

        >>> [str(x) for x in TileLayout((4, 8), (1, 4)).coordinates(p.Variable("lane"))]
        ['lane % 4', 'lane // 4']
        """
        coordinates = []
        for extent in self.shape[:-1]:
            coordinates.append(p.Remainder(number, extent))
            number = p.FloorDiv(number, extent)
        # the last coordinate needs no remainder, as the number is less than the size
        return (*coordinates, number)

    def at(self, number: Expression) -> Expression:
        """Return the position of a number, which must be less than the size."""
        return self(*self.coordinates(number))


@dataclass(frozen=True)
class Flat:
    """Several indices flattened to one, the last of them the fastest.

    Attributes:
        indices: the indices; only the first may have a run-time extent.
        extents: their extents, in terms of the kernel.
        cut: an index that is cut in pieces, of which the values are faster than all
            other indices; empty for none.
        piece: length of the pieces.
    """

    indices: tuple[str, ...]
    extents: tuple[Extent, ...]
    cut: str = ""
    piece: int = PIECE

    @property
    def parts(self) -> tuple[tuple[str, int, Extent], ...]:
        """The digits of the flat index, fastest last: index, factor and extent.

        The value of an index is the sum of its digits, each times its factor.

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
                n if isinstance(n, int) else TypeCast(int64, value_of(n))
                for n in self.extents
            )
        )

    def unravel(self, value: Expression) -> dict[str, Expression]:
        """Return the value of each index; each but the first takes a division.

        >>> flat = Flat(("i", "j"), (8, 3))
        >>> {i: str(x) for i, x in flat.unravel(p.Variable("m")).items()}
        {'j': 'm % 3', 'i': 'm // 3'}
        """
        points: dict[str, Expression] = {}
        for index, extent in list(zip(self.indices, self.extents, strict=True))[:0:-1]:
            points[index] = p.Remainder(value, extent)
            value = p.FloorDiv(value, extent)
        # the first index needs no remainder, so its extent may be unknown
        if self.indices:
            points[self.indices[0]] = value
        return points

    def ravel(self, points: Mapping[str, Expression]) -> Expression:
        """Return the flat value of indices: the inverse of :meth:`unravel`."""
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
        """Return whether all tiles of that length are known to be full."""
        return self.is_known and self.n_values % tile == 0

    def unravel_number(self, value: int) -> dict[str, int]:
        """Return the value of each index, as a number."""
        points = {}
        for index, extent in list(zip(self.indices, self.extents, strict=True))[::-1]:
            points[index] = value % int(str(extent))
            value //= int(str(extent))
        return points

    def box_of(self, n_values: int) -> dict[str, int]:
        """Estimate the number of values of each index in a run of consecutive values.

        >>> Flat(("i", "j"), (9, 4)).box_of(8)
        {'j': 4, 'i': 2}
        """
        box: dict[str, int] = {}
        for index, _, extent in reversed(self.parts):
            n = int(str(extent))
            box[index] = box.get(index, 1) * min(n_values, n)
            n_values = -(-n_values // n)
        return box


def flatten_indices(
    indices: Sequence[str], extents: Mapping[str, Extent]
) -> Flat | None:
    """Flatten indices in order, but the one with a run-time extent first.

    Returns:
        The flat index; None if several extents are known only at run time.
    """
    running = [i for i in indices if not isinstance(extents[i], int)]
    if len(running) > 1:
        return None
    order = (*running, *(i for i in indices if i not in running))
    return Flat(order, tuple(extents[i] for i in order))


def split_into_grid_axes(
    indices: Sequence[str], extents: Mapping[str, Extent]
) -> tuple[Flat, ...] | None:
    """Distribute indices to the axes of a grid; the fastest has all fixed extents.

    Returns:
        The axes; None if there are more run-time extents than axes.

    >>> from feinsum.ir import SizeParam
    >>> axes = split_into_grid_axes("aib",
    ...     {"a": SizeParam("A"), "i": 3, "b": SizeParam("B")})
    >>> [axis.indices for axis in axes]
    [('b', 'i'), ('a',)]
    """
    running = [i for i in indices if not isinstance(extents[i], int)]
    if len(running) > MAX_AXES:
        return None
    # The last run-time index shares an axis with the fixed ones. To divide by the other
    # run-time extents would be slow, so each of these indices gets an axis of its own.
    last = running[-1] if running else None
    first = flatten_indices(
        [i for i in indices if i == last or i not in running], extents
    )
    assert first is not None
    return (first, *(Flat((i,), (extents[i],)) for i in reversed(running[:-1])))


@dataclass(frozen=True)
class Share:
    """A work-item's values along an axis: ``first``, ``first + stride`` and so on.

    Attributes:
        n: number of values.
        limit: exclusive limit of the values of all work-items; 0 if they are exactly
            the axis.
        is_idle: whether work-items with ``first >= stride`` have no values.
    """

    first: Expression
    stride: int
    n: int
    limit: int = 0
    is_idle: bool = False

    def at(self, step: Expression) -> Expression:
        return p.Sum((self.first, self.stride * step))


def partition(
    slow: int, fast: int, n_items: int, item: Expression, lanes: int = 1
) -> tuple[Share, Share]:
    """Partition a tile of ``slow`` times ``fast`` entries evenly among work-items.

    Neighbouring work-items get neighbours along ``fast``, as in the module's drawing.

    Args:
        slow: length of the tile along the slow axis.
        fast: length of the tile along the fast axis.
        n_items: number of work-items.
        item: number of a work-item.
        lanes: contiguous entries that one work-item gets together; the share has the
            position of the first.

    >>> slow, fast = partition(16, 128, 256, p.Variable("item"))
    >>> (slow.stride, slow.n), (fast.stride, fast.n)
    ((2, 8), (128, 1))
    """
    width = _choose_width(slow, fast // lanes, n_items)
    rows, run = n_items // width, lanes * width
    # if all items are in one row, they need no division
    column, row = (
        (item, 0) if width == n_items else make_thread_layout(width).coordinates(item)
    )
    if lanes > 1:
        column = p.Product((lanes, column))
    return Share(row, rows, slow // rows), Share(column, run, fast // run)


def make_thread_layout(width: int) -> TileLayout:
    """Return the layout of rows of ``width`` work-items, for any number of rows."""
    return TileLayout((width, 1), (1, width))


def _choose_width(slow: int, fast: int, n_items: int) -> int:
    """Return the most work-items along ``fast`` with which all get equal shares.

    It is 0 if no number does.

    >>> (_choose_width(16, 64, 128), _choose_width(16, 80, 128),
    ...  _choose_width(8, 80, 128))
    (64, 16, 16)
    """
    # wide rows read long runs of neighbours, in the fewest transactions
    widths = (w for w in range(min(fast, n_items), MIN_WIDTH - 1, -1)
              if fast % w == n_items % w == 0)  # fmt: skip
    return next((w for w in widths if slow % (n_items // w) == 0), 0)


def is_evenly_partitioned(slow: int, fast: int, n_items: int) -> bool:
    """Return whether :func:`partition` can give all work-items equal shares."""
    return _choose_width(slow, fast, n_items) > 0


def partition_raggedly(
    slow: int, fast: int, n_items: int, item: Expression
) -> tuple[Share, Share]:
    """Partition a tile of any shape, neighbours along ``fast``, with ragged edges.

    Shares may have values beyond the tile, which need a guard.

    >>> slow, fast = partition_raggedly(32, 35, 160, p.Variable("item"))
    >>> (slow.stride, slow.n, slow.limit, slow.is_idle), (fast.n, fast.limit)
    ((4, 8, 33, True), (1, 35))
    """
    if fast > n_items:
        n = -(-fast // n_items)
        return Share(0, 1, slow, slow), Share(item, n_items, n, n * n_items)
    # distribute whole rows; items beyond them would start rows that others have
    rows = n_items // fast
    n, n_firsts = -(-slow // rows), -(-n_items // fast)
    column, row = make_thread_layout(fast).coordinates(item)
    of_slow = Share(row, rows, n, rows * (n - 1) + n_firsts, n_firsts > rows)
    return of_slow, Share(column, fast, 1, fast)


@dataclass(frozen=True)
class Swizzle:
    """The order of a tile along a side that is cut in pieces.

    Operands are read piece by piece, but results are written across pieces. A side of 8
    values in pieces of 2 is read as ``0 1 | 2 3 | 4 5 | 6 7``. Results have the first
    value of each piece first. So has shared memory, with a padding entry after each
    run, so that the values of one piece are in different banks::

        result order    0  1  2  3  4  5  6  7      (4, 2):(2, 1) leads to load order
        load order      0  2  4  6  1  3  5  7      (2, 4):(5, 1) leads to the position
        position        0  1  2  3  5  6  7  8

    Attributes:
        piece: length of a piece; 1 if both orders are the same.
        run: number of pieces of a tile.
    """

    piece: int = 1
    run: int = 0

    def get_padding(self, itemsize: int = 8) -> int:
        """Return the padding after each row of a tile, in entries of such a size."""
        if self.piece == 1:
            # rows are whole vectors of VECTOR_BYTES
            return max(PADDING, VECTOR_BYTES // itemsize)
        # one for each run, and more until a row ends PADDING entries off the 16 banks
        return self.piece + (PADDING - self.piece) % 16

    def position(self, wide: Expression) -> Expression:
        """Return the position in shared memory of the entry with a number in results.

        It equals ``compute_load_position(to_load_order(wide))``, in a shorter form.
        """
        return wide if self.piece == 1 else p.Sum((wide, p.FloorDiv(wide, self.run)))

    def compute_load_position(self, wide: Expression) -> Expression:
        """Return the position in shared memory of the entry with a number in loads."""
        if self.piece == 1:
            return wide
        return TileLayout((self.piece, self.run), (self.run + 1, 1)).at(wide)

    def to_load_order(self, wide: Expression) -> Expression:
        """Convert an entry's number in the order of results to that of loads.

        >>> print(Swizzle(8, 16).to_load_order(p.Variable("k")))
        8*(k % 16) + k // 16
        """
        if self.piece == 1:
            return wide
        return TileLayout((self.run, self.piece), (self.piece, 1)).at(wide)


UNSWIZZLED = Swizzle()


def clamp(value: Expression, extent: Expression) -> Expression:
    """Limit an index to its extent, so that it can be read."""
    return p.If(p.Comparison(value, "<", extent), value, extent - 1)
