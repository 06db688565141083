"""Rekeying: older facts are found again, and nothing is lost or made twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey, canonicalize
from feinsum.db import SqlStore
from feinsum.db.exchange.merging import merge
from feinsum.db.exchange.rekeying import REKEYED_FROM, rekey, rekey_record
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum, from_text, to_text
from feinsum.records import Trial, TuningRecord, accept_all, to_json
from tests import strategies
from tests.db.contract import content
from tests.db.factories import make_device, make_peaks, make_record, make_trial
from tests.older import OLDER, older_key, respelled, under_older_key

PRESENT = f"{FORM_VERSION}-{CANONICALIZER}"
NEWER = "fe99-nauty3.1"
OLDEST = "fe0-nauty2.6"

J, D = array("J", (3, 3, "E")), array("D", (3, 8, 8))
EINSUMS = (
    einsum("ij,j->i", array("A", ("N", 4)), array("x", 4)),
    batched_einsum(
        "xre,rij,ej->xei", [[J, D, array("u", ("E", 8))], [J, D, array("v", ("E", 8))]]
    ),
)


def fact(e: BatchedEinsum, number: int = 0) -> TuningRecord:
    """A fact under the key of today; different numbers are different facts."""
    form = canonicalize(e)
    return replace(make_record(number, workload=form.key), workload_text=form.text)


def older_facts() -> list[TuningRecord]:
    """Three facts of each einsum: two that are spelled as today, one that is not."""
    facts: list[TuningRecord] = []
    for e in EINSUMS:
        facts += [under_older_key(fact(e, number)) for number in (0, 1)]
        facts.append(respelled(fact(e, 2)))
        assert facts[-1].workload_text != canonicalize(e).text
    return facts


def trial_of(record: TuningRecord) -> Trial:
    return replace(
        make_trial(status="trial-crashed"),
        workload=record.workload,
        workload_text=record.workload_text,
        spec=record.spec,
    )


def documents(store: SqlStore) -> tuple[Any, ...]:
    """All facts and trials of a store."""
    trials = [trial for key in store.tried() for trial in store.trials(key)]
    return content(store), trials


@pytest.fixture
def make(make_any_sql_store):
    """Makes stores with documents."""

    def make(*given: Any) -> SqlStore:
        store = make_any_sql_store()
        store.add_all(given)
        return store

    return make


records = st.builds(
    replace,
    strategies.tuning_records,
    provenance=st.dictionaries(
        st.sampled_from(["note", REKEYED_FROM]), st.text(max_size=5), max_size=2
    ),
)
keys = st.sampled_from([WorkloadKey(f"{v}-0123") for v in (OLDER, PRESENT, NEWER)])


@strategies.counts(20, 5000)
@given(record=records, first=keys, second=keys)
def test_the_way_does_not_matter(record, first, second):
    """By way of another key a record becomes what it becomes at once; back under its
    own key it is itself.
    """
    assert rekey_record(rekey_record(record, first), second) == rekey_record(
        record, second
    )
    assert rekey_record(record, record.workload) == record
    assert rekey_record(rekey_record(record, first), record.workload).id == record.id


def test_the_fact_stays_as_it_is():
    """The key is new and the provenance names the origin; all else is unchanged."""
    old = replace(respelled(fact(EINSUMS[0])), provenance={"host": "here"})
    new = rekey_record(old, WorkloadKey(f"{NEWER}-0123"))
    assert new.provenance == {"host": "here", REKEYED_FROM: old.id}
    assert replace(new, workload=old.workload, provenance=old.provenance) == old


def test_older_documents_are_found_under_the_key_of_today(make):
    """Facts and trials, with their own texts; what was there stays, to the byte; the
    second time nothing is added.
    """
    old = [*older_facts(), fact(EINSUMS[0], 5)]
    tried = [trial_of(record) for record in older_facts()]
    store = make(*old, *tried, make_peaks())
    done = rekey(store)
    n = len(older_facts())
    assert (done.n_new, done.unreadable) == ({"record": n, "trial": n}, [])
    for e in EINSUMS:
        key = canonicalize(e).key
        assert len({record.workload_text for record in store.query(key)}) == 2
        assert len(store.trials(key)) == 3
    moved = {rekey_record(r, key_of(r)).id for r in older_facts()}
    assert {r.id for r in store.records()} == moved | {r.id for r in old}
    for record in old:
        assert to_json(store.get(record.id)) == to_json(record)
    for trial in tried:
        assert to_json(trial) in map(to_json, store.trials(trial.workload))
    assert store.peaks(make_device().id) == make_peaks()
    once = documents(store)
    assert rekey(store).n_new.total() == 0
    assert documents(store) == once


def key_of(record: TuningRecord) -> WorkloadKey:
    """The key of today of an older fact's einsum."""
    return canonicalize(from_text(record.workload_text)).key


def test_rekeying_commutes_with_merging(make):
    """Rekeyed and then merged is merged and then rekeyed, whoever does it."""
    a = make(*older_facts()[:4], fact(EINSUMS[0], 3))
    b = make(*older_facts()[2:])
    both = make()
    for source in (a, b):
        merge(both, source, check=accept_all)
    for store in (a, b, both):
        rekey(store)
    merge(a, b, check=accept_all)
    assert content(a) == content(both)


def test_versions_between_make_no_chain(make_sql_store):
    """A fact that came by way of several versions is one fact of today.

    Its provenance names the record that was measured, whichever of the older
    ones a database has.
    """
    for older in (under_older_key, respelled):
        origin = older(fact(EINSUMS[1]), OLDEST)
        between = rekey_record(origin, older_key(origin.workload_text))
        key = canonicalize(EINSUMS[1]).key
        today = rekey_record(origin, key)
        assert today.provenance[REKEYED_FROM] == origin.id
        for others in ([], [origin], [today], [origin, today]):
            store = make_sql_store()
            store.add_all([between, *others])
            assert rekey(store).n_new["record"] == (today not in others)
            assert store.query(key) == (today,)


def ring(n: int) -> str:
    """Rows that follow one another in a circle: their graph has more vertices."""
    x = [array(f"x{k}", 3) for k in range(n)]
    rows = [[left, right] for left, right in zip(x, [*x[1:], x[0]], strict=True)]
    return to_text(batched_einsum("i,i->i", rows))


def test_what_has_no_key_is_reported_and_left(make_sql_store, monkeypatch):
    """With the reason, once for all facts and trials of a text; others are rekeyed."""
    monkeypatch.setattr("feinsum.canonical.labelling.MAX_VERTICES", 60)
    key = WorkloadKey(f"{OLDER}-unreadable")
    for text, code in (
        ("i -> j | x[3]:<f8 | x", "invalid-einsum"),
        (ring(50), "canonicalization-failed"),
    ):
        bad = replace(make_record(workload=key), workload_text=text)
        store = make_sql_store()
        store.add_all([bad, trial_of(bad), *older_facts()])
        (entry,) = rekey(store).unreadable
        assert (entry.key, entry.problem.code) == (key, code)
        assert store.query(key) == (bad,)
        assert len(store) == 1 + 2 * len(older_facts())


def test_what_was_added_before_an_interruption_stays(make_sql_store):
    """The next call adds the rest, and the end is the same."""

    def interrupt(_n: int) -> None:
        raise KeyboardInterrupt

    stores = [make_sql_store() for _ in range(2)]
    for store in stores:
        store.add_all(older_facts())
    with pytest.raises(KeyboardInterrupt):
        rekey(stores[0], interrupt)
    n_new = [rekey(store).n_new["record"] for store in stores]
    assert 0 < n_new[0] < n_new[1]
    assert content(stores[0]) == content(stores[1])
