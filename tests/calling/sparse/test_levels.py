"""Coordinates become the tree, and of several trees that one is read, that suits."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.calling.kernel_cache import LookupOptions
from feinsum.calling.sparse.trees import choose_tree
from feinsum.errors import InvalidEinsumError
from feinsum.nests import Network
from feinsum.sparse import random_profile, random_uniform, to_coo, to_csf, to_dense

MTTKRP = "ijk,ja,ka->ia"


pytestmark = pytest.mark.usefixtures("fresh_calls")


def network_of(axes):
    levels = tuple("ijk"[axis] for axis in axes)
    return Network((tuple("ijk"), tuple("ja"), tuple("ka")), tuple("ia"), 0, levels)


def long_fibers():
    """Entries of a few rows ``k``, in each of which fibers along ``j`` are long."""
    tree = random_profile((6, 300, 400), (6, 900, 60_000), seed=0)  # levels k, i, j
    entries = to_coo(tree)
    k, i, j = entries.indices
    return type(entries)((300, 400, 6), (i, j, k), entries.values)


def factors(tensor, rank=16):
    rng = np.random.default_rng(0)
    return [rng.random((n, rank)) for n in tensor.shape[1:]]


def chosen(operand, is_recorded=False):
    shape = operand[0].shape if isinstance(operand, tuple) else operand.shape
    rng = np.random.default_rng(0)
    arrays = [None, *(rng.random((n, 16)) for n in shape[1:])]
    return choose_tree(
        network_of, operand, arrays, LookupOptions(), lambda _tree: is_recorded
    )


def test_coordinates_are_read_in_the_order_that_is_expected_to_be_fastest():
    """Where fibers are long in another order than that of the axes."""
    tensor = long_fibers()
    assert chosen(tensor).axes != (0, 1, 2)
    found = call_einsum(MTTKRP, tensor, *factors(tensor))
    wanted = np.einsum(MTTKRP, to_dense(tensor), *factors(tensor), optimize=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_axes_stay_in_order_where_little_is_won():
    """Of a uniform pattern."""
    assert chosen(to_coo(random_uniform((50, 50, 50), 900, seed=0))).axes == (0, 1, 2)


def test_a_recorded_recipe_keeps_the_order_of_axes():
    """What was tuned from a file is of this order."""
    assert chosen(long_fibers(), is_recorded=True).axes == (0, 1, 2)


def test_of_several_trees_the_best_is_read():
    """Whatever their order in the list; the result is that of any of them."""
    tensor = long_fibers()
    trees = tuple(to_csf(tensor, axes) for axes in [(1, 0, 2), (2, 0, 1), (0, 1, 2)])
    assert chosen(trees) is chosen(trees[::-1])
    wanted = call_einsum(MTTKRP, trees[2], *factors(tensor))
    found = call_einsum(MTTKRP, list(trees), *factors(tensor))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_trees_of_two_tensors_are_refused():
    trees = [random_uniform((9, 8, 7), n, seed=0) for n in (40, 50)]
    with pytest.raises(InvalidEinsumError, match="one tensor"):
        call_einsum(MTTKRP, trees, *factors(trees[0]))
