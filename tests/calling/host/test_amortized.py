"""Calls that get faster as they are used: what they invest, and what comes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.calling import clear_call_cache
from feinsum.calling.host.amortized import SHARE, AmortizedCall
from feinsum.calling.kernel_cache import Calls
from feinsum.errors import FeinsumError, TransformError
from feinsum.memory import remembered
from feinsum.predict import EFFORT_VARIABLE
from feinsum.records import InMemoryStore
from feinsum.transforms import REGISTRY
from feinsum.transforms.library import GENERIC_ON_CPUS

RNG = np.random.default_rng(5)
A, B = RNG.random((120, 150)), RNG.random((150, 130))
LONG_S = 1e6


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.delenv(EFFORT_VARIABLE)
    clear_call_cache()
    yield
    clear_call_cache()


def product(store, **options):
    return call_einsum("ij,jk->ik", A, B, database=store, device="host", **options)


def the_call() -> AmortizedCall:
    """What is kept of the only call."""
    (call,) = remembered(Calls).quick.values()
    assert isinstance(call, AmortizedCall)
    return call


def has_run_long(call: AmortizedCall, spent_s: float = LONG_S) -> None:
    """As if many calls had taken that time together."""
    call._n_calls += round(spent_s / 1e-3)
    call.spent_s += spent_s
    call._due_s = 0.0


def slow(monkeypatch, apply=lambda t_unit, *_: t_unit):
    """A family that claims to be the fastest of all, and transforms nothing."""
    family = replace(
        GENERIC_ON_CPUS, name="slow", version=1, cost=lambda *_: 1e-9, apply=apply
    )
    monkeypatch.setitem(REGISTRY, ("slow", 1), family)
    monkeypatch.setattr("feinsum.calling.predicted.DOUBT", 1e9)


def test_calls_that_took_little_time_invest_nothing():
    """However many rivals there are."""
    store = InMemoryStore()
    for _ in range(5):
        product(store)
    call = the_call()
    assert call.rivals
    assert call.invested_s == 0
    assert call._due_s * SHARE > call.spent_s
    assert len(store) == 0


def test_a_rival_that_is_faster_takes_over(monkeypatch):
    """A prediction that was wrong does not last; the result is right all the time."""
    slow(monkeypatch)
    store = InMemoryStore()
    assert np.allclose(product(store), A @ B)
    call = the_call()
    assert call.call.kernel.spec.name == "slow"
    n_rivals = len(call.rivals)
    for k in range(n_rivals):
        has_run_long(call)
        assert np.allclose(product(store), A @ B)
        assert len(call.rivals) == n_rivals - k - 1
    assert call.call.kernel.spec.name != "slow"
    assert call.invested_s > 0
    assert np.allclose(product(store), A @ B)


def test_rivals_are_of_several_families(monkeypatch):
    """Where costs are wrong, they are wrong for a family."""
    slow(monkeypatch)
    product(InMemoryStore())
    names = [spec.name for spec in the_call().rivals]
    assert len({*names, "slow"}) == len(names) + 1


def test_what_won_is_recorded_and_used_by_the_next_process(monkeypatch):
    """Once the time of the calls has paid for that."""
    store = InMemoryStore()
    product(store)
    call = the_call()
    call.rivals.clear()
    has_run_long(call)
    product(store)
    (fact,) = store.records()
    assert fact.spec == call.call.kernel.spec
    assert call._due_s == float("inf")
    clear_call_cache()
    assert np.allclose(product(store), A @ B)
    (kept,) = remembered(Calls).quick.values()
    assert kept.kernel.is_retrieved


def test_rivals_that_fail_are_passed_over(monkeypatch):
    """At whatever they fail, the call goes on with what it has."""
    store = InMemoryStore()
    product(store)
    call = the_call()
    spec = call.call.kernel.spec

    def failing(*_):
        raise TransformError("this rival is wrong in every way")

    call.build = failing
    while call.rivals:
        has_run_long(call)
        assert np.allclose(product(store), A @ B)
    assert call.call.kernel.spec == spec


@pytest.mark.parametrize("step", ["build", "record"])
def test_an_interrupt_in_a_measurement_leaves_a_call_that_works(step):
    """It reaches the caller; nothing is recorded by halves."""
    store = InMemoryStore()
    product(store)
    call = the_call()

    def interrupted(*_):
        raise KeyboardInterrupt

    setattr(call, step, interrupted)
    del call.rivals[step == "build" :]
    has_run_long(call)
    with pytest.raises(KeyboardInterrupt):
        product(store)
    assert len(store) == 0
    assert np.allclose(product(store), A @ B)


@pytest.mark.parametrize("error", [FeinsumError, ZeroDivisionError])
def test_a_fact_that_cannot_be_recorded_breaks_no_call(error):
    """A database may be read-only, or away, or broken."""
    product(InMemoryStore())
    call = the_call()

    def refused(_):
        raise error("the database is read-only")

    call.rivals.clear()
    call.record = refused
    has_run_long(call)
    assert np.allclose(call.run([A, B]), A @ B)
    assert call.record is None


@pytest.mark.parametrize(
    "options", [{"effort": "estimate"}, {"out": np.empty((120, 130))}]
)
def test_calls_that_measure_nothing(options):
    """Where that is wanted, and where a result may lie anywhere."""
    product(InMemoryStore(), **options)
    kept = [*remembered(Calls).quick.values()]
    assert not any(isinstance(call, AmortizedCall) for call in kept)


def test_without_effort_nothing_is_predicted():
    """Only what is recorded is used, by the argument as by the variable."""
    assert np.allclose(product(InMemoryStore(), effort="recorded"), A @ B)
    (call,) = remembered(Calls).quick.values()
    assert call.kernel.spec is None


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
    (call,) = remembered(Calls).quick.values()
    assert call.kernel.is_retrieved


def test_an_effort_that_is_none_is_refused():
    """By name, with those there are."""
    with pytest.raises(FeinsumError, match="'much'; expected one of recorded"):
        product(InMemoryStore(), effort="much")
