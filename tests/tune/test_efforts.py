"""Facts that are made when they are first asked for."""

from __future__ import annotations

from copy import deepcopy

import pytest

from feinsum.errors import StoreError
from feinsum.ir import array, einsum
from feinsum.records import InMemoryStore
from feinsum.tuning import LIMITS, TuningLimits, ensure_measured
from tests.tune.bench_here import BenchHere

pytestmark = pytest.mark.usefixtures("trials_here")

PRODUCT = einsum("ij,jk->ik", array("A", (30, 40)), array("B", (40, 50)))


def measured(store, effort, einsum_=PRODUCT, sizes=None):
    return ensure_measured(einsum_, sizes, effort, device="host", database=store)


def n_trials(store):
    return sum(len(store.trials(key)) for key in store.tried())


@pytest.fixture(scope="module")
def few():
    """A store after the product was measured with little effort."""
    store = InMemoryStore()
    with pytest.MonkeyPatch.context() as patch:  # ``trials_here`` is of one test
        patch.setattr("feinsum.tuning.tuning.IsolatedBench", BenchHere)
        limits = {**LIMITS, "measure": TuningLimits(2)}
        patch.setattr("feinsum.tuning.efforts.LIMITS", limits)
        assert measured(store, "measure")
    return store


def test_what_is_on_record_is_not_measured_again(few):
    """A few trials, and facts; the second time there are no more."""
    n_few = n_trials(few)
    assert n_few == 2
    assert len(few)
    assert not measured(few, "measure")
    assert n_trials(few) == n_few


@pytest.mark.usefixtures("two_trials")
def test_other_extents_are_measured_anew():
    """A fact of other sizes is no measurement of these."""
    store = InMemoryStore()
    general = einsum("ij,j->i", array("A", ("N", 40)), array("x", 40))
    assert measured(store, "measure", general, {"N": 100})
    assert not measured(store, "measure", general, {"N": 100})
    assert measured(store, "measure", general, {"N": 200})


def test_patience_goes_on_where_a_measurement_ended(few, monkeypatch):
    """A few trials do not satisfy it; as many as it wants do, and none is repeated."""
    limits = {**LIMITS, "patient": TuningLimits(3)}
    monkeypatch.setattr("feinsum.tuning.efforts.LIMITS", limits)
    store = deepcopy(few)
    assert measured(store, "patient")
    assert n_trials(store) == 3
    assert not measured(store, "patient")


def test_a_store_that_cannot_be_written_is_refused(tmp_path):
    """Before anything is measured."""
    (tmp_path / "no facts.sqlite").write_text("this is no database")
    with pytest.raises(StoreError):
        measured(tmp_path / "no facts.sqlite", "measure")
