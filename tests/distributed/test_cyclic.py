"""Sparse tensors on many processes: volumes by the formulas, results by numpy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from feinsum.distributed import CyclicPlan, plan_cyclic
from feinsum.distributed.cyclic import sparse_leaf
from feinsum.distributed.grids import grids_within
from feinsum.errors import PlanError
from feinsum.sparse import random_uniform, to_dense

KERNELS = {
    "mttkrp": ("ijk,ja,ka->ia", {"i": 8, "j": 12, "k": 8, "a": 3}),
    "ttmc": ("ijk,jr,ks->irs", {"i": 8, "j": 8, "k": 12, "r": 3, "s": 2}),
    "last mode": ("ijk,ia,ja->ka", {"i": 8, "j": 12, "k": 8, "a": 3}),
    "total": ("ij,jr->r", {"i": 8, "j": 12, "r": 3}),
    "turned": ("ij,rj->ri", {"i": 7, "j": 5, "r": 3}),
    "beside": ("ij,ja,ab->ib", {"i": 7, "j": 5, "a": 3, "b": 2}),
}


def made_of(name: str, seed: int = 0):
    """The sparse operand and the factors of a kernel."""
    subscripts, extents = KERNELS[name]
    terms = subscripts.split("->")[0].split(",")
    rng = np.random.default_rng(seed)
    shapes = [tuple(extents[i] for i in term) for term in terms]
    n_entries = max(1, int(0.2 * np.prod(shapes[0])))
    array = random_uniform(shapes[0], n_entries, seed=seed)
    return array, [rng.integers(-4, 5, shape).astype(float) for shape in shapes[1:]]


def on_processes(processes: int):
    """The plan, sparse operand and factors of every kernel."""
    return {
        name: (plan_cyclic(*KERNELS[name], processes=processes), *made_of(name))
        for name in KERNELS
    }


def blocks_of(made: CyclicPlan, factors, rank: int) -> list[np.ndarray]:
    pairs = zip(made.terms[1:-1], factors, strict=True)
    return [np.ascontiguousarray(f[made.part(t, rank)]) for t, f in pairs]


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_numpys(name):
    """All grids of up to 4 x 4 x 4 give numpy's result, with ragged parts too."""
    array, factors = made_of(name)
    subscripts, extents = KERNELS[name]
    expected = np.einsum(subscripts, to_dense(array), *factors)
    assert np.allclose(sparse_leaf(subscripts, array, *factors), expected)
    n_modes = len(subscripts.partition(",")[0])
    for grid in product((1, 2, 3, 4), repeat=n_modes):
        made = CyclicPlan(subscripts, extents, grid)
        assert np.allclose(made.simulate(array, factors), expected), grid


@pytest.mark.parametrize("grid", list(product((1, 2, 4), repeat=3)))
def test_volumes_of_ttmc_are_those_of_the_formulas(grid):
    """The volumes of TTMc follow the formulas of the paper."""
    subscripts, n = KERNELS["ttmc"]
    counts = CyclicPlan(subscripts, n, grid).counts
    p, (p1, p2, p3) = int(np.prod(grid)), grid
    result = n["i"] * n["r"] * n["s"]
    assert counts.resident == p * n["j"] // p2 * n["r"] + p * n["k"] // p3 * n["s"]
    assert counts.partial == p * result // p1
    assert counts.reduced == (p // p1 - 1) * result
    once = n["j"] * n["r"] + n["k"] * n["s"]
    assert counts.fetched == counts.resident - once


@pytest.mark.parametrize("name", KERNELS)
def test_ranks_hold_what_is_counted(name):
    """Counts are sums over real blocks, and one rank holds each entry."""
    array, factors = made_of(name)
    made = plan_cyclic(*KERNELS[name], processes=12)
    ranks = range(made.processes)
    blocks = [blocks_of(made, factors, rank) for rank in ranks]
    assert made.counts.resident == sum(b.size for row in blocks for b in row)
    parts = made.split(array)
    assert sum(part.nnz for part in parts) == array.nnz
    assert sum(part.values.sum() for part in parts) == pytest.approx(array.values.sum())
    for rank, part in enumerate(parts):
        assert part.shape == made.shape(made.terms[0], rank)


@pytest.mark.parametrize("name", KERNELS)
def test_no_grid_moves_less(name):
    """No other grid moves less than the chosen one."""
    subscripts, extents = KERNELS[name]
    modes = subscripts.partition(",")[0]
    for processes in (1, 6, 8):
        chosen = plan_cyclic(subscripts, extents, processes=processes)
        for grid in grids_within(processes, modes, extents).tolist():
            other = CyclicPlan(subscripts, extents, tuple(grid))
            assert chosen.counts.moved <= other.counts.moved


def test_a_cyclic_plan_is_a_document():
    """It comes back from its text; what was changed is refused."""
    made = plan_cyclic(*KERNELS["mttkrp"], processes=8)
    again = CyclicPlan.from_json(made.to_json())
    assert (again, again.id) == (made, made.id)
    with pytest.raises(PlanError) as caught:
        CyclicPlan.from_json(made.to_json().replace("ijk,", "ijk;"))
    assert set(caught.value.rules) <= {"format", "sparse"}


@pytest.mark.parametrize(
    ("subscripts", "extents", "grid", "words"),
    [
        ("ij->i", {"i": 2, "j": 2}, (1, 1), "expected a sparse operand"),
        ("ii,ia->a", {"i": 2, "a": 2}, (1, 1), "twice"),
        ("ij,ja->ia", {"i": 2, "j": 2}, (1, 1), "a: an index without an extent"),
        ("ij,ja->iaz", {"i": 2, "j": 2, "a": 2, "z": 1}, (1, 1), "of the result only"),
        ("ij,ja->ija", {"i": 2, "j": 2, "a": 2}, (1, 1), "no plan is needed"),
        ("ij,ja->ia", {"i": 2, "j": 2, "a": 2}, (1,), "for 2 axes"),
        ("ij,ja->ia", {"i": 2, "j": 2, "a": 2}, (0, 1), "numbers from 1"),
    ],
)
def test_wrong_sparse_plans_are_refused(subscripts, extents, grid, words):
    """The error has the rule ``sparse`` and says what is wrong."""
    with pytest.raises(PlanError, match=words) as caught:
        CyclicPlan(subscripts, extents, grid)
    assert caught.value.rules == ("sparse",)


def test_other_shapes_are_refused():
    """Wrong shapes of the sparse operand and of a factor raise an error."""
    array, factors = made_of("mttkrp")
    made = plan_cyclic(*KERNELS["mttkrp"], processes=4)
    other = random_uniform((3, 3, 3), 4, seed=1)
    for given in ((array, [factors[0][1:], factors[1]]), (other, factors)):
        with pytest.raises(PlanError, match="has shape") as caught:
            made.simulate(*given)
        assert caught.value.rules == ("blocks",)
