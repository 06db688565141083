"""Plans of a service: kept, listed, and counted again before they are believed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from feinsum.db.server import open_serving_store
from feinsum.records import PlanRecord, from_json, to_json
from tests.db.factories import make_fleet, make_plan, make_plan_record
from tests.service.conftest import key_for
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
    sent = {"Content-Type": "application/json", **headers}
    return client.post("/v1/plans", content=to_json(record), headers=sent)


def test_plans_are_kept_and_listed(client):
    """201, then 200; by id, of a workload or all, page by page."""
    assert [send_plan(client, one).status_code for one in RECORDS] == [201] * 3
    assert send_plan(client, RECORDS[0]).status_code == 200
    found = client.get(f"/v1/plans/{RECORDS[0].id}")
    assert from_json(PlanRecord, found.content) == RECORDS[0]
    listed, cursor = [], ""
    while cursor is not None:
        page = client.get(f"/v1/plans?limit=2{cursor and f'&cursor={cursor}'}").json()
        listed += [entry["id"] for entry in page["plans"]]
        cursor = page["next"]
    assert listed == sorted(one.id for one in RECORDS)
    of_one = client.get(f"/v1/plans?workload={RECORDS[0].workload}").json()["plans"]
    assert {entry["id"] for entry in of_one} == {one.id for one in RECORDS[:2]}
    assert is_problem(client.get(f"/v1/plans/{'0' * 64}"), 404, "record-not-found")


def test_what_was_made_up_is_refused(client):
    """With what was found; nothing is kept."""
    answer = send_plan(client, replace(RECORDS[0], counted=1))
    assert answer.status_code == 422
    assert [one["code"] for one in answer.json()["findings"]] == ["counts"]
    assert client.get("/v1/plans").json()["plans"] == []


@pytest.fixture
def careful(serve):
    """A service that wants one other recorder to agree."""
    return serve(confirmations=1, anonymous_record=False)


def sent_by(client, record, name, scope="record"):
    """Whether a plan waits in quarantine after somebody sent it."""
    answer = send_plan(client, record, **key_for(client, scope, name))
    assert answer.status_code in (200, 201)
    return client.get(f"/v1/facts/{record.id}/trust").json()["is_quarantined"]


def listed(client, path="/v1/plans", **options):
    return {one["id"] for one in client.get(path, **options).json()["plans"]}


def noted(record, by, **changes):
    return replace(record, provenance={"by": by}, **changes)


def test_seconds_wait_for_another_recorder(careful):
    """Those of a plan that others did not confirm are in no list, and kept by their id.

    Another plan, a fleet of another kind, and much faster runs confirm nothing.
    """
    first, fast = (noted(RECORDS[0], by) for by in ("ann", "eve"))
    fast = replace(fast, samples_s=tuple(s / 9 for s in fast.samples_s))
    other_fleet = noted(make_plan_record(fleet=make_fleet(2, "dask")), "bob")
    for record, by in [
        (first, "ann"),
        (fast, "eve"),
        (other_fleet, "bob"),
        (RECORDS[2], "carl"),
    ]:
        assert sent_by(careful, record, by)
    assert listed(careful) == set()
    assert careful.get(f"/v1/plans/{first.id}").status_code == 200
    assert not sent_by(careful, noted(RECORDS[0], "dan"), "dan")
    assert listed(careful) == {first.id, noted(RECORDS[0], "dan").id}


def test_counts_alone_do_not_wait(careful):
    """They are counted again when they arrive, so nobody need confirm them."""
    in_turns = make_plan_record(fleet=make_fleet(2, "local"))
    assert in_turns.median_s is None
    assert not sent_by(careful, in_turns, "eve")
    assert listed(careful) == {in_turns.id}


def test_administrators_decide_about_plans(careful, location):
    """They list those that wait and release one by its id; what they send is served.

    All that a recorder sent is rejected or retracted at once.
    """
    first, again = noted(RECORDS[0], "ann"), noted(RECORDS[0], "ann again")
    admin = {"headers": key_for(careful, "admin", "root")}
    assert sent_by(careful, first, "ann")
    assert sent_by(careful, RECORDS[2], "eve")
    waiting = {first.id, RECORDS[2].id}
    assert listed(careful, "/v1/quarantine/plans", **admin) == waiting
    assert careful.get("/v1/quarantine", **admin).json()["facts"] == []
    assert careful.post(f"/v1/facts/{first.id}/confirm", **admin).status_code == 200
    assert listed(careful) == {first.id}
    trust = careful.get(f"/v1/facts/{first.id}/trust").json()
    assert [one["recorder"] for one in trust["recordings"]] == ["ann"]
    assert not sent_by(careful, RECORDS[2], "root", "admin")
    assert not sent_by(careful, again, "ann")
    assert listed(careful) == {first.id, again.id, RECORDS[2].id}
    with open_serving_store(location) as store:
        found = {one.recorder: one for one in store.reputations()}
        assert (found["ann"].n_sent, found["ann"].n_served) == (2, 2)
        since = datetime(2000, 1, 1, tzinfo=UTC)
        store.judge_recorder("ann", since, is_accepted=False, is_dry=False)
    assert listed(careful) == {RECORDS[2].id}
    asked = {"recorders": ["ann"], "reason": "a wrong clock", "is_dry_run": False}
    done = careful.post("/v1/facts:retract", json=asked, **admin).json()
    assert {one["id"] for one in done["plans"]} == {first.id, again.id}
    assert done["n_facts"] == 2
    assert listed(careful, "/v1/quarantine/plans", **admin) == set()


def test_recording_takes_a_key(serve):
    """Where facts need one."""
    client = serve(anonymous_record=False)
    assert send_plan(client, RECORDS[0]).status_code in (401, 403)
    assert send_plan(client, RECORDS[0], **key_for(client, "record")).status_code == 201
