"""The service keeps and answers what a store does, on both databases."""

from __future__ import annotations

import json

import pytest

from feinsum.canonical import canonicalize
from feinsum.ir import array, einsum, from_text, to_text
from feinsum.records import DevicePeaks, Retraction, TuningRecord, from_json, to_json
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_peaks,
    make_plan_record,
    make_processor,
    make_record,
    make_workload,
)
from tests.service.conftest import send, store_of


@pytest.fixture
def location(any_location):
    return any_location


def test_a_posted_fact_comes_back_equal(client):
    """By id, as the best of its workload, and among those that are not missing; 201
    says that it is new, 200 that it is known.
    """
    record, *others = (make_record(n) for n in range(3))
    sent = send(client, to_json(record))
    assert (sent.status_code, sent.json()["id"]) == (201, record.id)
    assert sent.headers["location"] == f"/v1/facts/{record.id}"
    assert send(client, to_json(record)).status_code == 200
    assert len(store_of(client)) == 1
    answer = client.get(sent.headers["location"])
    assert from_json(TuningRecord, answer.content) == record
    assert answer.headers["cache-control"] == "public, max-age=60"
    (fact,) = client.get(f"/v1/best/{record.workload}").json()["facts"]
    assert fact["id"] == record.id
    assert from_json(TuningRecord, json.dumps(fact["document"])) == record
    ids = [others[1].id, record.id, others[0].id]
    answer = client.post("/v1/facts:missing", json={"ids": ids})
    assert answer.json() == {"ids": [ids[0], ids[2]]}


def test_best_is_narrowed_by_device_and_policy(client):
    """Nearness is that of the device asked for; the policy says which is accepted."""
    gpu = make_device(7)
    gpu = type(gpu)(gpu.platform, "gpu", gpu.vendor, "gpu", "x", 8)
    for n, device in enumerate([make_device(0), make_device(1), gpu]):
        environment = make_environment(device)
        send(client, to_json(make_record(n, environment=environment)))
    here = make_device(0).id
    for query, found in (
        ("", ["other", "other", "other"]),
        (f"?device={here}&policy=strict", ["device"]),
        (f"?device={here}", ["device", "architecture"]),
        (f"?device={here}&policy=loose", ["device", "architecture", "other"]),
        ("?device=cpu-1&policy=strict", ["device"]),
        ("?device=unknown&architecture=gpu/x", ["architecture"]),
        ("?architecture=cpu/x86_64", ["architecture", "architecture"]),
    ):
        facts = client.get(f"/v1/best/{WORKLOAD}{query}").json()["facts"]
        assert [fact["nearness"] for fact in facts] == found, query


def test_best_of_many_is_best_of_each(client):
    """A batch answers in the order asked, null for a miss, doubles included."""
    send(client, to_json(make_record()))
    one = client.get(f"/v1/best/{WORKLOAD}").json()
    asked = [WORKLOAD, "none-1", {"key": WORKLOAD}, WORKLOAD]
    answer = client.post("/v1/best:batch", json={"workloads": asked})
    assert answer.json() == {"answers": [one, None, one, one]}


@pytest.fixture
def crowded(client):
    """A service with several entries in every list."""
    store = store_of(client)
    for n in range(5):
        environment = make_environment(make_device(n))
        store.add(make_record(n, workload=make_workload(n), environment=environment))
        store.add(make_plan_record(n))
        store.add(Retraction(f"{n:064}", "wrong", "ann"))
        for _ in range(n % 3 + 1):
            client.get(f"/v1/best/k-{n}")
    return client


@pytest.mark.parametrize("is_cut", [False, True])
def test_lists_have_all_pages(crowded, monkeypatch, is_cut):
    """Following ``next`` leads through everything once, in the order of the list. A
    page ends at the limit, or where it is long enough.
    """
    for name, of in (
        ("workloads", "key"),
        ("devices", "id"),
        ("facts", "id"),
        ("plans", "id"),
        ("retractions", "id"),
        ("demand", "workload"),
    ):
        monkeypatch.undo()
        field = "demands" if name == "demand" else name
        every = crowded.get(f"/v1/{name}").json()[field]
        seen, cursor = [], None
        has_long_entries = is_cut and name not in ("retractions", "demand")
        if has_long_entries:
            monkeypatch.setattr("feinsum.db.server.pages.MAX_CHARACTERS", 1)
        while True:
            params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = crowded.get(f"/v1/{name}", params=params).json()
            assert len(page[field]) <= (1 if has_long_entries else 2)
            seen += page[field]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == every
        assert len({entry[of] for entry in seen}) == len(seen) >= 5


def test_lists_are_filtered(crowded):
    """Facts of a workload or of a device alone; devices with the number of facts."""
    record = make_record(3, workload=make_workload(3))
    device = make_device(3).id
    for params in ({"workload": record.workload}, {"device": device}):
        facts = crowded.get("/v1/facts", params=params).json()["facts"]
        assert [fact["document"]["workload"] for fact in facts] == [record.workload]
    listed = crowded.get("/v1/devices").json()["devices"]
    assert {entry["id"]: entry["n_facts"] for entry in listed}[device] == 1


def test_devices_are_listed_with_their_processors(client):
    """Null where none was recorded."""
    devices = (make_device(), make_device(processor=make_processor("zen5")))
    for device in devices:
        record = make_record(environment=make_environment(device))
        assert send(client, to_json(record)).status_code == 201
    listed = client.get("/v1/devices").json()["devices"]
    found = {one["id"]: one["device"]["processor"] for one in listed}
    before, known = devices
    assert found[before.id] is None
    assert found[known.id]["microarchitecture"] == "zen5"
    assert found[known.id]["features"] == ["avx2", "avx512f"]


def test_measured_limits_come_back(client):
    """The latest limits of a device are answered; posting is idempotent."""
    path = f"/v1/peaks/{make_device().id}"
    assert client.get(path).status_code == 404
    sent = [send(client, to_json(make_peaks()), "/v1/peaks") for _ in range(2)]
    assert [answer.status_code for answer in sent] == [201, 200]
    assert from_json(DevicePeaks, client.get(path).content) == make_peaks()


def test_any_spelling_has_one_canonical_form(client):
    """The key is that of ``canonicalize``; the relabeling leads to the text."""
    for body in (
        {"text": "p q, q -> p | M[n,4]:<f8 y[4]:<f8 | M y"},
        {"subscripts": "ij,j->i", "extents": {"i": "N", "j": 4}},
        {"subscripts": "row col, col -> row", "extents": {"row": "N", "col": 4}},
        {
            "subscripts": "j,ij->i",
            "extents": {"i": 100000, "j": 4},
            "rows": [["x", "A"]],
        },
        {"subscripts": "ij,j", "extents": {"i": "N", "j": 4}, "dtypes": {"A": "<f8"}},
    ):
        form = canonicalize(einsum("ij,j->i", array("A", ("n", 4)), array("x", 4)))
        found = client.post("/v1/canonicalize", json=body).json()
        assert (found["key"], found["text"]) == (form.key, form.text)
        again = canonicalize(from_text(found["einsum"]))
        assert to_text(again.einsum) == found["text"]
        assert found["relabeling"]["indices"] == dict(again.relabeling.indices)


def test_the_service_says_how_it_is(serve):
    """It is healthy, ready, tells its limits, and counts what it answered under
    patterns of paths.
    """
    client = serve(max_batch=7)
    client.get("/v1/best/none")
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    counted = 'feinsum_requests_total{method="GET",route="/v1/best/{key}",status="404"}'
    assert counted in client.get("/metrics").text
    found = client.get("/v1/capabilities").json()
    assert (found["max_batch"], found["confirmations"]) == (7, 0)
    assert found["form_version"] == "fe2"
