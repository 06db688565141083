"""Efforts of calls, and the rivals that are timed where nobody waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.calling import clear_call_cache
from feinsum.calling.host.builder import N_RIVALS
from feinsum.calling.host.building import build_call
from feinsum.calling.kernel_cache import CallKey, Calls, LookupOptions, make_device_key
from feinsum.calling.operands import get_form
from feinsum.errors import FeinsumError, TransformError
from feinsum.memory import get_remembered
from feinsum.predict import EFFORT_VARIABLE
from feinsum.records import InMemoryStore
from feinsum.transforms import REGISTRY
from feinsum.transforms.library import GENERIC

RNG = np.random.default_rng(5)
A, B = RNG.random((120, 150)), RNG.random((150, 130))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.delenv(EFFORT_VARIABLE)
    clear_call_cache()
    yield
    clear_call_cache()


def product(store, **options):
    return call_einsum("ij,jk->ik", A, B, database=store, device="host", **options)


def built(n_rivals=N_RIVALS):
    """The call as the process that builds kernels makes it."""
    arrays = [A, B]
    options = LookupOptions(InMemoryStore(), effort="estimate")
    forms, device = tuple(map(get_form, arrays)), make_device_key(arrays, "host")
    key = CallKey("ij,jk->ik", forms, None, (0, 1), device, options)
    return build_call(key.parse(), key, arrays, n_rivals)


def slow(monkeypatch, apply=lambda t_unit, *_: t_unit):
    """A family that claims to be the fastest of all, and transforms nothing."""
    family = replace(GENERIC, name="slow", version=1, cost=lambda *_: 1e-9, apply=apply)
    monkeypatch.setitem(REGISTRY, ("slow", 1), family)
    monkeypatch.setattr("feinsum.calling.kernel.DOUBT", 1e9)


def test_the_kernel_of_the_winner_is_kept(monkeypatch):
    """Calls like this one share it, whichever rival was built last."""
    slow(monkeypatch)
    call = built()
    assert call.kernel.spec.name != "slow"
    assert [*get_remembered(Calls).kernels.values()] == [call.kernel]


def test_a_rival_that_is_faster_takes_over(monkeypatch):
    """A prediction that is wrong does no harm where rivals are timed."""
    slow(monkeypatch)
    assert built(0).kernel.spec.name == "slow"
    call = built()
    assert call.kernel.spec.name != "slow"
    np.testing.assert_allclose(call.run([A, B]), A @ B)


@pytest.mark.parametrize("error", [TransformError, ZeroDivisionError])
def test_rivals_that_fail_are_passed_over(monkeypatch, error):
    """At whatever they fail: the predicted recipe stays."""
    slow(monkeypatch)

    def failing(*_):
        raise error("this rival is wrong in every way")

    monkeypatch.setattr(
        "feinsum.calling.host.building.CompilationContext.with_recipe", failing
    )
    call = built()
    assert call.kernel.spec.name == "slow"
    np.testing.assert_allclose(call.run([A, B]), A @ B)


def test_without_effort_nothing_is_predicted():
    """Only what is recorded is used, by the argument as by the variable."""
    assert np.allclose(product(InMemoryStore(), effort="recorded"), A @ B)
    (call,) = get_remembered(Calls).quick.values()
    assert call.kernel.spec is None


@pytest.mark.usefixtures("trials_here")
@pytest.mark.usefixtures("two_trials")
def test_an_effort_that_measures_records_before_the_first_call():
    """And finds what it recorded the next time."""
    store = InMemoryStore()
    assert np.allclose(product(store, effort="measure"), A @ B)
    n_facts = len(store)
    assert n_facts
    clear_call_cache()
    assert np.allclose(product(store, effort="measure"), A @ B)
    assert len(store) == n_facts
    (call,) = get_remembered(Calls).quick.values()
    assert call.kernel.is_retrieved


def test_an_effort_that_is_none_is_refused():
    """By name, with those there are."""
    with pytest.raises(FeinsumError, match="'much'; expected one of recorded"):
        product(InMemoryStore(), effort="much")
