"""Facts of others wait until enough of them agree; what waits is never served."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError

from feinsum.canonical import WorkloadKey
from feinsum.db import open_store, opened_documents
from feinsum.db.server.trust import receive
from feinsum.records import to_json
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_measurement,
    make_record,
    make_workload,
)
from tests.service.conftest import key_for, send
from tests.service.test_problems import is_problem

BEST = f"/v1/best/{WORKLOAD}"


@pytest.fixture
def location(any_location):
    return any_location


@pytest.fixture
def careful(serve):
    """A service that wants one other recorder to agree."""
    return serve(confirmations=1, anonymous_record=False)


def note(text, faster=1.0, **changes):
    """A fact with one recipe, measured by somebody."""
    measured = make_measurement(1e-3)
    samples = tuple(sample / faster for sample in measured.samples_s)
    return replace(
        make_record(**changes),
        measurement=replace(measured, samples_s=samples),
        provenance={"by": text},
    )


def sent(client, record, name, scope="record"):
    answer = send(client, to_json(record), **key_for(client, scope, name))
    assert answer.status_code in (200, 201)
    return answer.json()["is_quarantined"]


def served(client, policy="loose"):
    found = client.get(f"{BEST}?policy={policy}")
    return {f["id"] for f in found.json().get("facts", ())}


def test_a_fact_waits_for_another_recorder(careful):
    """One recorder is not enough, however often; two who agree are, for one fact of
    each.
    """
    ann, again, bob = note("ann"), note("ann again"), note("bob")
    assert sent(careful, ann, "ann")
    assert sent(careful, again, "ann")
    assert served(careful) == set()
    assert not sent(careful, bob, "bob")
    assert len(served(careful) & {ann.id, again.id}) == 1
    assert served(careful) <= {ann.id, again.id, bob.id}
    assert len(served(careful)) == 2


@pytest.mark.parametrize("policy", ["strict", "default", "loose"])
def test_what_waits_is_in_no_answer(careful, policy, location):
    """No policy, batch or list has a fact in quarantine, nor has a store."""
    record = note("eve")
    assert sent(careful, record, "eve")
    assert served(careful, policy) == set()
    asked = {"workloads": [WORKLOAD], "policy": policy}
    assert careful.post("/v1/best:batch", json=asked).json() == {"answers": [None]}
    assert careful.get("/v1/facts").json()["facts"] == []
    assert careful.get("/v1/workloads").json()["workloads"] == []
    with open_store(location) as store:
        assert store.query(WORKLOAD) == ()
        assert list(store.records()) == []
        assert len(store) == 0
        assert store.get(record.id) == record


@pytest.mark.parametrize(
    "other",
    [
        note("bob", faster=3),
        note("bob", number=1),
        note("bob", environment=make_environment(make_device(1))),
        note("bob", workload=make_workload(1)),
    ],
    ids=["another speed-up", "another recipe", "another device", "another workload"],
)
def test_who_says_something_else_confirms_nothing(careful, other):
    """Only the same recipe of a workload on one device, about as fast, confirms."""
    assert sent(careful, note("ann"), "ann")
    assert sent(careful, other, "bob")
    assert careful.get("/v1/facts").json()["facts"] == []


def test_the_number_of_others_is_a_setting(serve):
    """With two confirmations, the third recorder releases all."""
    client = serve(confirmations=2, anonymous_record=False)
    assert sent(client, note("a"), "a")
    assert sent(client, note("b"), "b")
    assert not sent(client, note("c"), "c")
    assert len(served(client)) == 3


def test_without_quarantine_everything_is_served(serve):
    """No confirmation needed: served at once, and it is kept who recorded."""
    client = serve(confirmations=0, anonymous_record=False)
    record = note("ann")
    assert not sent(client, record, "ann")
    assert served(client) == {record.id}
    trust = client.get(f"/v1/facts/{record.id}/trust").json()
    assert [r["recorder"] for r in trust["recordings"]] == ["ann"]


def test_the_recorder_is_no_part_of_the_fact(careful):
    """One fact sent by two has one id and two recorders, and is one measurement."""
    record = note("shared")
    assert sent(careful, record, "ann")
    assert sent(careful, record, "bob")
    trust = careful.get(f"/v1/facts/{record.id}/trust").json()
    assert {r["recorder"] for r in trust["recordings"]} == {"ann", "bob"}
    assert trust["is_quarantined"]
    assert careful.get(f"/v1/facts/{record.id}").json()["provenance"] == {
        "by": "shared"
    }


def test_an_administrator_confirms(careful):
    """One word of an administrator releases a fact and what agrees with it."""
    first, second, other = note("ann"), note("ann again"), note("eve", faster=50)
    for record in (first, second, other):
        sent(careful, record, "ann")
    admin = key_for(careful, "admin", "root")
    waiting = careful.get("/v1/quarantine", headers=admin).json()["facts"]
    assert {f["id"] for f in waiting} == {first.id, second.id, other.id}
    answer = careful.post(f"/v1/facts/{first.id}/confirm", headers=admin)
    assert answer.json() == {"id": first.id, "is_quarantined": False}
    assert served(careful) == {first.id, second.id}
    nothing = careful.post(f"/v1/facts/{'0' * 64}/confirm", headers=admin)
    assert is_problem(nothing, 404, "record-not-found")


def test_an_administrator_is_trusted(careful):
    """What an administrator records is served, and confirms what agrees."""
    ann, root = note("ann"), note("root")
    assert sent(careful, ann, "ann")
    assert not sent(careful, root, "root", "admin")
    assert served(careful) == {ann.id, root.id}


@pytest.mark.parametrize("n_others", [0, 2])
def test_what_an_administrator_sends_as_well_is_released(careful, n_others):
    """The very fact that waits, however many others wait beside it."""
    fact = note("ann")
    for number in range(1, n_others + 1):
        assert sent(careful, note("eve", number=number), "eve")
    assert sent(careful, fact, "ann")
    assert not sent(careful, fact, "root", "admin")
    assert served(careful) == {fact.id}


@pytest.mark.parametrize("in_bulk", [False, True])
def test_an_import_into_the_database_confirms(careful, location, in_bulk):
    """Who adds a fact to the database of the service vouches for what agrees."""
    ann, eve, local = note("ann"), note("eve", faster=9), note("here")
    sent(careful, ann, "ann")
    sent(careful, eve, "eve")
    with opened_documents(location) as store:
        if in_bulk:
            store.add_all([local])
        else:
            store.add(local)
    assert served(careful) == {ann.id, local.id}
    late = note("late")
    assert not sent(careful, late, "late")
    assert late.id in served(careful)


def test_a_measurement_into_the_database_confirms_what_arrives(careful, location):
    """A tuning there knows nothing of quarantine; the service sees what it recorded."""
    ann, local, late = note("ann"), note("here"), note("late")
    sent(careful, ann, "ann")
    with open_store(location) as store:
        store.add(local)
    assert served(careful) == {local.id}
    assert not sent(careful, late, "late")
    assert served(careful) == {ann.id, local.id, late.id}


def test_facts_of_a_workload_arrive_one_after_the_other(make_postgresql_store):
    """Each sees those before it: a second one waits, but for one of other workloads."""
    store = make_postgresql_store()
    others = WorkloadKey("key-1")
    for number, key in enumerate((WORKLOAD, others)):
        store.add(make_record(number, workload=key))
    first, same = make_record(2), make_record(3)
    other = make_record(4, workload=others)
    engine = store._engine
    with engine.begin() as one, engine.begin() as another:
        receive(one, first, "ann", 1)
        another.exec_driver_sql("SET lock_timeout = '50ms'")
        assert receive(another, other, "bob", 1)
        with pytest.raises(OperationalError, match="lock timeout"):
            receive(another, same, "bob", 1)
        another.rollback()
