"""A product of functions of equal indices finds the facts of one operand, too."""

from __future__ import annotations

from dataclasses import replace

import loopy as lp
import numpy as np
import pytest

from feinsum import einsum, raise_kernel
from feinsum.ir import array
from feinsum.raising import regrouped
from feinsum.records import MatchLevel
from feinsum.retrieval import look_up
from tests.loopy_kernels import build_kernel
from tests.retrieval.facts import fact, recipe
from tests.retrieval.kernels import N_DOFS, Example, texts
from tests.retrieval.support import assert_right, given

GRADIENT = einsum(
    "xre,rij,ej->xei",
    array("J", (3, 3, "E")),
    array("D", (3, N_DOFS, N_DOFS)),
    array("u", ("E", N_DOFS)),
)
SPEC = (
    "element_blocked@1(element={long!r}, lanes=4, vectors=4, rows=5, "
    "stage_matrices=True)"
)
FIELDS = {
    "exp(u)*u": (
        "exp(u[e,j])*u[e,j]",
        lambda a: np.exp(a["u"]) * a["u"],
    ),
    "three factors": (
        "u[e,j]*v[e,j]*sin(u[e,j])",
        lambda a: a["u"] * a["v"] * np.sin(a["u"]),
    ),
    "other axes": (
        "u[e,j]*w[j,e]",
        lambda a: a["u"] * a["w"].T,
    ),
}


def gradient_of(name):
    """The DG gradient of a product of functions."""
    text, field = FIELDS[name]
    shapes = {
        "geo": (3, 3, "n"),
        "diff": (3, N_DOFS, N_DOFS),
        "u": ("n", N_DOFS),
        "v": ("n", N_DOFS),
        "w": (N_DOFS, "n"),
    }
    shapes = {k: shape for k, shape in shapes.items() if f"{k}[" in text or len(k) > 1}
    kernel = build_kernel(
        f"{{[x,r,e,i,j]: 0<=x,r<3 and 0<=e<n and 0<=i,j<{N_DOFS}}}",
        f"g[x,e,i] = sum([r,j], geo[x,r,e]*diff[r,i,j]*({text}))",
        {**texts(shapes), "g": f"3,n,{N_DOFS}"},
        name="gradient",
    )

    def in_numpy(a):
        args = a["geo"], a["diff"], field(a)
        return {"g": np.einsum("xre,rij,ej->xei", *args, optimize=True)}

    sizes = ({"n": 64}, {"n": 1}, {"n": 37})
    return Example(name, kernel, GRADIENT, SPEC, shapes, in_numpy, {}, sizes)


@pytest.mark.parametrize("name", FIELDS)
def test_the_fact_of_one_operand_is_found_and_applied(name):
    """The function of the operand is the product, and the result is right."""
    example = gradient_of(name)
    found = look_up(example.kernel, database=given(fact(GRADIENT, recipe(example))))
    assert found.applied == (recipe(example),)
    (nest,) = found.nests
    assert nest.match.level == MatchLevel.EXACT
    assert nest.nest.einsum.n_operands == 3
    assert_right(example, found.t_unit)


def test_facts_of_the_finest_grouping_come_first():
    """The einsum as it was raised, if both are known as well."""
    example = gradient_of("exp(u)*u")
    (nest,) = raise_kernel(example.kernel).raised
    fine = fact(nest.einsum, recipe(replace(example, einsum=nest.einsum)))
    coarse = fact(GRADIENT, recipe(example))
    found = look_up(example.kernel, database=given(fine, coarse))
    assert found.nests[0].nest.einsum.n_operands == 4
    assert_right(example, found.t_unit)


def test_groupings_go_from_the_finest_to_the_coarsest():
    """Each once; operands with other indices stay alone."""
    (nest,) = raise_kernel(gradient_of("three factors").kernel).raised
    sizes = [one.einsum.n_operands for one in regrouped(nest)]
    assert sizes == [4, 4, 4, 3]
    keys = {one.key for one in regrouped(nest)}
    assert nest.key not in keys
    (other,) = raise_kernel(gradient_of("other axes").kernel).raised
    assert [one.einsum.subscripts for one in regrouped(other)] == ["xre,rij,ej->xei"]


def test_a_variable_of_that_name_makes_the_recipe_be_passed_over():
    """The kernel is given back, or gets another recipe: no build breaks."""
    example = gradient_of("exp(u)*u")
    (nest,) = raise_kernel(example.kernel).raised
    (one,) = regrouped(nest)
    (name,) = one.new_rules
    kernel = example.kernel.default_entrypoint
    taken = lp.TemporaryVariable(name, np.float64, shape=())
    unit = example.kernel.with_kernel(kernel.copy(temporary_variables={name: taken}))
    found = look_up(unit, database=given(fact(GRADIENT, recipe(example))))
    assert recipe(example) not in found.applied
    assert any(f"a variable {name}" in why for _, why in found.nests[0].failures)


def test_many_factors_are_grouped_at_once():
    """Twenty have more groupings than anyone could try."""
    text = "*".join(f"a{k}[i]" for k in range(20))
    arrays = ",".join(f"a{k}" for k in range(20))
    kernel = build_kernel("{[i]: 0<=i<n}", f"out[i] = {text}", {f"{arrays},out": "n"})
    (nest,) = raise_kernel(kernel).raised
    assert [one.einsum.n_operands for one in regrouped(nest)] == [1]


def test_equal_factors_at_other_axes_are_another_function():
    """``A[i,j]*B[j,i]`` and ``A[i,j]*B[i,j]`` in one product."""
    t_unit = build_kernel(
        "[n] -> {[e,i,j]: 0<=e<n and 0<=i,j<4}",
        "u[e,i,j] = A[i,j]*B[j,i]*A[i,j]*B[i,j]*w[e]",
        {"A,B": "4,4", "w": "n", "u": "n,4,4"},
    )
    (nest,) = raise_kernel(t_unit).raised
    rng = np.random.default_rng(0)
    arrays = {"A": rng.random((4, 4)), "B": rng.random((4, 4)), "w": rng.random(3)}
    A, B, w = arrays.values()
    right = np.einsum("ij,ji,ij,ij,e->eij", A, B, A, B, w)
    for grouped in regrouped(nest):
        values = grouped.functional.evaluate(arrays, {"n": 3})
        np.testing.assert_allclose(values[0], right, err_msg=str(grouped.einsum))
