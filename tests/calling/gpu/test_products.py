"""Einsums as products of stacks of matrices, and as paths of them."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from feinsum.calling.einsum_call import compute_c_steps
from feinsum.calling.gpu.products import list_products
from feinsum.calling.gpu.steps import Contraction, plan_paths, plan_step
from feinsum.targets.cuda.gemm import multiply_reference
from feinsum.transforms.cost import Gpu

SIZES = {"a": 2, "b": 3, "c": 4, "i": 5, "j": 6, "k": 7, "l": 2, "o": 1}
CASES = [
    ("ij,jk->ik", 0), ("ji,jk->ik", 0), ("ij,kj->ki", 0), ("iaj,jak->aik", 0),
    ("j,ij->i", 0),
    ("i,k->ik", 0), ("j,j->", 0), ("ijb,bjk->ik", 1), ("iabj,jk->abik", 0),
    ("jk,ikc->ijc", 0), ("ab,icb->iac", 0), ("abc,ib->aic", 0),
    ("acij,acjk->acik", 0), ("acij,cajk->acik", 1), ("aij,jk->aik", 0),
    ("aij,ajk->ika", 1), ("ai,aj->aij", 0), ("oij,ojk->oik", 0), ("oij,jk->iko", 0),
    ("iabj,kbal->jkli", 2), ("ijkl,lb->ijkb", 0), ("lijk,lb->bijk", 0),
]  # fmt: skip


@pytest.mark.parametrize(("subscripts", "n_copies"), CASES)
def test_products_mean_their_einsum(subscripts, n_copies):
    """With copies where the arrays are not in order, and no more of them."""
    found = _checked(subscripts, SIZES)
    first = next(product for product in found if product.n_parts == 1)
    orders = [*first.orders, first.order]
    assert sum(order is not None for order in orders) == n_copies


@pytest.mark.parametrize(
    ("subscripts", "sizes"),
    [
        ("ti,tj->ij", {"t": 1000, "i": 3, "j": 4}),
        ("pti,ptj->ji", {"p": 6, "t": 5, "i": 3, "j": 4}),
        ("pit,pjt->ij", {"p": 6, "t": 5, "i": 3, "j": 4}),
        ("ti,t->i", {"t": 512, "i": 3}),
    ],
)
def test_long_sums_are_computed_in_parts(subscripts, sizes):
    """Each gives a matrix, and these are added."""
    assert any(product.n_parts > 1 for product in _checked(subscripts, sizes))


def _checked(subscripts, sizes):
    """The products, each of which is right."""
    rng = np.random.default_rng(0)
    text, output = subscripts.split("->")
    terms = text.split(",")
    arrays = [rng.random([sizes[i] for i in term]) for term in terms]
    steps = [[stride // 8 for stride in array.strides] for array in arrays]
    found = [*list_products([*map(tuple, terms)], tuple(output), sizes, steps)]
    expected = np.einsum(subscripts, *arrays)
    for product in found:
        result = _computed(product, terms, arrays, output, sizes)
        assert np.allclose(result, expected)
    return found


def _computed(product, terms, arrays, output, sizes):
    """By the definition, which what BLAS gets agrees with."""
    given = [
        np.einsum(f"{term}->{''.join(order or term)}", array).copy()
        for term, array, order in zip(terms, arrays, product.orders, strict=True)
    ]
    if product.gemm.is_swapped:
        given.reverse()
    made = "".join(output if product.order is None else product.order)
    shape = [sizes[i] for i in made]
    parts = np.empty([product.n_parts, *shape])
    multiply_reference(product.gemm, *given, parts)
    by_blas = _by_fortran(product.gemm, given, parts.size)
    assert by_blas == pytest.approx(parts.reshape(-1))
    return np.einsum(f"{made}->{output}", parts.sum(0))


def _by_fortran(gemm, given, size):
    """The flat result of what BLAS gets: flags, sizes, leading dimensions, strides."""
    turns, (b, m, n, k) = gemm.flags, gemm.sizes
    out = np.zeros(size)
    for at in range(b):
        left, right = (
            _matrix(array.reshape(-1)[at * strides[0] :], lead, shape, turned)
            for array, strides, lead, shape, turned in zip(
                given, (gemm.left, gemm.right), gemm.leads, ((m, k), (k, n)), turns,
                strict=False,
            )
        )  # fmt: skip
        part = left @ right
        for j in range(n):
            start = at * gemm.out[0] + j * gemm.leads[2]
            out[start : start + m] = part[:, j]
    return out


def _matrix(flat, lead, shape, is_turned):
    rows, columns = reversed(shape) if is_turned else shape
    found = np.array([flat[j * lead : j * lead + rows] for j in range(columns)]).T
    return found.T if is_turned else found


@pytest.mark.parametrize(
    ("terms", "output"),
    [("ii,ij", "j"), ("ij,jk", "i"), ("ij,ij,j", "i"), ("ijk,k", "j")],
)
def test_what_is_no_product_is_none(terms, output):
    """Repeated indices, indices summed over one operand, and more operands."""
    split = [tuple(term) for term in terms.split(",")]
    steps = [[prod(SIZES[i] for i in t[k + 1 :]) for k in range(len(t))] for t in split]
    assert not [*list_products(split, tuple(output), SIZES, steps)]


def test_repeated_entries_are_copied_first():
    """Those that a stride of 0 makes, and rows in the reverse order."""
    for strides in ((0, 1), (-5, 1)):
        sizes = {"i": 4, "j": 5, "k": 6}
        terms = [("i", "j"), ("j", "k")]
        for found in list_products(terms, ("i", "k"), sizes, [strides, (6, 1)]):
            assert found.orders[0] is not None


GPU = Gpu(90, 132, 1.7e9, 3e12, 1 << 25)


def contraction(subscripts, sizes):
    terms, output = subscripts.split("->")
    split = tuple(tuple(term) for term in terms.split(","))
    strides = tuple(compute_c_steps([sizes[i] for i in term]) for term in split)
    return Contraction(split, tuple(output), sizes, strides, 8, GPU)


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jk,kl->il",
        "ja,a,ka,ikcd->ijcd",
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
    found = plan_paths(contraction(subscripts, sizes), path)
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
    assert plan_paths(contraction("ij,jk->ik", sizes), ((0, 1),)) == []
    assert plan_paths(contraction("ij->i", sizes), ((0,),)) == []


def test_results_are_handed_on_in_an_order_that_needs_no_copy():
    """Where there is one: of ``fcab`` the next product can read rows, of others not."""
    sizes = dict.fromkeys("abcdef", 20)
    problem = contraction("abcd,de,fe->fcab", sizes)
    best = plan_paths(problem, ())[0]
    values = [*zip(problem.terms, problem.strides, strict=True)]
    for step in best.steps:
        chosen = [values[k] for k in step.operands]
        is_last = step is best.steps[-1]
        _, product = plan_step(problem, chosen, step.output, is_free=is_last)
        assert product.orders == (None, None)
        assert is_last or product.order is None
        values.append((step.output, problem.c_steps(step.output)))
