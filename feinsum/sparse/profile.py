"""Properties of a pattern: node counts and a digest."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import combinations

import numpy as np

from feinsum.sparse.checks import Array
from feinsum.sparse.convert import to_coo
from feinsum.sparse.formats import COO, CSC, CSF, CSR, SparseArray
from feinsum.sparse.rejection import reject
from feinsum.sparse.sorting import begins, sort_coordinates

__all__ = ["count_nodes", "node_counts", "pattern_digest", "require_pattern"]

_CHUNK = 2**20


def count_nodes(array: SparseArray, axes: Iterable[int]) -> int:
    """The number of combinations of indices of these axes that have an entry.

    That is the number of nodes at a level of a tree whose levels down to it are these
    axes, in any order.

    >>> count_nodes(COO((4, 2), ([3, 0, 3], [1, 1, 0]), [1.0, 2.0, 3.0]), [0])
    2
    """
    chosen = sorted(set(axes))
    if not chosen:
        return int(array.nnz > 0)
    entries = to_coo(array)
    columns = [entries.indices[axis] for axis in chosen]
    order = sort_coordinates(columns, [array.shape[axis] for axis in chosen])
    if order is not None:
        columns = [column[order] for column in columns]
    return int(np.count_nonzero(begins(columns)))


def node_counts(array: SparseArray) -> dict[frozenset[int], int]:
    """:func:`count_nodes` of every set of axes: the profiles of all orders of levels.

    Complexity: a sort for each of the 2**order sets.

    >>> counts = node_counts(COO((4, 2), ([3, 0, 3], [1, 1, 0]), [1.0, 2.0, 3.0]))
    >>> counts[frozenset({0})], counts[frozenset({0, 1})]
    (2, 3)
    """
    entries = to_coo(array)
    sets = (
        frozenset(axes)
        for size in range(array.order + 1)
        for axes in combinations(range(array.order), size)
    )
    return {axes: count_nodes(entries, axes) for axes in sets}


def pattern_digest(array: SparseArray) -> str:
    """The SHA-256 of an array without its values.

    Equal patterns in different formats have different digests; the dtype of indices
    does not matter.

    >>> first = CSR((2, 3), [0, 1, 2], [2, 0], [5.0, 6.0])
    >>> other = CSR((2, 3), [0, 1, 2], [2, 0], [7.0, 8.0])
    >>> pattern_digest(first) == pattern_digest(other)
    True
    """
    axes = array.axes if isinstance(array, CSF) else ()
    found = sha256(repr((type(array).__name__, array.shape, axes)).encode())
    for part in _parts(array):
        found.update(f"{len(part)};".encode())
        for start in range(0, len(part), _CHUNK):
            found.update(part[start : start + _CHUNK].astype("<i8").tobytes())
    return found.hexdigest()


def _parts(array: SparseArray) -> tuple[Array, ...]:
    match array:
        case COO():
            return array.indices
        case CSR() | CSC():
            return (array.pointers, array.indices)
        case CSF():
            return (*array.pointers, *array.indices)


def require_pattern(array: SparseArray, digest: str) -> None:
    """Refuse an array whose pattern has changed since it was prepared.

    Raises:
        InvalidSparseArrayError: with the rule ``pattern-changed``.
    """
    found = pattern_digest(array)
    if found != digest:
        reject(
            "pattern-changed",
            f"the pattern has the digest {found[:12]}..., and had {digest[:12]}... "
            "when the array was prepared; prepare it again, and change only values",
        )
