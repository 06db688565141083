"""Calls of which nothing is recorded: a recipe is predicted, and never believed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.errors import TransformError
from feinsum.transforms import REGISTRY, Transform
from feinsum.transforms.library import GENERIC
from tests.calling.comparing import NO_FACTS, assert_as_numpy
from tests.portions import spread

pytestmark = pytest.mark.usefixtures("fresh_calls")


def numbers(*shape):
    return (np.arange(float(np.prod(shape))) % 7 + 1).reshape(shape)


CALLS = {
    "product of matrices": ("ij,jk->ik", [(30, 40), (40, 50)]),
    "attention": ("bhqd,bhkd->bhqk", [(2, 3, 17, 8), (2, 3, 19, 8)]),
    "MTTKRP": ("ijk,ja,ka->ia", [(9, 11, 13), (11, 5), (13, 5)]),
    "row sums": ("ij->i", [(70, 90)]),
    "sum of all": ("ij,ij->", [(64, 1024), (64, 1024)]),
    "trace": ("ii->", [(50, 50)]),
    "diagonals": ("baa,bcc->ac", [(6, 9, 9), (6, 8, 8)]),
    "outer product": ("i,j->ij", [(70,), (33,)]),
    "chain": ("ij,jk,kl->il", [(20, 30), (30, 25), (25, 15)]),
    "sums of their own": ("i,j->", [(500,), (300,)]),
    "matrix times vector": ("ij,j->i", [(90, 80), (80,)]),
    "vector times matrix": ("ij,i->j", [(90, 80), (90,)]),
    "one entry": ("ij,jk->ik", [(1, 1), (1, 1)]),
}


DTYPES = ["f8", "f4", "c16", "i8", "i2", "?"]


@pytest.mark.parametrize(("dtype", "name"), spread(product(DTYPES, CALLS), 13))
def test_a_predicted_recipe_computes_what_numpy_computes(name, dtype):
    """Of every class of einsums and every dtype; small numbers are exact."""
    subscripts, shapes = CALLS[name]
    arrays = [(numbers(*shape) % 3).astype(dtype) for shape in shapes]
    assert_as_numpy(subscripts, *arrays, device="host")


@pytest.mark.parametrize("name", spread(CALLS, 5))
def test_every_call_has_a_prediction(name):
    """No class of einsums is left to an untransformed kernel."""
    subscripts, shapes = CALLS[name]
    arrays = [numbers(*shape) for shape in shapes]
    call = prepare_call(subscripts, *arrays, database=NO_FACTS, device="host")
    assert call.kernel.spec is not None


def wrong_family(name, **changes):
    """One that claims to be the fastest of all."""
    usual = replace(GENERIC, name=name, version=1, **changes)
    return replace(usual, cost=lambda *_: 0.0)


def failing(*_):
    raise TransformError("this family is wrong in every way")


def forgetful(t_unit, nest, parameters):
    """Computes the result, and doubles it."""
    unit = GENERIC.apply(t_unit, nest, parameters)
    kernel = unit[nest.kernel_name]
    doubled = [
        insn.copy(expression=2 * insn.expression)
        if insn.id in nest.instructions
        else insn
        for insn in kernel.instructions
    ]
    return unit.with_kernel(kernel.copy(instructions=doubled))


@pytest.mark.parametrize("apply", [failing, forgetful])
def test_a_prediction_that_is_wrong_in_every_way_changes_no_result(apply, monkeypatch):
    """Wrong recipes are passed over, for the next or for none."""
    for k in range(4):
        family: Transform = wrong_family(f"wrong_{k}", apply=apply)
        monkeypatch.setitem(REGISTRY, (family.name, 1), family)
    A, B = numbers(30, 40), numbers(40, 50)
    call = prepare_call("ij,jk->ik", A, B, database=NO_FACTS, device="host")
    assert call.kernel.spec is None
    assert np.array_equal(call.run([A, B]), A @ B)


def test_costs_that_are_no_numbers_choose_no_wrong_recipe(monkeypatch):
    """Whatever a cost says, the result is right."""
    for value in (float("nan"), float("inf"), -1.0):
        family = replace(GENERIC, name="odd", version=1, cost=lambda *_, v=value: v)
        monkeypatch.setitem(REGISTRY, ("odd", 1), family)
        clear_call_cache()
        A, x = numbers(40, 50), numbers(50)
        assert np.array_equal(
            call_einsum("ij,j->i", A, x, database=NO_FACTS, device="host"), A @ x
        )


def test_one_operand_without_a_sum_is_a_view():
    """It shows the operand, which can be written through it, as numpy's does."""
    A = numbers(4, 4)
    for subscripts in ("ij->ji", "ii->i"):
        view = call_einsum(subscripts, A, database=NO_FACTS, device="host")
        assert np.shares_memory(view, A)
        assert view.flags.writeable == np.einsum(subscripts, A).flags.writeable
        assert np.array_equal(view, np.einsum(subscripts, A))
    out = np.empty((4, 4))
    assert call_einsum("ij->ji", A, database=NO_FACTS, device="host", out=out) is out
    assert np.array_equal(out, A.T)
    assert not np.shares_memory(out, A)


def test_half_precision_is_added_up_in_single():
    """More terms than half precision could add; too large a result is infinite."""
    ones = np.ones((3, 5000), "f2")
    assert_as_numpy("ij->i", ones)
    large = np.full((2, 5000), 30.0, "f2")
    found = call_einsum("ij,ij->i", large, large, database=NO_FACTS, device="host")
    assert found.dtype == np.float16
    assert np.isinf(found).all()


@pytest.mark.parametrize(
    "out",
    [
        np.empty((30, 50)),
        np.empty((30, 50), order="F"),
        np.empty((30, 100))[:, ::2],
        np.empty((60, 50))[::2],
    ],
    ids=["in order", "Fortran's order", "every other column", "every other row"],
)
def test_a_result_that_lies_anywhere_gets_a_predicted_recipe(out):
    """The check writes an array that lies in the same way."""
    A, B = numbers(30, 40), numbers(40, 50)
    options = {"database": NO_FACTS, "device": "host", "out": out}
    call = prepare_call("ij,jk->ik", A, B, **options)
    assert call.kernel.spec is not None
    assert call.run([A, B], out) is out
    assert np.array_equal(out, A @ B)


def test_a_family_that_fails_at_its_cost_breaks_no_call(monkeypatch):
    """Nothing is predicted then, and the result is numpy's."""

    def broken(*_):
        raise ZeroDivisionError

    family = replace(GENERIC, name="broken", version=1, cost=broken)
    monkeypatch.setitem(REGISTRY, ("broken", 1), family)
    A, x = numbers(40, 50), numbers(50)
    found = call_einsum("ij,j->i", A, x, database=NO_FACTS, device="host")
    assert np.array_equal(found, A @ x)
