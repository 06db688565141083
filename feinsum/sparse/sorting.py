"""Coordinates in lexicographic order, in linear time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from feinsum.sparse.checks import Array

__all__ = ["begins", "index_dtype", "sort_coordinates", "sorted_and_summed"]

_DIGIT = 16
"""Bits of a digit: numpy sorts integers of 16 bits by counting."""


def index_dtype(largest: int) -> np.dtype[np.signedinteger]:
    """The dtype for indices up to the given one."""
    return np.dtype(np.int32 if largest < 2**31 else np.int64)


def sort_coordinates(columns: Sequence[Array], extents: Sequence[int]) -> Array | None:
    """The stable permutation that sorts coordinates; None if they are sorted.

    Complexity: linear; one pass for each 16 bits of the extents together.

    >>> sort_coordinates([np.array([1, 0]), np.array([0, 5])], (2, 6)).tolist()
    [1, 0]
    """
    keys = [*_keys(columns, extents)]
    if len(keys) == 1 and bool(np.all(keys[0][0][1:] >= keys[0][0][:-1])):
        return None
    order = np.arange(len(columns[0]))
    # from the last digit to the first, for each pass is stable
    for key, span in reversed(keys):
        for shift in range(0, (span - 1).bit_length(), _DIGIT):
            digit = ((key >> shift) & (2**_DIGIT - 1)).astype(np.uint16)
            order = order[np.argsort(digit[order], kind="stable")]
    return order


def _keys(
    columns: Sequence[Array], extents: Sequence[int]
) -> Iterator[tuple[Array, int]]:
    """Neighbouring columns as one integer, as far as 63 bits go, with the span."""
    key, span = None, 1
    for column, extent in zip(columns, extents, strict=True):
        wide = max(extent, 1)
        if key is None or span * wide > 2**63 - 1:
            if key is not None:
                yield key, span
            key, span = column.astype(np.int64), wide
        else:
            key, span = key * wide + column, span * wide
    if key is not None:
        yield key, span


def begins(columns: Sequence[Array]) -> Array:
    """Where sorted coordinates differ from those ahead of them; a boolean each."""
    n = len(columns[0])
    found = np.zeros(n, dtype=bool)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def sorted_and_summed(
    columns: Sequence[Array], values: Array, extents: Sequence[int]
) -> tuple[list[Array], Array]:
    """Coordinates in lexicographic order, each once, and the sums of their values.

    Duplicates are added in input order.
    """
    order = sort_coordinates(columns, extents)
    if order is not None:
        columns, values = [c[order] for c in columns], values[order]
    first = begins(columns)
    if first.all():
        return list(columns), values
    starts = np.flatnonzero(first)
    # numpy adds up short integers in 64 bits
    summed = np.add.reduceat(values, starts).astype(values.dtype, copy=False)
    return [c[starts] for c in columns], summed
