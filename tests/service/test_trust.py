"""Facts of trusted keys come first, in every answer; who sent a fact is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.db import open_store, opened_documents
from feinsum.records import to_json
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_measurement,
    make_record,
)
from tests.service.conftest import key_for, send
from tests.service.test_problems import is_problem

BEST = f"/v1/best/{WORKLOAD}"


@pytest.fixture
def location(any_location):
    return any_location


@pytest.fixture
def client(serve):
    """A service where recording needs a key."""
    return serve(anonymous_record=False)


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
    return answer.json()


def served(client, policy="loose"):
    """Ids and marks of the answer, in its order."""
    found = client.get(f"{BEST}?policy={policy}").json()
    return [(fact["id"], fact["is_trusted"]) for fact in found.get("facts", ())]


def test_facts_of_trusted_keys_come_first(client):
    """However fast the others say to be; all of them are answered at once."""
    eve, root = note("eve", faster=9), note("root", number=1)
    assert sent(client, eve, "eve") == {
        "id": eve.id,
        "is_quarantined": False,
        "is_retracted": False,
    }
    policies = ("strict", "default", "loose")
    queries = [f"{policy}&device={eve.environment.device.id}" for policy in policies]
    for query in queries:
        assert served(client, query) == [(eve.id, False)]
    sent(client, root, "root", "admin")
    for query in queries:
        assert served(client, query) == [(root.id, True), (eve.id, False)]
    asked = {"workloads": [WORKLOAD], "policy": "loose"}
    (batch,) = client.post("/v1/best:batch", json=asked).json()["answers"]
    assert [fact["id"] for fact in batch["facts"]] == [root.id, eve.id]
    listed = client.get("/v1/facts").json()["facts"]
    assert {one["id"]: one["is_trusted"] for one in listed} == {
        root.id: True,
        eve.id: False,
    }


def test_a_trusted_fact_far_away_comes_before_others_nearby(client):
    """So that no number of them takes its room."""
    near = note("eve", faster=9)
    far = note("root", environment=make_environment(make_device(1)))
    sent(client, near, "eve")
    sent(client, far, "root", "admin")
    device = near.environment.device.id
    assert [one for one, _ in served(client, f"loose&device={device}")] == [
        far.id,
        near.id,
    ]


def test_trust_changes_an_answer_that_is_kept(client, location):
    """The same facts, in another order, under another tag; the first sender stays."""
    eve, ann = note("eve", faster=9), note("ann", number=1)
    sent(client, eve, "eve")
    sent(client, ann, "ann", "admin")
    before = client.get(f"{BEST}?policy=loose").headers["etag"]
    assert served(client) == [(ann.id, True), (eve.id, False)]
    sent(client, eve, "root", "admin")
    assert served(client) == [(eve.id, True), (ann.id, True)]
    assert client.get(f"{BEST}?policy=loose").headers["etag"] != before
    trust = client.get(f"/v1/facts/{eve.id}/trust").json()
    assert trust["is_trusted"]
    assert [one["recorder"] for one in trust["recordings"]] == ["eve", "root"]
    assert client.get(f"/v1/facts/{eve.id}").json()["provenance"] == {"by": "eve"}


def test_an_import_into_the_database_is_trusted(client, location):
    """Of what somebody sent, too, in bulk or not; so is what a tuning adds there."""
    eves, local = [note("eve", number=n) for n in range(2)], note("here", number=2)
    tuned = note("here", number=3)
    for eve in eves:
        sent(client, eve, "eve")
    with opened_documents(location) as store:
        store.add_all([eves[0], local])
        store.add(eves[1])
    with open_store(location) as store:
        store.add(tuned)
    every = (*eves, local, tuned)
    assert dict(served(client)) == {one.id: True for one in every}


def test_the_untrusted_refute_nothing(client):
    """That a recipe was slow elsewhere is told only by trusted keys."""
    fast, slow = note("root"), note("eve", faster=1 / 50)
    sent(client, fast, "root", "admin")
    sent(client, slow, "eve")
    assert client.get(f"{BEST}?policy=loose").json()["slower"] == []
    sent(client, slow, "root", "admin")
    (one,) = client.get(f"{BEST}?policy=loose").json()["slower"]
    assert (one["id"], one["is_trusted"]) == (slow.id, True)


def test_removed_routes_say_why(client):
    """For one release they answer 410."""
    for method, path in (
        ("GET", "/v1/quarantine"),
        ("GET", "/v1/quarantine/plans"),
        ("POST", f"/v1/facts/{'0' * 64}/confirm"),
    ):
        answer = client.request(method, path, headers=key_for(client, "admin"))
        assert is_problem(answer, 410, "no-such-route")
        assert "wait for confirmation" in answer.json()["detail"]
