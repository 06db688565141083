"""Decompositions that are made of calls with a sparse operand converge."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.sparse import from_dense, random_profile, to_csf

INDICES, RANKS = "ijkl", "rstu"


def mttkrp(order, mode):
    stored = INDICES[:order]
    others = [f"{i}a" for k, i in enumerate(stored) if k != mode]
    return f"{stored},{','.join(others)}->{stored[mode]}a"


def ttmc(order, mode=None):
    stored = INDICES[:order]
    kept = [k for k in range(order) if k != mode]
    terms = ",".join(stored[k] + RANKS[k] for k in kept)
    free = "" if mode is None else stored[mode]
    return f"{stored},{terms}->{free}{''.join(RANKS[k] for k in kept)}"


def cp_als(tree, rank, n_sweeps):
    """The factors, and the squared residual after each step."""
    rng = np.random.default_rng(0)
    order = tree.order
    factors = [rng.random((n, rank)) for n in tree.shape]
    norm, residuals = float(np.sum(tree.values**2)), []
    for _ in range(n_sweeps):
        for mode in range(order):
            others = [f for k, f in enumerate(factors) if k != mode]
            found = call_einsum(mttkrp(order, mode), tree, *others)
            gram = np.prod([f.T @ f for f in others], axis=0)
            factors[mode] = found @ np.linalg.pinv(gram)
            inner = np.sum(found * factors[mode])
            own = np.sum(gram * (factors[mode].T @ factors[mode]))
            residuals.append(norm - 2 * inner + own)
    return factors, np.array(residuals) / norm


def hooi(tree, ranks, n_sweeps):
    """The core's squared norm after each step, over that of the tensor."""
    rng = np.random.default_rng(0)
    factors = [
        np.linalg.qr(rng.random(shape))[0]
        for shape in zip(tree.shape, ranks, strict=True)
    ]
    norms = []
    for _ in range(n_sweeps):
        for mode in range(tree.order):
            others = [f for k, f in enumerate(factors) if k != mode]
            found = call_einsum(ttmc(tree.order, mode), tree, *others)
            rows = found.reshape(len(found), -1)
            left = np.linalg.svd(rows, full_matrices=False)[0]
            factors[mode] = np.ascontiguousarray(left[:, : ranks[mode]])
            core = call_einsum(ttmc(tree.order), tree, *factors)
            norms.append(np.sum(core**2))
    return np.array(norms) / np.sum(tree.values**2)


TREES = {
    3: random_profile((30, 20, 10), (28, 200, 900), seed=0, skew=0.5),
    4: random_profile((12, 9, 8, 7), (12, 60, 200, 500), seed=0, skew=0.5),
}


@pytest.mark.parametrize("order", TREES)
def test_no_step_of_least_squares_makes_the_residual_larger(order):
    """Each is the best for its mode, whichever mode the tree has at its root."""
    for axes in (range(order), range(order)[::-1]):
        tree = to_csf(TREES[order], tuple(axes))
        _, residuals = cp_als(tree, rank=5, n_sweeps=4)
        assert np.all(np.diff(residuals) <= 1e-10)
        assert 0 < residuals[-1] < residuals[0]


@pytest.mark.parametrize("order", TREES)
def test_no_step_of_orthogonal_iteration_makes_the_core_smaller(order):
    """The norm of the core is what the decomposition holds of the tensor."""
    norms = hooi(TREES[order], (4, 3, 2, 2)[:order], n_sweeps=3)
    assert np.all(np.diff(norms) >= -1e-10)
    assert norms[0] < norms[-1] < 1


def test_a_tensor_of_low_rank_is_found():
    """Up to the precision of its entries."""
    rng = np.random.default_rng(3)
    parts = [rng.random((n, 2)) * (rng.random((n, 2)) < 0.4) for n in (20, 15, 10)]
    dense = np.einsum("ia,ja,ka->ijk", *parts)
    tree = to_csf(from_dense(dense))
    factors, _ = cp_als(tree, rank=2, n_sweeps=200)
    found = np.einsum("ia,ja,ka->ijk", *factors)
    assert np.linalg.norm(found - dense) < 1e-3 * np.linalg.norm(dense)
    assert hooi(tree, (2, 2, 2), n_sweeps=2)[-1] == pytest.approx(1, abs=1e-10)
