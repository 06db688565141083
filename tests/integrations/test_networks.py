"""Networks of tensors whose steps libraries of contraction orders leave to feinsum."""

from __future__ import annotations

import numpy as np
import opt_einsum
import pytest

import feinsum

cotengra = pytest.importorskip("cotengra")
# who computes the steps is tested, and no kernel has to be built for them
pytestmark = pytest.mark.usefixtures("usual_calls")

RNG = np.random.default_rng(3)


def lattice(dtype, n_slices):
    inputs, output, _, sizes = cotengra.utils.lattice_equation([4, 7], d_max=2)
    arrays = [RNG.random([sizes[i] for i in term]).astype(dtype) for term in inputs]
    tree = cotengra.array_contract_tree(inputs, output, sizes, optimize="greedy")
    tree.slice_(target_slices=n_slices)
    return tree, arrays


BACKEND = {"backend": "feinsum"}
FUNCTIONS = {"implementation": (feinsum.einsum, feinsum.tensordot)}


@pytest.mark.parametrize(
    ("dtype", "n_slices", "options"),
    [
        ("f4", 1, BACKEND),
        ("f8", 8, BACKEND),
        ("c16", 1, FUNCTIONS),
        ("f8", 8, FUNCTIONS),
    ],
)
def test_sliced_trees_of_cotengra(dtype, n_slices, options):
    """By the name of the backend, and by its functions."""
    tree, arrays = lattice(dtype, n_slices)
    with feinsum.profile() as found:
        result = tree.contract(arrays, **options)
    expected = tree.contract(arrays, backend="numpy")
    np.testing.assert_allclose(result, expected, rtol=1e-3 if dtype == "f4" else 1e-10)
    assert sum(x.n_calls for x in found.calls if x.caller == "feinsum") > 20


def test_networks_of_quimb():
    """A scalar, and a sum over one network's open indices."""
    quimb = pytest.importorskip("quimb.tensor")
    network = quimb.TN_rand_reg(20, 3, D=3, seed=1)
    expected = network.contract(backend="numpy")
    found = network.contract(backend="feinsum")
    assert abs(found - expected) <= 1e-10 * abs(expected)


def test_paths_of_opt_einsum():
    """The backend computes every step of a path."""
    operands = [RNG.random((4, 5)), RNG.random((5, 6)), RNG.random((6, 7))]
    found = opt_einsum.contract("ij,jk,kl->il", *operands, backend="feinsum")
    np.testing.assert_allclose(found, np.linalg.multi_dot(operands), rtol=1e-10)
