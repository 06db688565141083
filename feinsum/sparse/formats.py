r"""Sparse arrays: coordinates, compressed rows and columns, compressed fibers.

Every array is checked on creation. The stored entries form the pattern, including
stored zeros. The entries T[0,2,1], T[0,2,3] and T[4,0,0] of a tensor, as compressed
fibers::

    level 0 (i)    0         4          indices[0] = 0 4
                   |         |          pointers[0] = 0 1 2
    level 1 (j)    2         0          indices[1] = 2 0
                  / \        |          pointers[1] = 0 2 3
    level 2 (k)  1   3       0          indices[2] = 1 3 0
                 v0  v1      v2         values

Source: Smith and Karypis 2015 (compressed sparse fibers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from feinsum.errors import InvalidSparseArrayError
from feinsum.words import format_count


class _Sparse:
    """What arrays of all formats have."""

    shape: tuple[int, ...]
    values: Array

    @property
    def order(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Number of stored entries, counting each duplicate."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class COO(_Sparse):
    """Coordinates in any order; duplicates are summed.

    Attributes:
        shape: extents.
        indices: for each axis, the index of every entry; int32 or int64.
        values: value of every entry.

    Raises:
        InvalidSparseArrayError: with the code of the broken rule.

    >>> COO((2, 3), ([0, 1], [2, 0]), [5.0, 6.0]).nnz
    2
    """

    shape: tuple[int, ...]
    indices: tuple[Array, ...]
    values: Array

    def __post_init__(self) -> None:
        _set(self, shape=check_shape(self.shape))
        _check_count(self.indices, self.order, "index arrays", "axes")
        _set(self, values=check_entry_values(self.values))
        axes = enumerate(zip(self.indices, self.shape, strict=True))
        checked = [check_indices(i, n, f"axis {axis}") for axis, (i, n) in axes]
        _set(self, indices=tuple(checked))
        for axis, array in enumerate(checked):
            if len(array) != self.nnz:
                reject(
                    "length",
                    f"axis {axis} has {format_count(len(array), 'index')} "
                    f"for {format_count(self.nnz, 'value')}",
                )


@dataclass(frozen=True, eq=False)
class _Compressed(_Sparse):
    """A matrix with one axis compressed."""

    shape: tuple[int, ...]
    pointers: Array
    indices: Array
    values: Array

    compressed: ClassVar[int]
    """The axis that has pointers."""

    def __post_init__(self) -> None:
        _set(self, shape=check_shape(self.shape))
        if self.order != 2:
            reject("rank", f"a matrix has 2 axes, not {self.order}; use CSF")
        across = self.shape[1 - self.compressed]
        indices = check_indices(self.indices, across, "the array of indices")
        along = self.shape[self.compressed]
        pointers = check_pointers(self.pointers, along, len(indices), "pointers")
        check_fibers(indices, pointers, "the array of indices")
        values = check_entry_values(self.values, len(indices))
        _set(self, indices=indices, pointers=pointers, values=values)


class CSR(_Compressed):
    """A matrix by rows.

    Row i has the column indices and values at ``pointers[i]:pointers[i + 1]``, and may
    be empty.

    >>> CSR((2, 3), [0, 1, 2], [2, 0], [5.0, 6.0]).nnz
    2
    """

    compressed = 0


class CSC(_Compressed):
    """A matrix by columns.

    Column j has the row indices and values at ``pointers[j]:pointers[j + 1]``, and may
    be empty.

    >>> CSC((3, 2), [0, 1, 2], [2, 0], [5.0, 6.0]).nnz
    2
    """

    compressed = 1


@dataclass(frozen=True, eq=False)
class CSF(_Sparse):
    """Compressed sparse fibers: a tree with a level for each axis.

    A node at level l is a combination of indices of the first l + 1 axes below which
    there is an entry. So every node has children.

    Attributes:
        shape: extents, in the order of the array's axes.
        axes: the axis of each level, from the root.
        indices: for each level, the index of every node; int32 or int64.
        pointers: for each level except the last, the positions in the next level at
            which the children of every node begin, and at which the last ones end.
        values: values of the nodes of the last level.

    Raises:
        InvalidSparseArrayError: with the code of the broken rule.

    >>> tree = CSF((2, 3), (0, 1), ([0, 1], [2, 0, 2]), ([0, 1, 3],), [5.0, 6.0, 7.0])
    >>> tree.profile
    (2, 3)
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    indices: tuple[Array, ...]
    pointers: tuple[Array, ...]
    values: Array

    def __post_init__(self) -> None:
        _set(self, shape=check_shape(self.shape))
        if sorted(self.axes) != list(range(self.order)):
            reject(
                "axes",
                f"the levels hold the axes {self.axes}; expected each of "
                f"0 to {self.order - 1} once",
            )
        _check_count(self.indices, self.order, "index arrays", "levels")
        _check_count(self.pointers, self.order - 1, "pointer arrays", "inner levels")
        extents = [self.shape[axis] for axis in self.axes]
        levels = enumerate(zip(self.indices, extents, strict=True))
        indices = [check_indices(i, n, f"level {level}") for level, (i, n) in levels]
        # nodes of the first level are children of a root, which is not stored
        root = np.array([0, len(indices[0])])
        pointers = [root]
        for level, below in enumerate(indices[1:]):
            name = f"the pointer array of level {level}"
            n_nodes = len(indices[level])
            level_pointers = self.pointers[level]
            pointers.append(check_pointers(level_pointers, n_nodes, len(below), name))
            _require_children(pointers[-1], name)
        for level, (array, above) in enumerate(zip(indices, pointers, strict=True)):
            check_fibers(array, above, f"level {level}")
        values = check_entry_values(self.values, len(indices[-1]))
        _set(self, axes=tuple(map(int, self.axes)), values=values)
        _set(self, indices=tuple(indices), pointers=tuple(pointers[1:]))

    @property
    def profile(self) -> tuple[int, ...]:
        """Number of nodes at each level, from the root."""
        return tuple(map(len, self.indices))

    def with_values(self, values: object, axes: Sequence[int] | None = None) -> CSF:
        """Return a tree with the same pattern, which is not checked again.

        Args:
            values: the values of the entries, in order.
            axes: the axis of each level, a permutation; by default those of this tree.

        Raises:
            InvalidSparseArrayError: if there is not one number for each entry.

        >>> tree = CSF((2, 3), (0, 1), ([1], [2]), ([0, 1],), [5.0])
        >>> tree.with_values([6.0], axes=(1, 0)).shape
        (3, 2)
        """
        new_axes = self.axes if axes is None else tuple(axes)
        extents = [self.shape[axis] for axis in self.axes]
        tree = object.__new__(CSF)
        _set(tree, values=check_entry_values(values, self.nnz), axes=new_axes)
        _set(tree, shape=tuple(extents[new_axes.index(k)] for k in range(self.order)))
        _set(tree, indices=self.indices, pointers=self.pointers)
        return tree


SparseArray: TypeAlias = COO | CSR | CSC | CSF


def _require_children(pointers: Array, name: str) -> None:
    empty = np.flatnonzero(pointers[1:] == pointers[:-1])
    if len(empty):
        reject(
            "empty-node",
            f"{name} gives node {empty[0]} no children; omit such nodes",
        )


def _check_count(n_actual: object, expected: int, name: str, unit: str) -> None:
    n_given = len(n_actual) if isinstance(n_actual, tuple | list) else None
    if n_given != expected:
        text = f"{n_given} {name}" if n_given is not None else type(n_actual).__name__
        reject("rank", f"given {text}; expected a tuple of {expected}, for as many "
               f"{unit}")  # fmt: skip


def _set(value: object, **fields: object) -> None:
    """Set fields of a frozen dataclass during its initialization."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


Array: TypeAlias = npt.NDArray[Any]

_MAX_EXTENT = 2**63 - 1

_INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


def check_shape(shape: object) -> tuple[int, ...]:
    """Check a shape, and return it as a tuple of at least one integer."""
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


def check_entry_values(values: object, n_entries: int | None = None) -> Array:
    """Check values, and return them as an array of one axis and a numeric dtype."""
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        reject("value-dtype", f"the values have dtype {array.dtype}; expected numbers")
    if array.ndim != 1:
        reject(
            "length",
            f"the values have {format_count(array.ndim, 'axis')}; expected one",
        )
    if n_entries is not None and len(array) != n_entries:
        reject(
            "length",
            f"there are {format_count(len(array), 'value')} for "
            f"{format_count(n_entries, 'entry')}",
        )
    return array


def check_indices(indices: object, extent: int, name: str) -> Array:
    """Check that indices are in range, and return them as an array of one axis."""
    array = _check_integers(indices, name)
    if len(array) and (array.min() < 0 or array.max() >= extent):
        k = int(np.flatnonzero((array < 0) | (array >= extent))[0])
        reject(
            "index-range",
            f"{name} has {array[k]} at place {k}; expected 0 to {extent - 1}",
        )
    return array


def check_pointers(pointers: object, n_nodes: int, n_children: int, name: str) -> Array:
    """Check pointers: where the children of each node begin, and the last ones end."""
    array = _check_integers(pointers, name)
    if len(array) != n_nodes + 1:
        reject(
            "pointer-length",
            f"{name} has {format_count(len(array), 'entry')}; expected "
            f"{n_nodes + 1}, one more than "
            "there are nodes",
        )
    if array[0] != 0:
        reject("pointer-start", f"{name} begins with {array[0]}; expected 0")
    falls = np.flatnonzero(array[1:] < array[:-1])
    if len(falls):
        k = int(falls[0])
        reject(
            "pointer-order",
            f"{name} falls from {array[k]} to {array[k + 1]} at place {k + 1}; "
            "expected pointers that do not decrease",
        )
    if array[-1] != n_children:
        reject(
            "pointer-end",
            f"{name} ends with {array[-1]}; expected {n_children}, the number of "
            "entries that it points to",
        )
    return array


def check_fibers(indices: Array, pointers: Array, name: str) -> None:
    """Check that the indices below one node increase, without repetition."""
    # over all fibers at once; at the beginning of a fiber, the index may decrease
    rises = indices[1:] > indices[:-1]
    inner = pointers[1:-1]
    rises[inner[(inner > 0) & (inner < len(indices))] - 1] = True
    if rises.all():
        return
    k = int(np.flatnonzero(~rises)[0])
    if indices[k] == indices[k + 1]:
        reject(
            "duplicate",
            f"{name} has {indices[k]} twice below one node, at places {k} and "
            f"{k + 1}; convert coordinates, which sums duplicates",
        )
    reject(
        "unsorted",
        f"{name} has {indices[k]} ahead of {indices[k + 1]} below one node, at "
        f"place {k}; sort the indices below each node",
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
        k = int(np.flatnonzero(~finite)[0])
        reject(
            "not-finite",
            f"value {k} is {values[k]}; expected finite values, so drop or replace "
            "such entries",
        )


def _check_integers(indices: object, name: str) -> Array:
    array = np.asarray(indices)
    if array.dtype not in _INDEX_DTYPES:
        reject(
            "index-dtype",
            f"{name} has dtype {array.dtype}; expected int32 or int64",
        )
    if array.ndim != 1:
        reject("length", f"{name} has {format_count(array.ndim, 'axis')}; expected one")
    return array


def reject(rule: str, message: str) -> NoReturn:
    """Raise the error of a rule.

    Args:
        rule: stable code of the broken rule.
        message: what was given, what was expected, and what to do.

    Raises:
        InvalidSparseArrayError: always.
    """
    raise InvalidSparseArrayError(f"[{rule}] {message}", rule=rule)


_DIGIT = 16
"""Bits of a digit: numpy sorts 16-bit integers in linear time."""


def choose_index_dtype(largest: int) -> np.dtype[np.signedinteger]:
    """Return the dtype for indices up to this one."""
    return np.dtype(np.int32 if largest < 2**31 else np.int64)


def sort_coordinates(columns: Sequence[Array], extents: Sequence[int]) -> Array | None:
    """Return the stable permutation that sorts coordinates; None if they are sorted.

    Complexity: linear; one pass for each 16 bits of the extents together.

    >>> sort_coordinates([np.array([1, 0]), np.array([0, 5])], (2, 6)).tolist()
    [1, 0]
    """
    keys = [*_combine_columns(columns, extents)]
    if len(keys) == 1 and bool(np.all(keys[0][0][1:] >= keys[0][0][:-1])):
        return None
    # a radix sort: numpy's stable sort of 16-bit integers is linear, its lexsort is not
    order = np.arange(len(columns[0]))
    # from the last digit to the first, since each pass is stable
    for key, span in reversed(keys):
        for shift in range(0, (span - 1).bit_length(), _DIGIT):
            digit = ((key >> shift) & (2**_DIGIT - 1)).astype(np.uint16)
            order = order[np.argsort(digit[order], kind="stable")]
    return order


def _combine_columns(
    columns: Sequence[Array], extents: Sequence[int]
) -> Iterator[tuple[Array, int]]:
    """Yield adjacent columns combined into 63-bit integers, with their spans."""
    key, span = None, 1
    for column, extent in zip(columns, extents, strict=True):
        wide = max(extent, 1)
        # combine as many columns as fit, to sort all of them in one pass per digit
        if key is None or span * wide > 2**63 - 1:
            if key is not None:
                yield key, span
            key, span = column.astype(np.int64), wide
        else:
            key, span = key * wide + column, span * wide
    if key is not None:
        yield key, span


def mark_begins(columns: Sequence[Array]) -> Array:
    """Mark the sorted coordinates that differ from the previous ones."""
    n = len(columns[0])
    is_present = np.zeros(n, dtype=bool)
    is_present[:1] = True
    for column in columns:
        is_present[1:] |= column[1:] != column[:-1]
    return is_present


def sort_and_sum(
    columns: Sequence[Array], values: Array, extents: Sequence[int]
) -> tuple[list[Array], Array]:
    """Sort coordinates lexicographically, and sum the values of duplicates.

    Duplicates are added in input order.
    """
    order = sort_coordinates(columns, extents)
    if order is not None:
        columns, values = [c[order] for c in columns], values[order]
    first = mark_begins(columns)
    if first.all():
        return list(columns), values
    starts = np.flatnonzero(first)
    # numpy adds up short integers in 64 bits: convert back
    summed = np.add.reduceat(values, starts).astype(values.dtype, copy=False)
    return [c[starts] for c in columns], summed
