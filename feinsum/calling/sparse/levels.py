"""The tree of a call: the level order in which a tensor is read.

Coordinates become a tree, and one of several trees of a tensor is chosen. If a recipe
is recorded for the order of the axes, that order is used; otherwise estimated times
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

import numpy as np

from feinsum.calling.kernel_cache import Calls
from feinsum.calling.options import CallOptions
from feinsum.calling.place import name_of
from feinsum.calling.sparse.trees import forget_tree, tree_of_coordinates
from feinsum.errors import InvalidEinsumError
from feinsum.memory import remembered
from feinsum.nests import EstimatedTime, Network, Sizes, best_nest, level_orders
from feinsum.sparse import COO, CSF, node_counts

MOST_AXES = 4
"""Most axes of tensors whose orders (24) are all estimated."""
GAIN = 1.25
"""Least predicted speedup for another order of coordinates."""

Trees = tuple[CSF, ...]
"""Trees of one tensor, in several orders of levels."""
Axes = tuple[int, ...]


def are_trees(operand: object) -> bool:
    """Whether an operand is several trees.

    >>> are_trees([1.0, 2.0])
    False
    """
    is_some = isinstance(operand, (list, tuple)) and bool(operand)
    return is_some and all(isinstance(tree, CSF) for tree in operand)  # type: ignore[attr-defined]


def in_levels(
    network_of: Callable[[Axes], Network],
    operand: COO | Trees,
    arrays: Sequence[Any],
    options: CallOptions,
    is_recorded: Callable[[CSF], bool],
) -> CSF:
    """The tree that a call reads.

    Args:
        network_of: returns the network of the call for a level order.
        operand: coordinates, or several trees of one tensor.
        arrays: the other operands, and anything in place of the sparse one.
        options: of the call.
        is_recorded: whether a recipe is recorded for a tree.

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
    where = name_of(options.database), options.policy, options.effort
    key = ("levels", network, alike, _size_of(operand), where)

    def choose() -> Axes:
        if not isinstance(operand, COO):
            return _best_of(network_of, operand, arrays)
        tree = tree_of_coordinates(operand, usual)
        if len(usual) > MOST_AXES or not tree.profile[-1] or is_recorded(tree):
            return usual
        best = _best_order(network, operand, arrays)
        if best != usual:
            forget_tree(operand, usual)
        return best

    axes: Axes = remembered(Calls).sparse.get(key, choose)
    if isinstance(operand, COO):
        return tree_of_coordinates(operand, axes)
    return next(tree for tree in operand if tree.axes == axes)


def _size_of(operand: COO | Trees) -> Hashable:
    """What the order depends on, as far as it is known before trees are made."""
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


def _best_of(
    network_of: Callable[[Axes], Network], trees: Trees, arrays: Sequence[Any]
) -> Axes:
    """The order of the tree with the least estimated time."""

    def seconds(tree: CSF) -> float:
        network = network_of(tree.axes)
        return _estimate(network, tree.shape, tree.profile, arrays)

    return min(trees, key=seconds).axes


def _best_order(network: Network, entries: COO, arrays: Sequence[Any]) -> Axes:
    """The order of the axes, or another one that is expected to be clearly faster."""
    counts, term = node_counts(entries), network.inputs[network.sparse or 0]
    found: dict[Axes, float] = {}
    for other in level_orders(network):
        axes = tuple(term.index(index) for index in other.levels)
        nodes = tuple(counts[frozenset(axes[: k + 1])] for k in range(len(axes)))
        found[axes] = _estimate(other, entries.shape, nodes, arrays)
    usual = tuple(range(len(term)))
    best = min(found, key=lambda axes: found[axes])
    return best if GAIN * found[best] < found[usual] else usual


def _estimate(
    network: Network,
    shape: tuple[int, ...],
    nodes: tuple[int, ...],
    arrays: Sequence[Any],
) -> float:
    from feinsum.measure import open_device
    from feinsum.nests import Machine
    from feinsum.predict.machine import machine_of

    position = network.sparse or 0
    extents = dict(zip(network.inputs[position], shape, strict=True))
    for k, (term, array) in enumerate(zip(network.inputs, arrays, strict=False)):
        if k != position:
            extents |= dict(zip(term, np.shape(array), strict=True))
    machine = machine_of(open_device("host").device)
    cost = EstimatedTime(
        network,
        Sizes(extents, nodes),
        Machine(vector_bytes=machine.vector_bytes),
        n_threads=machine.n_cores,
    )
    found = best_nest(network, cost)
    return inf if found is None else float(found.cost)
