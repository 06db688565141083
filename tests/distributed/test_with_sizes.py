"""Plans for other extents: right results, exact counts, distributions that stay."""

from __future__ import annotations

import numpy as np
import pytest

import feinsum
from feinsum.distributed import plan, plan_statements, statements, with_sizes
from feinsum.errors import PlanError
from feinsum.ir import SizeParam
from feinsum.sparse import to_dense
from tests.distributed import test_sparse
from tests.distributed.cases import KERNELS, einsum_of, is_numpys


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_extents_give_the_same_plan(name):
    made = plan(KERNELS[name], processes=4)
    assert with_sizes(made, made.extents) == made
    other = with_sizes(made, dict.fromkeys(made.extents, 3))
    assert with_sizes(other, made.extents) == made


def test_large_problems_of_one_shape_have_one_plan():
    """The planner's choice for twice the extents is the resized one."""
    small, large = (einsum_of("ij,jk->ik", every=n) for n in (600, 1200))
    resized = with_sizes(plan(small, processes=8), dict.fromkeys("ijk", 1200))
    assert resized.counts.moved == plan(large, processes=8).counts.moved


def test_size_parameters_get_new_values():
    A = feinsum.array("A", (SizeParam("n"), 6))
    einsum = feinsum.einsum("ij,jk->ik", A, feinsum.array("B", (6, 4)))
    resized = with_sizes(plan(einsum, {"n": 12}, processes=2), {"i": 20, "k": 5})
    assert resized.sizes == {"n": 20}
    assert resized.shape("A") == (20, 6)
    assert resized.shape("out") == (20, 5)


def test_requested_distributions_stay_requested():
    einsum = einsum_of("ij,j->i", every=12)
    first = plan(einsum, processes=4)
    again = plan(einsum, processes=4, starts=first.starts, result=first.starts["B"])
    resized = with_sizes(again, {"i": 18, "j": 18})
    assert resized.requested_starts == again.requested_starts
    assert resized.ends == again.ends
    assert resized.result_box(1) == resized.start_box("B", 1)
    assert is_numpys(resized)


def test_sparse_operands_keep_their_density():
    einsum = test_sparse.einsum_of("ij,jr->ir", {"i": 8, "j": 10, "r": 3})
    made = plan(einsum, processes=4, nonzeros=20)
    resized = with_sizes(made, {"i": 16})
    assert (resized.nonzeros, resized.density) == (40, made.density)
    assert with_sizes(made, {"i": 16}, nonzeros=7).nonzeros == 7
    arrays = test_sparse.arrays_of(resized.batched_einsum)
    expected = to_dense(arrays["T"]) @ arrays["A"]
    assert np.allclose(resized.simulate(arrays), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("extents", "words"),
    [({"q": 3}, "no index q; there are i, j"), ({"i": -1}, "i=-1; expected an integer"),
     ({"i": True}, "i=True; expected"), ({"i": 2.5}, "i=2.5; expected")],
)  # fmt: skip
def test_wrong_extents_are_refused(extents, words):
    with pytest.raises(PlanError, match=words) as caught:
        with_sizes(plan(einsum_of("ij,j->i", every=6), processes=2), extents)
    assert caught.value.rules == ("sizes",)


def test_extents_that_cannot_differ_are_refused():
    n = SizeParam("n")
    A = feinsum.array("A", (n, n))
    for operands, sizes, words in [
        ([A, feinsum.array("B", (n,))], {"n": 6}, "i are one size parameter"),
        ([feinsum.array("A", (6, 6))] * 2, {}, "two arrays are named 'A'"),
    ]:
        text = "ij,j->i" if sizes else "ij,jk->ik"
        made = plan(feinsum.einsum(text, *operands), sizes, processes=2)
        with pytest.raises(PlanError, match=words) as caught:
            with_sizes(made, {"i": 3, "j": 6})
        assert caught.value.rules == ("sizes",)


def test_statements_share_an_index():
    """An extent changes in all statements at once."""
    both = statements(
        ["H[n,h] = X[n,f] * V[f,h]", "Y[n,f] = H[n,h] * V[f,h]"],
        {"X": (8, 6), "V": (6, 4)},
    )
    resized = with_sizes(plan_statements(both, processes=2), {"n": 5, "h": 3})
    assert resized.shape("H") == (5, 3)
