"""Trees of sparse operands in other formats: built once, and cached while these live.

The tree of a compressed matrix, or of sorted coordinates, shares their values; for
unsorted coordinates, each call copies the values in tree order. In both cases, a change
of values in place affects the next call. The tree of a matrix is rebuilt when the
matrix has new arrays, as a matrix of scipy has after an insertion.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from feinsum.calling.kernel_cache import Calls, LookupOptions
from feinsum.errors import InvalidEinsumError
from feinsum.machine import MachineModel
from feinsum.memory import get_remembered
from feinsum.nests import (
    BestNest,
    EstimatedTime,
    Network,
    Sizes,
    find_best_nest,
    list_level_orders,
)
from feinsum.result_memory import get_idle_limit_bytes
from feinsum.sparse import (
    COO,
    CSC,
    CSF,
    CSR,
    compressed_from_object,
    node_counts,
    to_csf,
)

ARRAYS = ("pointers", "indices", "values"), ("indptr", "indices", "data")
"""Names of the arrays of a compressed matrix, in feinsum and in scipy."""


class _OfMatrix(NamedTuple):
    """A tree, the matrix from which it was built, and that matrix's arrays then."""

    matrix: ref[Any]
    shape: tuple[int, ...]
    arrays: tuple[Any, ...]
    tree: CSF

    def is_of(self, matrix: Any, arrays: tuple[Any, ...]) -> bool:
        if self.shape != (*matrix.shape,) or self.matrix() is not matrix:
            return False
        return all(a is b for a, b in zip(self.arrays, arrays, strict=True))


def get_matrix_tree(matrix: Any) -> CSF | None:
    """Return the tree of a matrix by rows or columns; None for any other operand.

    >>> from feinsum.sparse import random_uniform, to_csr
    >>> matrix = to_csr(random_uniform((30, 20), 90, seed=0))
    >>> get_matrix_tree(matrix) is get_matrix_tree(matrix)
    True
    """
    names = ARRAYS[not isinstance(matrix, CSR | CSC)]
    arrays = tuple(getattr(matrix, name, None) for name in names)
    if any(array is None for array in arrays):
        return None
    # matrices of scipy cannot be hashed
    trees, key = get_remembered(Calls).matrices, id(matrix)
    cached = trees.get(key)
    # another matrix may have got the id after this one was freed
    if cached is not None and cached.is_of(matrix, arrays):
        tree: CSF = cached.tree
        return tree
    compressed = compressed_from_object(matrix)
    if compressed is None:
        return None
    tree = to_csf(compressed, (1, 0) if isinstance(compressed, CSC) else (0, 1))
    reference = ref(matrix, lambda _: trees.pop(key, None))
    trees[key] = _OfMatrix(reference, tuple(matrix.shape), arrays, tree)
    return tree


class _OfCoordinates(NamedTuple):
    """A tree of coordinates.

    Attributes:
        order: for each entry of the tree, its position in the coordinates; None if
            these are sorted, and the tree shares their values.
    """

    tree: CSF
    order: Any


def get_coordinate_tree(entries: COO, axes: tuple[int, ...]) -> CSF:
    """Return the tree of coordinates in a level order, with their current values.

    It is cached unless there are duplicates, or it takes too much memory.

    >>> entries = COO((4, 2), ([3, 0], [1, 1]), [1.0, 2.0])
    >>> tree = get_coordinate_tree(entries, (0, 1))
    >>> entries.values[:] = 5.0, 6.0
    >>> get_coordinate_tree(entries, (0, 1)) is tree, tree.values
    (True, array([6., 5.]))
    """
    trees = get_remembered(Calls).coordinates.setdefault(entries, {})
    if axes not in trees:
        trees[axes] = _sort_once(entries, axes)
    cached: _OfCoordinates | None = trees[axes]
    if cached is None:
        return to_csf(entries, axes)
    if cached.order is not None:
        values = cached.tree.values
        # all positions are valid, and with mode="raise" numpy would buffer the output
        np.take(entries.values, cached.order, out=values, mode="clip")
    return cached.tree


def forget_tree(entries: COO, axes: tuple[int, ...]) -> None:
    """Free a tree that was made of coordinates."""
    get_remembered(Calls).coordinates.get(entries, {}).pop(axes, None)


def _sort_once(entries: COO, axes: tuple[int, ...]) -> _OfCoordinates | None:
    n_bytes = entries.nnz * (entries.values.itemsize + 8 * (entries.order + 1))
    if n_bytes > get_idle_limit_bytes():
        return None
    numbers = np.arange(entries.nnz)
    numbered = to_csf(COO(entries.shape, entries.indices, numbers), axes)
    if numbered.nnz < entries.nnz:
        return None
    order = None if numbered.values is numbers else numbered.values
    values = entries.values if order is None else entries.values[order]
    return _OfCoordinates(numbered.with_values(values), order)


MAX_AXES = 4
"""Maximum axes of a tensor for which all level orders are estimated (24 of them)."""
GAIN = 1.25
"""Minimum predicted speedup for which coordinates are sorted in another order."""

Trees = tuple[CSF, ...]
"""Trees of one tensor, in several orders of levels."""
Axes = tuple[int, ...]


def are_trees(operand: object) -> bool:
    """Return whether an operand is several trees.

    >>> are_trees([1.0, 2.0])
    False
    """
    is_some = isinstance(operand, (list, tuple)) and bool(operand)
    return is_some and all(isinstance(tree, CSF) for tree in operand)  # type: ignore[attr-defined]


def choose_tree(
    network_of: Callable[[Axes], Network],
    operand: COO | Trees,
    arrays: Sequence[Any],
    options: LookupOptions,
    is_recorded: Callable[[CSF], bool],
) -> CSF:
    """Choose the tree that a call reads.

    Args:
        network_of: returns the network of the call for a level order.
        operand: coordinates, or several trees of one tensor.
        arrays: the other operands, and anything in place of the sparse one.
        options: the options of the call.
        is_recorded: returns whether a recipe is recorded for a tree.

    Raises:
        InvalidEinsumError: with the rule ``operand``, if the trees are of different
            tensors.
    """
    if not isinstance(operand, COO):
        _check_alike(operand)
    shape = operand.shape if isinstance(operand, COO) else operand[0].shape
    usual = tuple(range(len(shape)))
    network = network_of(usual)
    alike = tuple((np.shape(a), np.result_type(a).str) for k, a in enumerate(arrays)
                  if k != network.sparse)  # fmt: skip
    key = ("levels", network, alike, _get_size_key(operand), options)

    def choose() -> Axes:
        if not isinstance(operand, COO):
            return _find_best_tree(network_of, operand, arrays)
        tree = get_coordinate_tree(operand, usual)
        if len(usual) > MAX_AXES or not tree.profile[-1] or is_recorded(tree):
            return usual
        best = _find_best_order(network, operand, arrays)
        if best != usual:
            forget_tree(operand, usual)
        return best

    axes: Axes = get_remembered(Calls).sparse.get(key, choose)
    if isinstance(operand, COO):
        return get_coordinate_tree(operand, axes)
    # the cache has orders, not trees: trees with equal profiles share the choice
    return next(tree for tree in operand if tree.axes == axes)


def _get_size_key(operand: COO | Trees) -> Hashable:
    """Return a key of the sizes on which the order depends, without building trees."""
    if isinstance(operand, COO):
        return operand.shape, operand.nnz
    return tuple((tree.shape, tree.axes, tree.profile) for tree in operand)


def _check_alike(trees: Trees) -> None:
    if len({(tree.shape, tree.profile[-1]) for tree in trees}) > 1:
        raise InvalidEinsumError(
            f"trees of the shapes {[tree.shape for tree in trees]} with "
            f"{[tree.profile[-1] for tree in trees]} entries are given as one operand; "
            "expected trees of one tensor in several level orders",
            rules=("operand",),
        )


def _find_best_tree(
    network_of: Callable[[Axes], Network], trees: Trees, arrays: Sequence[Any]
) -> Axes:
    """Return the level order of the tree with the shortest estimated time."""

    def estimate_s(tree: CSF) -> float:
        network = network_of(tree.axes)
        return _estimate(network, tree.shape, tree.profile, arrays)

    return min(trees, key=estimate_s).axes


def _find_best_order(network: Network, entries: COO, arrays: Sequence[Any]) -> Axes:
    """Return the order of the axes, or one that is estimated to be clearly faster."""
    counts, term = node_counts(entries), network.inputs[network.sparse or 0]
    seconds: dict[Axes, float] = {}
    for other in list_level_orders(network):
        axes = tuple(term.index(index) for index in other.levels)
        nodes = tuple(counts[frozenset(axes[: k + 1])] for k in range(len(axes)))
        seconds[axes] = _estimate(other, entries.shape, nodes, arrays)
    usual = tuple(range(len(term)))
    best = min(seconds, key=lambda axes: seconds[axes])
    # another order costs a sort of all entries
    return best if GAIN * seconds[best] < seconds[usual] else usual


def _estimate(
    network: Network,
    shape: tuple[int, ...],
    nodes: tuple[int, ...],
    arrays: Sequence[Any],
) -> float:
    position = network.sparse or 0
    extents = dict(zip(network.inputs[position], shape, strict=True))
    for k, (term, array) in enumerate(zip(network.inputs, arrays, strict=False)):
        if k != position:
            extents |= dict(zip(term, np.shape(array), strict=True))
    best, _ = find_estimated_nest(network, Sizes(extents, nodes))
    return inf if best is None else float(best.cost)


def find_estimated_nest(
    network: Network, sizes: Sizes, item_bytes: int = 8
) -> tuple[BestNest | None, MachineModel]:
    """Find the nest that is estimated to be the fastest here; also return the host."""
    from feinsum.measure import open_device
    from feinsum.predict.machine import model_machine

    machine = model_machine(open_device("host").device)
    cost = EstimatedTime(
        network,
        sizes,
        MachineModel(vector_bytes=machine.vector_bytes),
        item_bytes=item_bytes,
        n_threads=machine.n_cores,
    )
    return find_best_nest(network, cost), machine
