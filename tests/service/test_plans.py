"""Plans of a service: kept, listed, and counted again before they are believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.records import PlanRecord, from_json, to_json
from tests.db.factories import make_plan, make_plan_record
from tests.service.conftest import key_for, send
from tests.service.test_problems import is_problem

RECORDS = [
    make_plan_record(0),
    make_plan_record(1),
    make_plan_record(plan=make_plan(5)),
]


@pytest.fixture
def location(any_location):
    return any_location


def send_plan(client, record, **headers):
    return send(client, to_json(record), "/v1/plans", **headers)


def test_plans_are_kept_and_listed(client):
    """201, then 200; by id, of a workload or all."""
    assert [send_plan(client, one).status_code for one in RECORDS] == [201] * 3
    assert send_plan(client, RECORDS[0]).status_code == 200
    found = client.get(f"/v1/plans/{RECORDS[0].id}")
    assert from_json(PlanRecord, found.content) == RECORDS[0]
    assert list(listed(client)) == sorted(one.id for one in RECORDS)
    of_one = client.get(f"/v1/plans?workload={RECORDS[0].workload}").json()["plans"]
    assert {entry["id"] for entry in of_one} == {one.id for one in RECORDS[:2]}
    assert is_problem(client.get(f"/v1/plans/{'0' * 64}"), 404, "record-not-found")


def test_what_was_made_up_is_refused(client):
    """With what was found; nothing is kept."""
    answer = send_plan(client, replace(RECORDS[0], counted=1))
    assert answer.status_code == 422
    assert [one["code"] for one in answer.json()["findings"]] == ["counts"]
    assert client.get("/v1/plans").json()["plans"] == []


def listed(client):
    """Which plans are listed, and whether they are trusted."""
    plans = client.get("/v1/plans").json()["plans"]
    return {one["id"]: one["is_trusted"] for one in plans}


def test_plans_of_untrusted_keys_are_marked(serve):
    """Until somebody trusted sends them too; all that a recorder sent goes at once."""
    client = serve(anonymous_record=False)
    first, again, other = (
        replace(RECORDS[0], provenance={"by": by}) for by in ("ann", "again", "eve")
    )
    for record, name in [(first, "ann"), (again, "ann"), (other, "eve")]:
        answer = send_plan(client, record, **key_for(client, "record", name))
        assert answer.status_code == 201
    assert listed(client) == dict.fromkeys([first.id, again.id, other.id], False)
    admin = key_for(client, "admin", "root")
    assert client.get("/v1/plans?trusted=true").json()["plans"] == []
    assert send_plan(client, other, **admin).status_code == 200
    assert listed(client)[other.id]
    (only,) = client.get("/v1/plans?trusted=true").json()["plans"]
    assert only["id"] == other.id
    trust = client.get(f"/v1/facts/{other.id}/trust").json()
    assert [one["recorder"] for one in trust["recordings"]] == ["eve", "root"]
    asked = {"recorders": ["ann"], "reason": "a wrong clock", "is_dry_run": False}
    done = client.post("/v1/facts:retract", json=asked, headers=admin).json()
    assert {one["id"] for one in done["plans"]} == {first.id, again.id}
    assert done["n_facts"] == 2
    assert listed(client) == {other.id: True}


def test_recording_takes_a_key(serve):
    """Where facts need one."""
    client = serve(anonymous_record=False)
    assert send_plan(client, RECORDS[0]).status_code in (401, 403)
    assert send_plan(client, RECORDS[0], **key_for(client, "record")).status_code == 201
