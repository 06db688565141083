"""Ids and keys may be given by their beginnings, as tables print them."""

from __future__ import annotations

import json

import pytest

from feinsum.db.server.serving import open_serving_store
from feinsum.db.sql.tables import DeviceRow
from feinsum.errors import InvalidRequestError, RecordNotFoundError
from feinsum.records import to_json
from tests.db.factories import WORKLOAD, make_device, make_peaks, make_record
from tests.service.conftest import key_for, send, store_of
from tests.service.examples import PLAN
from tests.service.test_problems import is_problem

RECORD = make_record()

DEVICE = make_device().id


@pytest.fixture
def filled(client):
    """A client of a service with a fact, a plan and the limits of a device."""
    store_of(client).add_all([RECORD, PLAN, make_peaks()])
    return client


def test_a_beginning_is_as_good_as_a_whole_id(filled):
    """In a path, and as a filter of a list; on pages, too."""
    for path, start, whole in (
        ("/v1/facts/{}", RECORD.id[:12], RECORD.id),
        ("/v1/facts/{}/trust", RECORD.id[:12], RECORD.id),
        ("/v1/plans/{}", PLAN.id[:12], PLAN.id),
        ("/v1/peaks/{}", DEVICE[:12], DEVICE),
        ("/v1/facts?device={}", DEVICE[:12], DEVICE),
        ("/v1/facts?workload={}", WORKLOAD[:24], WORKLOAD),
        ("/v1/plans?workload={}", PLAN.workload[:24], PLAN.workload),
        ("/v1/best/{}?policy=loose", WORKLOAD[:24], WORKLOAD),
        ("/facts/{}", RECORD.id[:12], RECORD.id),
        ("/devices/{}", DEVICE[:12], DEVICE),
        ("/workloads/{}", WORKLOAD[:24], WORKLOAD),
    ):
        shortened = filled.get(path.format(start))
        assert shortened.status_code == 200, shortened.text
        assert shortened.content == filled.get(path.format(whole)).content
        assert "?" not in path or b':[{"id"' in shortened.content


def test_a_fact_is_retracted_by_its_beginning(filled):
    """By the route that takes one id."""
    admin = key_for(filled, "admin", "ann")
    path = f"/v1/facts/{RECORD.id[:12]}"
    answer = filled.delete(f"{path}?reason=wrong", headers=admin)
    assert [fact["id"] for fact in answer.json()["suspects"]] == [RECORD.id]
    assert is_problem(filled.get(path), 404, "record-not-found")


def test_a_refusal_says_what_a_whole_id_is(filled):
    """404 for the beginning of none, 422 for what begins no id."""
    for path, status, code, words in (
        (f"/v1/facts/{'0' * 12}", 404, "record-not-found", "all its 64 digits"),
        (f"/v1/plans/{'0' * 12}", 404, "record-not-found", "all its 64 digits"),
        (f"/v1/peaks/{'0' * 12}", 404, "record-not-found", "all its 64 digits"),
        (f"/v1/facts?device={'0' * 12}", 404, "record-not-found", "all its 64 digits"),
        (f"/v1/facts/{RECORD.id[:11]}", 422, "invalid-request", "{12,64}"),
        ("/v1/facts/rowwise@1", 422, "invalid-request", "{12,64}"),
        (f"/v1/best/{WORKLOAD[:13]}0000", 404, "record-not-found", "40 hexadecimal"),
    ):
        answer = filled.get(path)
        assert is_problem(answer, status, code)
        assert words in answer.json()["detail"]


def test_nobody_learns_of_an_id_without_the_scope(serve):
    """A beginning is completed only for callers who may read."""
    client = serve(anonymous_read=False)
    store_of(client).add(RECORD)
    for digits in (RECORD.id[:12], "0" * 12):
        for path in (f"/v1/facts/{digits}", f"/v1/best/{WORKLOAD[:24]}"):
            assert is_problem(client.get(path), 401, "not-authenticated")


def test_several_candidates_are_named(any_location):
    """On SQLite and on PostgreSQL, the whole id of each, up to a handful."""
    start = "0123456789ab"
    ids = [f"{start}{n}" + "f" * 51 for n in range(9)]
    columns = dict.fromkeys(
        ("platform", "name", "vendor", "kind", "architecture"), "x"
    ) | {"compute_units": 1}
    with open_serving_store(any_location) as store:
        rows = [{"id": device_id, **columns} for device_id in ids]
        store.write(lambda c: c.execute(DeviceRow.__table__.insert(), rows))
        with pytest.raises(InvalidRequestError) as refusal:
            store.complete_device(start)
        named = str(refusal.value)
        assert [device_id in named for device_id in ids] == [True] * 5 + [False] * 4
        assert named.endswith(", ...; give more digits")
        assert store.complete_device(f"{start}7") == ids[7]
        assert store.complete_device(ids[0]) == ids[0]
        with pytest.raises(RecordNotFoundError):
            store.complete_device("f" * 12)


def test_keys_that_begin_alike_are_told_apart(client):
    """A whole key is itself, though another begins with it."""
    longer = f"{WORKLOAD}0"
    for record in (RECORD, make_record(1, workload=longer)):
        store_of(client).add(record)
    for key in (WORKLOAD, longer):
        assert client.get(f"/v1/best/{key}?policy=loose").json()["workload"] == key
    for path in (f"/v1/best/{WORKLOAD[:24]}", f"/v1/facts?workload={WORKLOAD[:24]}"):
        answer = client.get(path)
        assert is_problem(answer, 422, "invalid-request")
        assert WORKLOAD in answer.json()["detail"]
        assert longer in answer.json()["detail"]


def test_what_is_sent_has_whole_ids(client):
    """A document refers to others by their whole ids."""
    send(client, to_json(RECORD))
    short = json.dumps({"ids": [RECORD.id[:12]]})
    answer = send(client, short, "/v1/facts:missing")
    assert is_problem(answer, 422, "invalid-request")
