"""Conversions between sparse formats, in linear time, and from and to other packages.

scipy.sparse and pydata's sparse are optional: their arrays are read through attributes,
and the packages are imported only to create their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from feinsum.extras import require_extra
from feinsum.sparse.formats import (
    COO,
    CSC,
    CSF,
    CSR,
    Array,
    SparseArray,
    choose_index_dtype,
    mark_begins,
    reject,
    sort_and_sum,
)

Matrix = TypeVar("Matrix", CSR, CSC)


def to_coo(array: SparseArray) -> COO:
    """Convert an array to coordinates; those of a tree are in the order of its levels.

    >>> to_coo(CSR((2, 3), [0, 1, 2], [2, 0], [5.0, 6.0])).indices
    (array([0, 1], dtype=int32), array([2, 0]))
    """
    if isinstance(array, COO):
        return array
    columns: list[Array | None] = [None] * array.order
    if isinstance(array, CSF):
        for level, axis in enumerate(array.axes):
            columns[axis] = _expand_level(array, level)
    else:
        along = array.compressed
        numbers = np.arange(
            array.shape[along], dtype=choose_index_dtype(array.shape[along])
        )
        columns[along] = np.repeat(numbers, np.diff(array.pointers))
        columns[1 - along] = array.indices
    return COO(array.shape, tuple(c for c in columns if c is not None), array.values)


def _expand_level(tree: CSF, level: int) -> Array:
    """Return the index at a level of every entry."""
    column = tree.indices[level]
    for pointers in tree.pointers[level:]:
        column = np.repeat(column, np.diff(pointers))
    return column


def to_csf(array: SparseArray, axes: Sequence[int] | None = None) -> CSF:
    """Convert an array to a tree with these axes as its levels; duplicates are summed.

    Args:
        array: an array in any format.
        axes: axes of the levels, from the root; by default those of the given tree, or
            in increasing order for other formats.

    Complexity: linear in the entries; about 40 bytes per entry besides the result.

    >>> entries = COO((4, 2), ([3, 0, 3], [1, 1, 1]), [1.0, 2.0, 3.0])
    >>> tree = to_csf(entries, axes=(1, 0))
    >>> tree.profile, tree.values
    ((1, 2), array([2., 4.]))
    """
    if isinstance(array, CSF) and axes is None:
        return array
    chosen = tuple(range(array.order)) if axes is None else tuple(axes)
    if sorted(chosen) != list(range(array.order)):
        reject("axes", f"given {axes}; expected each of 0 to {array.order - 1} once")
    if isinstance(array, CSF) and array.axes == chosen:
        return array
    # a compressed matrix is a tree except for empty rows, and is sorted already
    if isinstance(array, CSR | CSC) and array.compressed == chosen[0]:
        return _without_empty(array)
    entries = to_coo(array)
    extents = [array.shape[axis] for axis in chosen]
    columns, values = sort_and_sum(
        [entries.indices[axis] for axis in chosen], entries.values, extents
    )
    dtype = choose_index_dtype(max(extents))
    indices, pointers = _build_levels([c.astype(dtype, copy=False) for c in columns])
    return CSF(array.shape, chosen, tuple(indices), tuple(pointers), values)


def _without_empty(matrix: CSR | CSC) -> CSF:
    """Convert a compressed matrix to a tree, which shares its values."""
    filled = np.flatnonzero(np.diff(matrix.pointers))
    begins_at = matrix.pointers[np.append(filled, len(matrix.pointers) - 1)]
    dtype = choose_index_dtype(max(*matrix.shape, matrix.nnz))
    outer, inner, pointers = (
        array.astype(dtype, copy=False) for array in (filled, matrix.indices, begins_at)
    )
    axes = matrix.compressed, 1 - matrix.compressed
    return CSF(matrix.shape, axes, (outer, inner), (pointers,), matrix.values)


def _build_levels(columns: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Build the index arrays and pointers of a tree from sorted, distinct indices."""
    indices: list[Array] = []
    pointers: list[Array] = []
    dtype = choose_index_dtype(len(columns[0]))
    first = np.zeros(len(columns[0]), dtype=bool)
    before: Array | None = None
    for column in columns:
        # a node begins where its own index or that of an outer level changes
        first = first | mark_begins([column])
        starts = np.flatnonzero(first)
        if before is not None:
            # the node of each entry; the first child begins where its parent begins
            numbers = np.cumsum(first, dtype=dtype) - 1
            ends = np.array([len(starts)], dtype=dtype)
            pointers.append(np.concatenate([numbers[before], ends]))
        indices.append(column[starts])
        before = starts
    return indices, pointers


def to_csr(array: SparseArray) -> CSR:
    """Convert a matrix to compressed sparse rows (CSR), summing duplicate entries.

    >>> to_csr(COO((3, 2), ([2, 0], [0, 1]), [5.0, 6.0])).pointers
    array([0, 1, 1, 2], dtype=int32)
    """
    return array if isinstance(array, CSR) else _compress(array, CSR)


def to_csc(array: SparseArray) -> CSC:
    """Convert a matrix to compressed sparse columns (CSC), summing duplicate entries.

    >>> to_csc(COO((3, 2), ([2, 0], [0, 1]), [5.0, 6.0])).indices
    array([2, 0], dtype=int32)
    """
    return array if isinstance(array, CSC) else _compress(array, CSC)


def _compress(array: SparseArray, kind: type[Matrix]) -> Matrix:
    if array.order != 2:
        reject("rank", f"a matrix has 2 axes, not {array.order}; use to_csf")
    along, across = kind.compressed, 1 - kind.compressed
    entries = to_coo(array)
    (outer, inner), values = sort_and_sum(
        [entries.indices[along], entries.indices[across]],
        entries.values,
        (array.shape[along], array.shape[across]),
    )
    dtype = choose_index_dtype(max(len(values), *array.shape))
    counts = np.bincount(outer, minlength=array.shape[along])
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
    return kind(array.shape, pointers, inner.astype(dtype, copy=False), values)


def to_dense(array: SparseArray) -> Array:
    """Convert an array to a dense one; duplicates are summed.

    >>> to_dense(COO((2, 2), ([0, 0], [1, 1]), [1.0, 2.0]))
    array([[0., 3.], [0., 0.]])
    """
    entries = to_coo(array)
    dense = np.zeros(array.shape, dtype=array.values.dtype)
    # not dense[...] += values, which would drop duplicates
    np.add.at(dense, entries.indices, entries.values)
    return dense


def from_dense(array: Array) -> COO:
    """Return the nonzero entries, in the order of the axes.

    >>> from_dense(np.array([[0.0, 3.0], [0.0, 0.0]])).indices
    (array([0]), array([1]))
    """
    dense = np.asarray(array)
    return COO(dense.shape, np.nonzero(dense), dense[np.nonzero(dense)])


def is_sparse(value: object) -> bool:
    """Return whether a value is a sparse array, of feinsum or of a supported package.

    >>> is_sparse(COO((2,), ([0],), [1.0])), is_sparse([1.0, 0.0])
    (True, False)
    """
    if isinstance(value, np.ndarray):
        return False
    if isinstance(value, (COO, CSR, CSC, CSF)):
        return True
    has_coordinates = any(hasattr(value, name) for name in ("tocoo", "to_coo"))
    is_pydata = hasattr(value, "coords") and hasattr(value, "fill_value")
    return hasattr(value, "nnz") and (has_coordinates or is_pydata)


def from_object(value: Any) -> COO:
    """Read a sparse array of any supported package.

    These are arrays of ``scipy.sparse`` in any format, and of pydata's ``sparse``.

    Raises:
        InvalidSparseArrayError: ``unknown-format`` for anything else; ``fill-value`` if
            entries that are not stored are not zero.
    """
    if not is_sparse(value):
        reject(
            "unknown-format",
            f"given {type(value).__name__}; expected an array of feinsum.sparse, "
            "scipy.sparse or pydata's sparse. from_dense takes dense arrays",
        )
    if isinstance(value, COO | CSR | CSC | CSF):
        return to_coo(value)
    fill = getattr(value, "fill_value", 0)
    if fill != 0:
        reject("fill-value", f"entries that are not stored are {fill}; expected 0")
    entries = _as_coordinates(value)
    # matrices of older releases of scipy have no coords
    coords = getattr(entries, "coords", None)
    columns = (entries.row, entries.col) if coords is None else tuple(coords)
    dtype = choose_index_dtype(max(value.shape, default=0))
    indices = tuple(np.asarray(column).astype(dtype) for column in columns)
    return COO(tuple(value.shape), indices, np.asarray(entries.data))


def compressed_from_object(value: Any) -> CSR | CSC | None:
    """Wrap a matrix that is compressed by rows or columns, sharing its arrays.

    Return None for anything else, and for a matrix of scipy that has duplicates or
    unsorted indices.

    >>> compressed_from_object(COO((2, 2), ([0, 0], [1, 1]), [1.0, 2.0])) is None
    True
    """
    if isinstance(value, CSR | CSC):
        return value
    kinds: dict[str, type[CSR | CSC]] = {"csr": CSR, "csc": CSC}
    kind = kinds.get(getattr(value, "format", ""))
    if kind is None or not getattr(value, "has_canonical_format", False):
        return None
    return kind(tuple(value.shape), value.indptr, value.indices, value.data)


def _as_coordinates(value: Any) -> Any:
    for name in ("tocoo", "to_coo"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value


def to_scipy(array: SparseArray) -> Any:
    """Convert an array to ``csr_array``, ``csc_array``, or else ``coo_array``.

    Raises:
        FeinsumError: if scipy is not installed.
    """
    scipy = _import_package("scipy.sparse", "scipy")
    if isinstance(array, CSR | CSC):
        kind = scipy.csr_array if isinstance(array, CSR) else scipy.csc_array
        return kind((array.values, array.indices, array.pointers), shape=array.shape)
    entries = to_coo(array)
    return scipy.coo_array((entries.values, entries.indices), shape=array.shape)


def to_pydata(array: SparseArray) -> Any:
    """Convert an array to ``sparse.COO``; duplicates are summed.

    Raises:
        FeinsumError: if pydata's sparse is not installed.
    """
    entries = to_coo(array)
    coords = np.stack(entries.indices)
    return _import_package("sparse", "sparse").COO(
        coords, entries.values, shape=array.shape
    )


def _import_package(module: str, name: str) -> Any:
    with require_extra(name, None, "this format"):
        return import_module(module)
