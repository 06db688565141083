"""Sparse arrays: coordinates, compressed rows and columns, compressed fibers.

Each is a value that is checked on creation. The stored entries form the pattern,
whatever their values: a stored zero belongs to it.

Source: Smith and Karypis 2015 (compressed sparse fibers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from feinsum.sparse.checks import (
    Array,
    check_fibers,
    check_indices,
    check_pointers,
    check_shape,
    check_values,
)
from feinsum.sparse.rejection import reject
from feinsum.words import counted

__all__ = ["COO", "CSC", "CSF", "CSR", "SparseArray"]


@dataclass(frozen=True, eq=False)
class COO:
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
        _one_each(self.indices, self.order, "index arrays", "axes")
        _set(self, values=check_values(self.values))
        axes = enumerate(zip(self.indices, self.shape, strict=True))
        checked = [check_indices(i, n, f"axis {axis}") for axis, (i, n) in axes]
        _set(self, indices=tuple(checked))
        for axis, array in enumerate(checked):
            if len(array) != self.nnz:
                reject(
                    "length",
                    f"axis {axis} has {counted(len(array), 'index')} "
                    f"for {counted(self.nnz, 'value')}",
                )

    @property
    def order(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Number of stored entries, counting each duplicate."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class _Compressed:
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
        values = check_values(self.values, len(indices))
        _set(self, indices=indices, pointers=pointers, values=values)

    @property
    def order(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.values)


class CSR(_Compressed):
    """A matrix by rows: column indices and values of row i are
    ``pointers[i]:pointers[i + 1]``. A row may be empty.

    >>> CSR((2, 3), [0, 1, 2], [2, 0], [5.0, 6.0]).nnz
    2
    """

    compressed = 0


class CSC(_Compressed):
    """A matrix by columns: row indices and values of column j are
    ``pointers[j]:pointers[j + 1]``. A column may be empty.

    >>> CSC((3, 2), [0, 1, 2], [2, 0], [5.0, 6.0]).nnz
    2
    """

    compressed = 1


@dataclass(frozen=True, eq=False)
class CSF:
    """Compressed sparse fibers: a tree with a level for each axis.

    A node of level l is a combination of indices of the first l + 1 axes with an entry
    below. Every node has children.

    Attributes:
        shape: extents, in the order of the array's axes.
        axes: the axis of each level, from the root.
        indices: for each level, the index of every node; int32 or int64.
        pointers: for each level except the last, where the children of every node begin
            in the next level, and where the last ones end.
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
        _one_each(self.indices, self.order, "index arrays", "levels")
        _one_each(self.pointers, self.order - 1, "pointer arrays", "inner levels")
        extents = [self.shape[axis] for axis in self.axes]
        levels = enumerate(zip(self.indices, extents, strict=True))
        indices = [check_indices(i, n, f"level {level}") for level, (i, n) in levels]
        root = np.array([0, len(indices[0])])
        pointers = [root]
        for level, below in enumerate(indices[1:]):
            what = f"the pointer array of level {level}"
            n_nodes = len(indices[level])
            given = self.pointers[level]
            pointers.append(check_pointers(given, n_nodes, len(below), what))
            _require_children(pointers[-1], what)
        for level, (array, above) in enumerate(zip(indices, pointers, strict=True)):
            check_fibers(array, above, f"level {level}")
        values = check_values(self.values, len(indices[-1]))
        _set(self, axes=tuple(map(int, self.axes)), values=values)
        _set(self, indices=tuple(indices), pointers=tuple(pointers[1:]))

    @property
    def order(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.values)

    @property
    def profile(self) -> tuple[int, ...]:
        """Number of nodes at each level, from the root."""
        return tuple(map(len, self.indices))


SparseArray: TypeAlias = COO | CSR | CSC | CSF


def _require_children(pointers: Array, what: str) -> None:
    empty = np.flatnonzero(pointers[1:] == pointers[:-1])
    if len(empty):
        reject(
            "empty-node",
            f"{what} gives node {empty[0]} no children; omit such nodes",
        )


def _one_each(given: object, expected: int, what: str, places: str) -> None:
    n_given = len(given) if isinstance(given, tuple | list) else None
    if n_given != expected:
        text = f"{n_given} {what}" if n_given is not None else type(given).__name__
        reject("rank", f"given {text}; expected a tuple of {expected}, for as many "
               f"{places}")  # fmt: skip


def _set(value: object, **fields: object) -> None:
    """Set fields of a frozen dataclass that is being made."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
