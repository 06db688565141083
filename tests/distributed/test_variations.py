"""Plans for other extents and numbers of processes: right results, exact counts.

Distributions stay: machine axes partition the same indices.
"""

from __future__ import annotations

import numpy as np
import pytest

import feinsum
from feinsum.distributed import (
    Distribution,
    Machine,
    plan,
    plan_statements,
    statements,
    with_processes,
    with_sizes,
)
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


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("processes", [1, 3, 4, 6, 8])
def test_machines_of_any_number_of_processes(name, processes):
    """Axes partition the same indices; results are numpy's, counts are exact."""
    made = plan(KERNELS[name], processes=4)
    moved = with_processes(made, processes).check()
    assert moved.processes == processes
    assert [s.axes for s in moved.schedules] == [s.axes for s in made.schedules]
    assert {s.machine.n_processes for s in moved.schedules} == {processes}
    assert is_numpys(moved)
    assert with_processes(moved, 4).check().processes == 4


@pytest.mark.parametrize("processes", [2, 6, 12, 16, 24, 64])
def test_a_product_on_any_machine_is_as_fast_as_a_planned_one(processes):
    """Its three axes have the sizes that a search would choose, or as good ones."""
    einsum = einsum_of("ij,jk->ik", every=600)
    moved = with_processes(plan(einsum, processes=8), processes)
    best = plan(einsum, processes=processes)
    assert moved.estimate().seconds <= 1.03 * best.estimate().seconds


def test_requested_distributions_move_along():
    """Those of the plan's machine, and copies on every process."""
    einsum = einsum_of("ij,j->i", every=12)
    first = plan(einsum, processes=4)
    again = plan(einsum, processes=4, starts=first.starts, result="replicated")
    moved = with_processes(again, 6)
    assert moved.placed == again.placed
    assert moved.result_box(5) == (range(12),)
    assert is_numpys(moved)


def test_statements_keep_their_machine():
    both = statements(
        ["H[n,h] = X[n,f] * V[f,h]", "Y[n,f] = H[n,h] * V[f,h]"],
        {"X": (8, 6), "V": (6, 4)},
    )
    made = plan_statements(both, processes=2)
    moved = with_processes(made, 6)
    assert len({s.machine for s in moved.schedules}) == 1
    assert is_numpys(moved)


@pytest.mark.parametrize("processes", [0, 2.0, True, 5000])
def test_no_plan_has_such_a_number_of_processes(processes):
    with pytest.raises(PlanError, match="expected an integer from 1") as caught:
        with_processes(plan(einsum_of("ij,j->i", every=6), processes=2), processes)
    assert caught.value.rules == ("processes",)


def test_machines_that_cannot_change_are_refused():
    """One without axes, and a requested distribution on a machine of its own."""
    einsum = einsum_of("ij,j->i", every=6)
    with pytest.raises(PlanError, match="the smallest with 0 axes") as caught:
        with_processes(plan(einsum, processes=1), 2)
    assert caught.value.rules == ("processes",)
    on_two_of_four = Distribution.parse("ij->i", Machine((2,)))
    made = plan(einsum, processes=4, starts={"A": on_two_of_four})
    with pytest.raises(PlanError, match="expected the machine of the plan") as caught:
        with_processes(made, 6)
    assert caught.value.rules == ("starts",)
