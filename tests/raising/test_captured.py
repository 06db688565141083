"""Kernels captured from real programs are raised, or refused for the right reason."""

from __future__ import annotations

from importlib import import_module

import pytest

from feinsum import array, canonicalize, einsum, raise_kernel

F8 = "float64"
GRADIENT = einsum(
    "xre,rij,ej->xei",
    array("J", (3, 3, "N"), F8),
    array("D", (3, 35, 35), F8),
    array("u", ("N", 35), F8),
)
CURVED_GRADIENT = einsum(
    "xrei,rij,ej->xei",
    array("J", (3, 3, "N", 35), F8),
    array("D", (3, 35, 35), F8),
    array("u", ("N", 35), F8),
)
INVERSE_MASS = einsum(
    "e,ij,ej->ei",
    array("w", "N", F8),
    array("M", (35, 35), F8),
    array("u", ("N", 35), F8),
)
POINTWISE = einsum("xei->xei", array("t", (3, "N", 35), F8))
X = array("x", (20, 20), F8)


def captured(name):
    return import_module(f"tests.raising.kernels.{name}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k01_grudge_eager_local_grad", [CURVED_GRADIENT]),
        ("k10_grudge_lazy_inverse_mass", [INVERSE_MASS]),
        ("k21_pytato_grad", [GRADIENT]),
        ("k45_pytato_grad_private_bounds", [GRADIENT, POINTWISE]),
        (
            "k43_pytato_demo_matmul",
            [einsum("ik,jk->ij", X, X), einsum("ik,kj->ij", X, X)],
        ),
    ],
)
def test_a_captured_einsum_is_raised_to_its_workload(name, expected):
    """The key of a captured kernel is the key of the einsum that it evaluates."""
    module = captured(name)
    raised = raise_kernel(module.build(), arguments=getattr(module, "CALL_ARGS", None))
    assert raised.refused == ()
    assert [nest.key for nest in raised.raised] == [
        canonicalize(e).key for e in expected
    ]


def test_a_literal_factor_is_kept_as_scale():
    """A constant factor is neither dropped nor part of an operand."""
    raised = raise_kernel(captured("k43_pytato_demo_matmul").build())
    assert [nest.scale for nest in raised.raised] == [(1,), (2.0,)]


def test_a_max_reduction_is_refused():
    """A reduction other than a sum is no einsum; the instruction is named. The copy of
    its result to an axis of one entry is one.
    """
    raised = raise_kernel(
        captured("k44_grudge_be_elementwise_max_not_an_einsum").build()
    )
    (copy,) = raised.raised
    assert copy.instructions == ("_pt_out_0_store",)
    refusal = {nest.instructions: nest.rule for nest in raised.refused}
    assert refusal["_pt_temp_store",] == "reduction"
    assert all(nest.instructions[0] in nest.reason for nest in raised.refused)


def test_rows_of_one_notation_form_a_batch():
    """Three gradients that share geometry and matrices are one batch of three."""
    raised = raise_kernel(captured("k16_grudge_be_vec_grad_fused").build())
    batch = raised.raised[0].einsum
    assert batch.batch_size == 3
    assert len(batch.operands) == 5
