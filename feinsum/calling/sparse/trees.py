"""Trees of sparse operands in other formats: made once, and kept while those live.

A tree of a compressed matrix, or of sorted coordinates, shares their values; otherwise
values are sorted anew in each call. So values that are changed in place count in the
next call. The tree of a matrix is made anew where the matrix has other arrays than
before, as one of scipy has after an entry was inserted.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from feinsum.calling.kernel_cache import Calls
from feinsum.memory import remembered
from feinsum.result_memory import idle_limit_bytes
from feinsum.sparse import COO, CSC, CSF, CSR, compressed_from_object, to_csf

ARRAYS = ("pointers", "indices", "values"), ("indptr", "indices", "data")
"""Names of the arrays of a compressed matrix: ours, and scipy's."""


class _OfMatrix(NamedTuple):
    """A tree, with the matrix that it is made of and the arrays that this had."""

    matrix: ref[Any]
    shape: tuple[int, ...]
    arrays: tuple[Any, ...]
    tree: CSF

    def is_of(self, matrix: Any, arrays: tuple[Any, ...]) -> bool:
        if self.shape != (*matrix.shape,) or self.matrix() is not matrix:
            return False
        return all(a is b for a, b in zip(self.arrays, arrays, strict=True))


def tree_of_matrix(matrix: Any) -> CSF | None:
    """The tree of a matrix by rows or columns; None for any other operand.

    >>> from feinsum.sparse import random_uniform, to_csr
    >>> matrix = to_csr(random_uniform((30, 20), 90, seed=0))
    >>> tree_of_matrix(matrix) is tree_of_matrix(matrix)
    True
    """
    names = ARRAYS[not isinstance(matrix, CSR | CSC)]
    arrays = tuple(getattr(matrix, name, None) for name in names)
    if any(array is None for array in arrays):
        return None
    # matrices of scipy cannot be hashed
    kept, key = remembered(Calls).matrices, id(matrix)
    known = kept.get(key)
    if known is not None and known.is_of(matrix, arrays):
        tree: CSF = known.tree
        return tree
    made = compressed_from_object(matrix)
    if made is None:
        return None
    tree = to_csf(made, (1, 0) if isinstance(made, CSC) else (0, 1))
    there = ref(matrix, lambda _: kept.pop(key, None))
    kept[key] = _OfMatrix(there, tuple(matrix.shape), arrays, tree)
    return tree


class _OfCoordinates(NamedTuple):
    """A tree, and the place of each of its entries among the coordinates.

    None where all are in order, and the tree has their values.
    """

    tree: CSF
    places: Any


def tree_of_coordinates(entries: COO, axes: tuple[int, ...]) -> CSF:
    """The tree of coordinates in a level order, with their values of now.

    It is kept unless there are duplicates, or it takes more memory than may be idle.

    >>> entries = COO((4, 2), ([3, 0], [1, 1]), [1.0, 2.0])
    >>> tree = tree_of_coordinates(entries, (0, 1))
    >>> entries.values[:] = 5.0, 6.0
    >>> tree_of_coordinates(entries, (0, 1)) is tree, tree.values
    (True, array([6., 5.]))
    """
    kept = remembered(Calls).coordinates.setdefault(entries, {})
    if axes not in kept:
        kept[axes] = _made(entries, axes)
    found: _OfCoordinates | None = kept[axes]
    if found is None:
        return to_csf(entries, axes)
    if found.places is not None:
        values = found.tree.values
        # with the usual mode="raise", numpy would buffer the output; all places fit
        np.take(entries.values, found.places, out=values, mode="clip")
    return found.tree


def forget_tree(entries: COO, axes: tuple[int, ...]) -> None:
    """Free a tree that was made of coordinates."""
    remembered(Calls).coordinates.get(entries, {}).pop(axes, None)


def _made(entries: COO, axes: tuple[int, ...]) -> _OfCoordinates | None:
    n_bytes = entries.nnz * (entries.values.itemsize + 8 * (entries.order + 1))
    if n_bytes > idle_limit_bytes():
        return None
    numbers = np.arange(entries.nnz)
    numbered = to_csf(COO(entries.shape, entries.indices, numbers), axes)
    if numbered.nnz < entries.nnz:
        return None
    places = None if numbered.values is numbers else numbered.values
    values = entries.values if places is None else entries.values[places]
    parts = numbered.shape, numbered.axes, numbered.indices, numbered.pointers
    return _OfCoordinates(CSF(*parts, values), places)
