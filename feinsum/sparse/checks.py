"""The common rules of all formats; checking takes linear time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from feinsum.sparse.rejection import reject
from feinsum.words import counted

__all__ = [
    "Array",
    "check_fibers",
    "check_indices",
    "check_pointers",
    "check_shape",
    "check_values",
    "require_finite",
]

Array: TypeAlias = npt.NDArray[Any]

_MAX_EXTENT = 2**63 - 1
_INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


def check_shape(shape: object) -> tuple[int, ...]:
    """The shape as a tuple of integers; at least one axis."""
    if not isinstance(shape, Sequence) or not len(shape):
        reject("shape", f"the shape is {shape!r}; expected one extent per axis")
    for extent in shape:
        is_integer = isinstance(extent, int | np.integer)
        if not is_integer or isinstance(extent, bool) or not 0 <= extent <= _MAX_EXTENT:
            reject(
                "shape",
                f"the shape {shape!r} has the extent {extent!r}; expected an integer "
                f"from 0 to {_MAX_EXTENT}",
            )
    return tuple(int(extent) for extent in shape)


def check_values(values: object, n_entries: int | None = None) -> Array:
    """The values as an array of one axis and a numeric dtype."""
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        reject("value-dtype", f"the values have dtype {array.dtype}; expected numbers")
    if array.ndim != 1:
        reject(
            "length",
            f"the values have {counted(array.ndim, 'axis')}; expected one",
        )
    if n_entries is not None and len(array) != n_entries:
        reject(
            "length",
            f"there are {counted(len(array), 'value')} for "
            f"{counted(n_entries, 'entry')}",
        )
    return array


def check_indices(indices: object, extent: int, what: str) -> Array:
    """Indices as an array of one axis, in range."""
    array = _integers(indices, what)
    if len(array) and (array.min() < 0 or array.max() >= extent):
        at = int(np.flatnonzero((array < 0) | (array >= extent))[0])
        reject(
            "index-range",
            f"{what} has {array[at]} at place {at}; expected 0 to {extent - 1}",
        )
    return array


def check_pointers(pointers: object, n_nodes: int, n_children: int, what: str) -> Array:
    """Check pointers: where the children of each node begin, and the last ones end."""
    array = _integers(pointers, what)
    if len(array) != n_nodes + 1:
        reject(
            "pointer-length",
            f"{what} has {counted(len(array), 'entry')}; expected "
            f"{n_nodes + 1}, one more than "
            "there are nodes",
        )
    if array[0] != 0:
        reject("pointer-start", f"{what} begins with {array[0]}; expected 0")
    falls = np.flatnonzero(array[1:] < array[:-1])
    if len(falls):
        at = int(falls[0])
        reject(
            "pointer-order",
            f"{what} falls from {array[at]} to {array[at + 1]} at place {at + 1}; "
            "expected pointers that do not decrease",
        )
    if array[-1] != n_children:
        reject(
            "pointer-end",
            f"{what} ends with {array[-1]}; expected {n_children}, the number of "
            "entries that it points to",
        )
    return array


def check_fibers(indices: Array, pointers: Array, what: str) -> None:
    """Check that the indices below one node increase, without repetition."""
    rises = indices[1:] > indices[:-1]
    inner = pointers[1:-1]
    rises[inner[(inner > 0) & (inner < len(indices))] - 1] = True
    if rises.all():
        return
    at = int(np.flatnonzero(~rises)[0])
    if indices[at] == indices[at + 1]:
        reject(
            "duplicate",
            f"{what} has {indices[at]} twice below one node, at places {at} and "
            f"{at + 1}; convert coordinates, which sums duplicates",
        )
    reject(
        "unsorted",
        f"{what} has {indices[at]} ahead of {indices[at + 1]} below one node, at "
        f"place {at}; sort the indices below each node",
    )


def require_finite(values: Array) -> None:
    """Refuse values that are not finite.

    Entries that a sparse array does not store count as zero even when multiplied by NaN
    or infinity, so such products differ from those of dense arrays.

    Raises:
        InvalidSparseArrayError: with the rule ``not-finite``.

    >>> require_finite(np.array([1.0, 2.0]))
    """
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        reject(
            "not-finite",
            f"value {at} is {values[at]}; expected finite values, so drop or replace "
            "such entries",
        )


def _integers(indices: object, what: str) -> Array:
    array = np.asarray(indices)
    if array.dtype not in _INDEX_DTYPES:
        reject(
            "index-dtype",
            f"{what} has dtype {array.dtype}; expected int32 or int64",
        )
    if array.ndim != 1:
        reject("length", f"{what} has {counted(array.ndim, 'axis')}; expected one")
    return array
