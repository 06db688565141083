"""The sides of a product of two operands, each flattened to one index.

For ``aebf,dfce->abcd``, the second operand has d, the last index of the output, so its
indices are *across*, and those of the first operand *along*::

    C[along, across] = sum(summed, A[along, summed]*B[summed, across])

    across = (c, d)     along = (a, b)     summed = (e, f)

If the last index of an operand is not the fastest one of its side, neighbours of the
side are not neighbours in memory. Such an index is cut in pieces, whose values become
the fastest. In the sum above, A ends in f, and B in e. With ``e`` cut in pieces of
four, each piece is one sector of B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pymbolic import var

from feinsum.ir import BatchedEinsum, Extent, IndexList
from feinsum.transforms.gpu.heuristics import LONG_SUM, PIECE, PIECES
from feinsum.transforms.gpu.layouts import (
    UNSWIZZLED,
    Flat,
    Swizzle,
    flatten_indices,
)
from feinsum.transforms.primitives.schedule import Expression
from feinsum.transforms.roles import count_points


@dataclass(frozen=True)
class Sides:
    """The indices of each role, flattened to one index.

    Attributes:
        batch: output indices of both operands.
        across: output indices of the operand that has the last one. Neighbouring
            work-items have neighbouring values.
        along: output indices of the other operand.
        summed: indices that the output lacks.
        first: the position of the operand that has ``across``.
    """

    batch: Flat
    across: Flat
    along: Flat
    summed: Flat
    first: int


@dataclass(frozen=True)
class Side:
    """The output indices of one operand, cut into tiles.

    Attributes:
        flat: these indices, flattened.
        group: the iname of the tiles.
        tile: length of a tile.
        swizzle: the order of entries in a tile.
    """

    flat: Flat
    group: str
    tile: int
    swizzle: Swizzle = UNSWIZZLED

    @property
    def start(self) -> Expression:
        return self.tile * var(self.group)


def find_sides(
    einsum: BatchedEinsum, extents: Mapping[str, Extent], piece: int | None = None
) -> Sides | None:
    """Return the sides of a product of two operands; None if it is not such a product.

    Args:
        einsum: the einsum.
        extents: extent of each index.
        piece: length of the pieces of the last index of the operand with ``across``, if
            the output ends in another index; by default 4 if sums are long.

    >>> from feinsum import array, einsum
    >>> product = einsum("bik,bkj->bij", array("A", (9, 8, 7)), array("B", (9, 7, 6)))
    >>> sides = find_sides(product, product.extents)
    >>> sides.batch.indices, sides.across.indices, sides.along.indices, sides.first
    (('b',), ('j',), ('i',), 1)
    """
    if einsum.n_operands != 2 or not einsum.output:
        return None
    terms = [set(term) for term in einsum.inputs]
    shared = terms[0] & terms[1]
    last = next((i for i in reversed(einsum.output) if i not in shared), None)
    if last is None:
        return None
    # neighbouring work-items have neighbouring values of the output's last index
    first = 0 if last in terms[0] else 1
    ends = [term[-1:] for term in einsum.inputs]
    along_indices = [i for i in einsum.output if i in terms[1 - first] - shared]
    # keep the order of the output in all roles, so that its tiles are few runs
    kinds = (
        [i for i in einsum.output if i in shared],
        [i for i in einsum.output if i in terms[first] - shared],
        # the operand's last index is the fastest: neighbours then read neighbours
        sorted(along_indices, key=lambda i: (i,) == ends[1 - first]),
        sorted(einsum.summation_indices, key=make_contiguity_key(einsum)),
    )
    flats = [flatten_indices(kind, extents) for kind in kinds]
    if any(flat is None for flat in flats) or not all(kinds[1:]):
        return None
    batch, across, along, summed = (flat for flat in flats if flat is not None)
    for end in ends:
        summed = _cut(summed, end)
    if piece is None:
        piece = PIECE if count_points(einsum, summed.indices) >= LONG_SUM else 1
    if piece > 1:
        across = _cut(across, ends[first], piece)
    return Sides(batch, across, along, summed, first)


def _cut(flat: Flat, end: IndexList, piece: int = PIECE) -> Flat:
    """Cut the last index of an operand in pieces, if it is not the fastest one."""
    if flat.cut or not end or end[0] not in flat.indices[:-1]:
        return flat
    extent = dict(zip(flat.indices, flat.extents, strict=True))[end[0]]
    # pieces that are not full would need a guard
    is_even = isinstance(extent, int) and extent % piece == 0
    return replace(flat, cut=end[0], piece=piece) if is_even else flat


def list_pieces(einsum: BatchedEinsum) -> tuple[int, ...]:
    """Return the lengths of pieces that suit an einsum; see :func:`find_sides`."""
    cuts = {
        piece: sides.across.cut
        for piece in PIECES
        if (sides := find_sides(einsum, einsum.extents, piece)) is not None
    }
    return (*(piece for piece, cut in cuts.items() if cut), 1)


def make_contiguity_key(
    einsum: BatchedEinsum,
) -> Callable[[str], tuple[bool, int, str]]:
    """Return a sort key that puts the most contiguous indices last."""

    def order_of(index: str) -> tuple[bool, int, str]:
        terms = einsum.inputs
        is_last = any(term[-1:] == (index,) for term in terms)
        return is_last, max(t.index(index) for t in terms if index in t), index

    return order_of
