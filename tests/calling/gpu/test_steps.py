"""Paths on a GPU: their steps mean the einsum, and copy little."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.calling.einsum_call import c_steps
from feinsum.calling.gpu.steps import Contraction, plans, step_of
from feinsum.transforms.cost import Gpu

GPU = Gpu(90, 132, 1.7e9, 3e12, 1 << 25)


def contraction(subscripts, sizes):
    terms, output = subscripts.split("->")
    split = tuple(tuple(term) for term in terms.split(","))
    strides = tuple(c_steps([sizes[i] for i in term]) for term in split)
    return Contraction(split, tuple(output), sizes, strides, 8, GPU)


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jk,kl->il",
        "ja,a,ka,ikcd->ijcd",
        "abk,kc->ac",
        "aab,bc,cd,d,ae->de",
        "ab,cd->ac",
    ],
)
def test_every_plan_means_its_einsum(subscripts):
    """Its steps, one after the other."""
    rng = np.random.default_rng(0)
    sizes = {index: 3 + k % 3 for k, index in enumerate("abcdeijkl")}
    terms = subscripts.split("->")[0]
    arrays = [rng.random([sizes[i] for i in term]) for term in terms.split(",")]
    path = tuple((0, 1) for _ in arrays[1:])
    found = plans(contraction(subscripts, sizes), path)
    assert found == sorted(found, key=lambda plan: plan.seconds)
    for plan in found:
        values = [*arrays]
        for step in plan.steps:
            text = ",".join(map("".join, step.inputs)) + "->" + "".join(step.output)
            values.append(np.einsum(text, *(values[k] for k in step.operands)))
        assert np.allclose(values[-1], np.einsum(subscripts, *arrays))


def test_one_step_is_no_path():
    """A product of two operands, and a sum of one."""
    sizes = dict.fromkeys("ijk", 9)
    assert plans(contraction("ij,jk->ik", sizes), ((0, 1),)) == []
    assert plans(contraction("ij->i", sizes), ((0,),)) == []


def test_results_are_handed_on_in_an_order_that_needs_no_copy():
    """Where there is one: of ``fcab`` the next product can read rows, of others not."""
    sizes = dict.fromkeys("abcdef", 20)
    problem = contraction("abcd,de,fe->fcab", sizes)
    best = plans(problem, ())[0]
    values = [*zip(problem.terms, problem.strides, strict=True)]
    for step in best.steps:
        chosen = [values[k] for k in step.operands]
        is_last = step is best.steps[-1]
        _, product = step_of(problem, chosen, step.output, is_free=is_last)
        assert product.orders == (None, None)
        assert is_last or product.order is None
        values.append((step.output, problem.c_steps(step.output)))
