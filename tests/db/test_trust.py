"""Who sent a fact is beside it: it ranks behind, and is treated as any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.db import LayeredStore, open_store
from feinsum.db.exchange.garbage import find_garbage
from feinsum.db.exchange.merging import back_up_store, list_documents
from feinsum.db.exchange.rekeying import rekey
from feinsum.db.server.serving import ServingStore, open_serving_store
from feinsum.db.sql.trust import OWNER, Receipt
from feinsum.records import InMemoryStore, RetractionQuery
from tests.db.factories import make_peaks, make_plan_record, make_record
from tests.db.test_rekeying import older_facts

FACT = make_record()

OLD = older_facts()[0]


@pytest.fixture
def store(any_database):
    with open_serving_store(any_database) as opened:
        yield opened


def trusted(store: ServingStore, fact_id: str = FACT.id) -> bool:
    """What a look-up marks is what is said of the fact."""
    said = store.trust(fact_id).is_trusted
    marks = {one.id: one.is_trusted for one in store.query(FACT.workload)}
    assert marks[fact_id] == said
    return said


def test_a_fact_that_somebody_sent_is_untrusted(store):
    """It is new once, and equal to the one that was sent."""
    assert store.receive(FACT, "eve") == Receipt(is_new=True, is_retracted=False)
    assert store.receive(FACT, "eve") == Receipt(is_new=False, is_retracted=False)
    assert store.query(FACT.workload) == (FACT,)
    assert not trusted(store)
    assert [one.recorder for one in store.trust(FACT.id).recordings] == ["eve"]


def test_who_is_trusted_makes_a_fact_trusted(store):
    """Another name, the same one, the owner, or an import; who sent it first stays
    known.
    """
    ways = (
        lambda fact: store.receive(fact, "ci", is_trusted=True),
        lambda fact: store.receive(fact, "eve", is_trusted=True),
        store.add,
        lambda fact: store.add_all([make_record(9), fact]),
    )
    for n, trust in enumerate(ways):
        fact = make_record(n)
        store.receive(fact, "eve")
        assert not trusted(store, fact.id)
        trust(fact)
        assert trusted(store, fact.id)
        names = [one.recorder for one in store.trust(fact.id).recordings]
        assert names[0] == "eve"
        assert OWNER not in names


def test_a_fact_of_the_owner_stays_trusted(store):
    """Whoever sends it afterwards."""
    store.add(FACT)
    assert trusted(store)
    store.receive(FACT, "eve")
    assert trusted(store)


def test_plans_and_limits_are_facts(store):
    """They have recorders, and are retracted by them."""
    facts = [make_plan_record(), make_peaks()]
    for fact in facts:
        assert store.receive(fact, "eve").is_new
        assert not store.trust(fact.id).is_trusted
    by_eve = RetractionQuery(recorders=("eve",))
    assert store.retract(by_eve, reason="wrong", is_dry_run=False).n_facts == 2
    for fact in facts:
        assert store.receive(fact, "eve") == Receipt(is_new=False, is_retracted=True)


def test_tools_treat_untrusted_facts_as_others(tmp_path):
    """Exports and copies have them; a copy of the database knows who sent them."""
    with open_serving_store(str(tmp_path / "facts.sqlite")) as store:
        store.receive(FACT, "eve")
        assert list(list_documents(store, has_trials=True)) == [FACT]
        copy = back_up_store(store, tmp_path / "copy.sqlite")
    with open_serving_store(str(copy)) as store:
        assert not trusted(store)
        assert store.remove([FACT.id]) == 1
        store.add(FACT)
        assert trusted(store)


def test_a_layer_that_trusts_a_fact_decides(tmp_path):
    """In whatever order layers are asked; the mark is no part of the fact."""
    with open_serving_store(tmp_path / "facts.sqlite") as store:
        store.receive(FACT, "eve")
    own = InMemoryStore()
    own.add(FACT)
    with open_store(tmp_path / "facts.sqlite") as store:
        (marked,) = store.query(FACT.workload)
        assert (marked, marked.id) == (FACT, FACT.id)
        assert (marked.is_trusted, FACT.is_trusted) == (False, True)
        for layers in ([own, store], [store, own]):
            (found,) = LayeredStore(layers).query(FACT.workload)
            assert found.is_trusted


def test_lies_make_no_honest_fact_garbage(store):
    """However many are faster; among themselves they are garbage."""
    store.add(FACT)
    lies = []
    for n in range(2, 9):
        samples = tuple(sample / n for sample in FACT.measurement.samples_s)
        measured = replace(FACT.measurement, samples_s=samples)
        lies.append(replace(FACT, measurement=measured))
        store.receive(lies[-1], "eve")
    found = find_garbage([store.query(FACT.workload)], n_next=0)
    surplus = {one.id for one in found.surplus}
    assert FACT.id not in surplus
    assert surplus <= {lie.id for lie in lies}
    assert surplus


def test_a_rekeyed_fact_has_the_senders_of_the_old_one(store):
    """It is no more trusted than before, and goes with what its recorder sent."""
    store.receive(OLD, "eve")
    rekey(store)
    (new,) = (one for one in store.records() if one.id != OLD.id)
    assert not store.trust(new.id).is_trusted
    assert [one.recorder for one in store.trust(new.id).recordings] == ["eve"]
    found = store.retract(RetractionQuery(recorders=("eve",)))
    assert {one.id for one in found.suspects} == {OLD.id, new.id}
