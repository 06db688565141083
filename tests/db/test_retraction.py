"""What is retracted is in no answer, and no merge brings it back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from feinsum.canonical import WorkloadKey
from feinsum.db import LayeredStore, SqlStore
from feinsum.db.exchange.files import read_file, write_file
from feinsum.db.exchange.garbage import GarbagePlan, collect_garbage, find_garbage
from feinsum.db.exchange.merging import import_entries, list_documents, merge
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import InvalidRecordError, InvalidRequestError, RecordNotFoundError
from feinsum.records import InMemoryStore, LookUp, Retraction, RetractionQuery
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_peaks,
    make_record,
    make_workload,
)

MakeStore = Callable[[], InMemoryStore | SqlStore]

AT = "2026-02-01T09:00:00+00:00"


def retraction(document: str, reason: str = "a wrong clock") -> Retraction:
    return Retraction(document, reason, "ann", AT)


def query(**given) -> RetractionQuery:
    return RetractionQuery(**given)


@pytest.fixture
def store(make_any_sql_store):
    return make_any_sql_store()


def test_what_is_retracted_is_in_no_answer(make_store):
    """Not by id, by workload, in lists, nor in numbers; whichever comes first. The
    latest limits of a device that are left count.
    """
    gone, kept, later = (make_record(n) for n in range(3))
    old, new = (make_peaks(measured_at=f"202{n}-01-01T00:00:00") for n in (5, 6))
    with closing(make_store()) as store:
        store.add_all([gone, kept, old, new, retraction(new.id)])
        assert store.peaks(make_device().id) == old
        assert list(store.documents("peaks")) == [old]
        assert store.add(retraction(gone.id)) is True
        assert store.add(retraction(gone.id)) is False
        store.add_all([retraction(later.id), later, gone])
        assert list(store.records()) == [kept]
        assert store.query(WORKLOAD) == (kept,)
        look_up = LookUp({WORKLOAD: kept.workload_text}, make_device())
        assert store.candidates(look_up) == {WORKLOAD: (kept,)}
        assert list(store.like(kept.workload_text.partition(" |")[0])) in ([], [kept])
        assert list(store.ids("record")) == [kept.id]
        assert list(store.documents("record")) == [kept]
        assert store.find_lacking("record", [gone.id, later.id]) == frozenset()
        assert len(store) == 1
        for one in (gone, later):
            with pytest.raises(
                RecordNotFoundError, match=r"retracted by ann at.*clock"
            ):
                store.get(one.id)


def test_a_merge_does_not_bring_back(make_sql_store):
    """Not from who still has the fact; and who merges the retraction loses it, too,
    unless retractions are left out.
    """
    ours, theirs, others = (make_sql_store() for _ in range(3))
    fact = make_record()
    for one in (ours, theirs, others):
        one.add(fact)
    ours.retract(
        query(ids=(fact.id,)), reason="wrong", retracted_by="me", is_dry_run=False
    )
    assert merge(ours, theirs).total() == 0
    assert list(ours.records()) == []
    assert merge(others, ours, has_retractions=False).total() == 0
    assert list(others.records()) == [fact]
    assert +merge(theirs, ours) == {"retraction": 1}
    assert list(theirs.records()) == []


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_files_carry_retractions(make_sql_store, tmp_path, suffix):
    """A file has retractions and no fact that is retracted; imports keep that."""
    source, target, full = (make_sql_store() for _ in range(3))
    facts = [make_record(n) for n in range(3)]
    for one in (source, full):
        one.add_all(facts)
    source.add(retraction(facts[0].id))
    path = tmp_path / f"facts.{suffix}"
    assert write_file(list_documents(source, has_trials=True), path) == {
        "retraction": 1,
        "record": 2,
    }
    for one in (target, full):
        found = import_entries(one, read_file(path), lambda bad: pytest.fail(str(bad)))
        assert found.n_read == {"record": 2, "retraction": 1}
        assert {r.id for r in one.records()} == {r.id for r in facts[1:]}


def test_odd_retractions_are_refused(store):
    """A document without the form of a retraction is not kept."""
    for changes in (
        {"document": "0" * 63},
        {"document": "G" * 64},
        {"reason": "x" * 501},
        {"retracted_by": "\x00"},
        {"retracted_at": "yesterday"},
    ):
        with pytest.raises(InvalidRecordError):
            store.add(Retraction(**{**vars(retraction("0" * 64)), **changes}))
    assert list(store.ids("retraction")) == []


def test_the_first_look_writes_nothing(store):
    """Without being told to, a retraction lists what it would retract; what is written
    says why.
    """
    facts = [make_record(n) for n in range(3)]
    store.add_all(facts)
    asked = query(workload=WORKLOAD)
    found = store.retract(asked)
    assert found.is_dry_run
    assert [s.id for s in found.suspects] == sorted(r.id for r in facts)
    assert found.suspects[0].transform == "rowwise@1"
    with pytest.raises(InvalidRequestError, match="state one"):
        store.retract(asked, reason=" ", is_dry_run=False)
    assert len(store) == 3
    for suspects in (found.suspects, ()):
        done = store.retract(asked, reason="wrong", retracted_by="me", is_dry_run=False)
        assert done.suspects == suspects
        assert len(store) == 0
    assert {r.id for r in store.retracted()} == {r.id for r in facts}
    assert len(list(store.ids("retraction"))) == 3


def test_facts_are_found_by_what_they_are(store):
    """All that is given has to be true of a fact."""
    facts = [make_record(0), make_record(1)]
    facts.append(make_record(2, workload=WorkloadKey("other")))
    store.add_all(facts)
    for given, expected in (
        ({"workload": "other"}, [2]),
        ({"transform": "rowwise"}, [0, 1, 2]),
        ({"transform": "rowwise@2"}, []),
        ({"since": "2025-01-31T12:00:00Z"}, [0, 1, 2]),
        ({"since": "2025-01-31T14:00:01+02:00"}, []),
        ({"workload": "other", "since": "2026-01-01"}, []),
    ):
        found = store.retract(query(**given))
        assert {s.id for s in found.suspects} == {facts[n].id for n in expected}, given


def test_ids_may_be_begun(store):
    """12 digits suffice for a fact that is here; whole ids name any."""
    fact, elsewhere = make_record(0), make_record(1)
    store.add(fact)
    assert store.retract(query(ids=(fact.id[:12],))).suspects[0].id == fact.id
    found = store.retract(query(ids=(fact.id, elsewhere.id)))
    assert (found.n_facts, found.unknown) == (1, (elsewhere.id,))
    with pytest.raises(RecordNotFoundError, match="no id begins with"):
        store.retract(query(ids=(elsewhere.id[:12],)))
    for bad in ("", "0" * 11, "0" * 65, "x" * 64, "0F" * 32, "%" * 12):
        with pytest.raises(InvalidRequestError, match="12 to 64 hexadecimal digits"):
            query(ids=(bad,))


def test_a_key_may_be_begun(store):
    """Its beginning suffices if no other key begins so."""
    records = [make_record(n, workload=make_workload(n)) for n in range(2)]
    store.add_all(records)
    for record in records:
        (suspect,) = store.retract(query(workload=record.workload[:24])).suspects
        assert suspect.id == record.id
    with pytest.raises(InvalidRequestError, match="give more digits"):
        store.retract(query(workload=WORKLOAD[:13]))


def test_odd_questions_are_refused():
    """Nothing at all is not everything."""
    for given in (
        {},
        {"transform": "@1"},
        {"transform": "a@b"},
        {"since": "soon"},
        {"workload": "\x00"},
        {"recorders": ("x" * 501,)},
    ):
        with pytest.raises(InvalidRequestError, match="expected"):
            query(**given)


def test_a_recorder_takes_nobody_elses_facts_along(tmp_path):
    """What somebody else sent, or the owner added, stays: before or afterwards."""
    own, early, shared, owned, imported, before = (make_record(n) for n in range(6))
    with open_serving_store(tmp_path / "facts.sqlite") as store:
        store.add(owned)
        store.receive(early, "ann")
        store.receive(before, "eve")
        since = store.trust(before.id).recordings[0].received_at
        for fact in (own, early, shared, owned, imported):
            store.receive(fact, "eve")
        store.receive(shared, "bob")
        store.add(imported)
        found = store.retract(query(recorders=("eve",)))
        assert {s.id for s in found.suspects} == {own.id, before.id}
        assert found.n_shared == 4
        later = since.replace(microsecond=min(999_999, since.microsecond + 1))
        found = store.retract(query(recorders=("eve",), since=later.isoformat()))
        assert {s.id for s in found.suspects} == {own.id}
        found = store.retract(query(recorders=("eve", "bob")))
        assert {s.id for s in found.suspects} == {own.id, before.id, shared.id}
        assert [r.recorder for r in store.trust(owned.id).recordings] == ["eve"]


def test_a_layer_hides_what_lies_in_another(make_sql_store):
    """The user's own database may retract facts of a package or of a site."""
    own, site = make_sql_store(), InMemoryStore()
    gone, kept = make_record(0), make_record(1)
    site.add_all([gone, kept, make_peaks()])
    own.add_all([retraction(gone.id), retraction(make_peaks().id)])
    layers = LayeredStore([own, site])
    assert list(layers.records()) == [kept]
    assert layers.query(WORKLOAD) == (kept,)
    look_up = LookUp({WORKLOAD: ""}, make_device())
    assert layers.candidates(look_up) == {WORKLOAD: (kept,)}
    assert layers.peaks(make_device().id) is None
    assert len(layers) == 1
    with pytest.raises(RecordNotFoundError, match="was retracted by ann"):
        layers.get(gone.id)


def test_garbage_may_take_what_is_retracted(make_sql_store, tmp_path):
    """Only if it is told to; the retraction stays, so the fact does not come back."""
    store, other = make_sql_store(), make_sql_store()
    facts = [make_record(n) for n in range(2)]
    for one in (store, other):
        one.add_all(facts)
    store.add(retraction(facts[0].id))
    plan = find_garbage(store.query(key) for key in store.workloads())
    assert plan.is_empty
    assert [r.id for r in store.retracted()] == [facts[0].id]
    plan = GarbagePlan(plan.n_records, (), (facts[0].id,))
    done = collect_garbage(store, plan, tmp_path)
    assert done.n_removed == 1
    assert [entry[1] for entry in read_file(done.removed)] == [facts[0]]
    assert list(store.retracted()) == []
    assert merge(store, other).total() == 0
    assert list(store.records()) == [facts[1]]
