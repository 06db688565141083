"""Every refusal is a problem document with a stable code; only 404 is a miss."""

from __future__ import annotations

import json

from feinsum import errors
from feinsum.records import to_json
from feinsum.service import keys
from feinsum.service.problems import INTERNAL, MEDIA_TYPE, STATUS, convert_error
from tests.db.factories import WORKLOAD, make_record
from tests.service.conftest import key_for, send

DOCUMENT = json.loads(to_json(make_record()))
JSON = {"Content-Type": "application/json"}
DEEP = b"[" * 9_000


def is_problem(answer, status, code):
    document = answer.json()
    assert (answer.status_code, document["code"]) == (status, code), answer.text
    assert document["status"] == status
    assert document["type"] == f"urn:feinsum:problem:{code}"
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.headers["x-request-id"]
    return True


def test_errors_are_problem_documents(client):
    """Every refusal is a problem document with a stable code."""
    for method, path, body, status, code in (
        ("GET", "/v1/best/none", None, 404, "record-not-found"),
        ("GET", f"/v1/facts/{'0' * 64}", None, 404, "record-not-found"),
        ("GET", f"/v1/facts/{'0' * 64}/trust", None, 404, "record-not-found"),
        ("GET", "/nowhere", None, 404, "no-such-route"),
        ("GET", "/v1/best/", None, 404, "no-such-route"),
        ("PUT", "/v1/facts", b"{}", 405, "wrong-method"),
        ("POST", f"/v1/best/{WORKLOAD}", b"{}", 405, "wrong-method"),
        ("POST", "/v1/facts", b"{}", 422, "invalid-record"),
        ("POST", "/v1/facts", b"\x80not json", 422, "invalid-record"),
        ("POST", "/v1/facts", b'{"workload": ', 422, "invalid-record"),
        ("POST", "/v1/facts", DEEP, 422, "invalid-record"),
        ("POST", "/v1/best:batch", DEEP, 422, "invalid-request"),
        ("POST", "/v1/best:batch", b"[]", 422, "invalid-request"),
        ("POST", "/v1/best:batch", b'{"workloads":["a b"]}', 422, "invalid-request"),
        ("GET", "/v1/workloads?cursor=x", None, 422, "invalid-request"),
        ("GET", "/v1/workloads?cursor=WzFd", None, 422, "invalid-request"),
        ("GET", "/v1/demand?cursor=WyIiXQ", None, 422, "invalid-request"),
        ("GET", "/v1/workloads?limit=0", None, 422, "invalid-request"),
        ("GET", "/v1/facts?limit=1e9", None, 422, "invalid-request"),
        ("GET", f"/v1/best/{WORKLOAD}?policy=any", None, 422, "invalid-request"),
        ("GET", f"/v1/best/{WORKLOAD}?policy=", None, 422, "invalid-request"),
        ("GET", "/v1/best/k-1?policy=&policy=", None, 422, "invalid-request"),
        ("GET", "/v1/best/k-1?device=x&policy=", None, 422, "invalid-request"),
        ("GET", f"/v1/best/{WORKLOAD}?device=%00", None, 422, "invalid-request"),
        ("GET", f"/v1/best/{'k' * 200}", None, 422, "invalid-request"),
        ("GET", "/v1/best/..", None, 404, "no-such-route"),
        ("GET", "/v1/best/..%2f..%2fetc", None, 404, "no-such-route"),
        ("GET", "/v1/best/%2e%2e;a", None, 422, "invalid-request"),
        ("GET", "/v1/facts/..%2f", None, 404, "no-such-route"),
        ("POST", "/v1/canonicalize", b"{}", 422, "invalid-request"),
        ("POST", "/v1/canonicalize", b'{"text":"nonsense"}', 422, "invalid-einsum"),
        ("POST", "/v1/canonicalize", b'{"subscripts":"ij"}', 422, "invalid-request"),
    ):
        answer = client.request(
            method, path, content=body, headers=JSON if body else {}
        )
        assert is_problem(answer, status, code)


def test_a_wrong_method_is_told_the_right_ones(client):
    """``Allow`` has all methods of a path, and no other."""
    for path, methods in (
        ("/v1/facts", "GET, HEAD, POST"),
        ("/v1/best/k", "GET, HEAD"),
        ("/v1/facts:retract", "POST"),
    ):
        answer = client.delete(path)
        assert is_problem(answer, 405, "wrong-method")
        assert answer.headers["allow"] == methods


def test_only_plain_json_is_read(client):
    """A body of another type, a pickle for one, is refused and not looked at."""
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-python-pickle"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {},
    ):
        answer = client.post(
            "/v1/facts", content=to_json(make_record()), headers=headers
        )
        assert is_problem(answer, 415, "wrong-content-type")


def test_a_body_is_limited(serve):
    """A body beyond the limit is refused, by its length or while it is read."""
    client, long = serve(max_body_bytes=1000), b" " * 1001
    for path in ("/v1/facts", "/v1/best:batch", "/v1/nowhere"):
        answer = client.post(path, content=long, headers=JSON)
        assert is_problem(answer, 413, "too-large")
        if path != "/v1/nowhere":
            answer = client.post(path, content=iter([long[:500]] * 3), headers=JSON)
            assert is_problem(answer, 413, "too-large")


def test_a_length_that_is_none_is_refused(client):
    """What announces no number of bytes is not read."""
    for length in ("-1", "1e3", "9" * 400, "x"):
        headers = JSON | {"Content-Length": length}
        answer = client.post("/v1/facts", content=b"{}", headers=headers)
        assert is_problem(answer, 413, "too-large")


def test_a_batch_is_limited(serve):
    """More keys or ids than allowed are refused."""
    client = serve(max_batch=2)
    answer = client.post("/v1/best:batch", json={"workloads": ["k"] * 3})
    assert is_problem(answer, 422, "invalid-request")
    answer = client.post("/v1/facts:missing", json={"ids": ["0" * 64] * 3})
    assert is_problem(answer, 422, "invalid-request")


def test_who_asks_too_often_is_told_when_to_come_back(serve):
    """Beyond the burst it is 429 with Retry-After; watching is never held back."""
    client = serve(rate_per_s=0.01, burst=3)
    codes = [client.get("/v1/capabilities").status_code for _ in range(4)]
    assert codes == [200, 200, 200, 429]
    answer = client.get("/v1/capabilities")
    assert is_problem(answer, 429, "too-many-requests")
    assert 0 < int(answer.headers["retry-after"]) <= 101
    assert client.get("/healthz").status_code == 200


def test_each_key_has_a_rate_of_its_own(serve, monkeypatch):
    """One caller's haste is not another's."""
    monkeypatch.setattr(keys, "CACHE_S", 3600)
    client = serve(rate_per_s=0.01, burst=3)
    ann = key_for(client, "read", "ann")
    codes = [client.get("/v1/capabilities", headers=ann).status_code for _ in range(4)]
    assert codes == [200] * 4  # the first one came by address
    assert client.get("/v1/capabilities").status_code == 200


def test_a_database_that_is_gone_is_503(client):
    """What cannot be read is no miss."""
    service = client.app.state.service
    service.lookup._reader.close()
    answer = client.get(f"/v1/best/{WORKLOAD}")
    assert is_problem(answer, 503, "store-unavailable")
    assert answer.headers["retry-after"]
    assert is_problem(client.get("/readyz"), 503, "store-unavailable")
    assert client.get("/healthz").status_code == 200


def test_a_mistake_of_ours_is_500_and_says_nothing(client, monkeypatch, caplog):
    """Nothing of an error that was not foreseen is told; the log has it."""
    monkeypatch.setattr(
        client.app.state.service.store, "page_of_workloads", lambda *_: 1 / 0
    )
    answer = client.get("/v1/workloads")
    assert is_problem(answer, 500, INTERNAL)
    assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_every_error_has_a_status():
    """An error of the tree is the status of its class or of the next above it."""
    for kind in STATUS:
        assert convert_error(kind("what")).status_code == STATUS[kind]
    assert convert_error(errors.SchemaVersionError("newer")).status_code == 500


def test_a_miss_keeps_the_connection(client):
    """Only a body that may be unread ends it; a miss may be followed by more."""
    assert "connection" not in client.get("/v1/best/none").headers
    refused = {"Authorization": "x"}
    assert "connection" not in client.get("/v1/best/none", headers=refused).headers
    answer = client.post("/v1/facts", json={}, headers=refused)
    assert answer.headers["connection"] == "close"


def change(path, value):
    """The document of a fact with another value somewhere."""
    document = json.loads(json.dumps(DOCUMENT))
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return json.dumps(document)


def test_hostile_facts_are_refused(client):
    """A fact that no database could keep, or that is none, is 422; nothing is kept."""
    for path, value in (
        ("workload", "../../etc/passwd"),
        ("workload", "k" * 5000),
        ("workload", 7),
        ("workload_text", "a\x00b"),
        ("recorded_at", "yesterday"),
        ("recorded_at", "9999-12-31T23:59:59-23:59"),
        ("measurement.samples_s", [1e400]),
        ("measurement.samples_s", []),
        ("measurement.samples_s", [-1.0]),
        ("measurement.samples_s", [5e-324]),
        ("measurement.n_warmup", -1),
        ("measurement.n_warmup", "1"),
        ("measurement.footprint_bytes", 1.5),
        ("measurement.sizes", {"n": 10**400}),
        ("environment.device.kind", "abacus"),
        ("environment.device.compute_units", 10**30),
        ("environment.device.name", "x\x00"),
        ("spec.name", "n" * 2000),
        ("spec.version", 2**40),
        ("spec.parameters", {"code": {"__reduce__": "os.system"}}),
        ("extra", "field"),
        ("spec.parameters", {"lanes": 10**400}),
        ("provenance", {"note": "\x00; DROP TABLE records; --"}),
        ("workload_text", "'; DELETE FROM records; --"),
    ):
        answer = send(client, change(path, value))
        assert is_problem(answer, 422, answer.json()["code"])
        codes = ("invalid-record", "invalid-request", "implausible")
        assert answer.json()["code"] in codes
        assert client.get("/v1/facts").json()["facts"] == []


def test_facts_of_unknown_transforms_are_data(client):
    """A transform that is not registered here is stored, and never run here."""
    for path, value in (
        ("spec.name", "os_system"),
        ("spec.parameters", {"lanes": 2**62, "path": "'; DELETE FROM records; --"}),
        ("provenance", {"note": "\x01; DROP TABLE records; --", "path": "../../x"}),
    ):
        document = change(path, value)
        sent = send(client, document)
        assert sent.status_code == 201
        found = client.get(sent.headers["location"])
        assert found.json() == json.loads(document)
    assert len(client.get(f"/v1/best/{WORKLOAD}").json()["facts"]) == 3
