"""Sparse arrays of other packages: scipy.sparse and pydata's sparse.

Neither is required: their arrays are read through attributes, and the packages are
imported only to create their arrays.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from feinsum.extras import requiring
from feinsum.sparse.convert import to_coo
from feinsum.sparse.formats import COO, CSC, CSF, CSR, SparseArray
from feinsum.sparse.rejection import reject
from feinsum.sparse.sorting import index_dtype

__all__ = [
    "compressed_from_object",
    "from_object",
    "is_sparse",
    "to_pydata",
    "to_scipy",
]


def is_sparse(value: object) -> bool:
    """Whether that is a sparse array, ours or of a package that is understood.

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
        InvalidSparseArrayError: ``unknown-format`` for anything else, and
            ``fill-value`` if entries that are not stored count as anything but zero.
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
    dtype = index_dtype(max(value.shape, default=0))
    indices = tuple(np.asarray(column).astype(dtype) for column in columns)
    return COO(tuple(value.shape), indices, np.asarray(entries.data))


def compressed_from_object(value: Any) -> CSR | CSC | None:
    """The matrix by rows or columns that shares the arrays of a compressed matrix.

    None for anything else, and for a matrix of scipy with duplicates or indices out of
    order.

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
    """The array as ``csr_array``, ``csc_array``, or else ``coo_array``.

    Raises:
        FeinsumError: if scipy is not installed.
    """
    scipy = _package("scipy.sparse", "scipy")
    if isinstance(array, CSR | CSC):
        kind = scipy.csr_array if isinstance(array, CSR) else scipy.csc_array
        return kind((array.values, array.indices, array.pointers), shape=array.shape)
    entries = to_coo(array)
    return scipy.coo_array((entries.values, entries.indices), shape=array.shape)


def to_pydata(array: SparseArray) -> Any:
    """The array as ``sparse.COO``; duplicates are summed.

    Raises:
        FeinsumError: if pydata's sparse is not installed.
    """
    entries = to_coo(array)
    coords = np.stack(entries.indices)
    return _package("sparse", "sparse").COO(coords, entries.values, shape=array.shape)


def _package(module: str, name: str) -> Any:
    with requiring(name, None, "this format"):
        return import_module(module)
