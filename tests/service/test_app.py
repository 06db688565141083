"""The service keeps and answers what a store does, and every error is a problem."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from feinsum.records import InMemoryStore, TuningRecord, from_json, to_json
from feinsum.service import create_app
from tests.db.factories import make_record


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def client(store):
    return TestClient(create_app(store))


def test_a_posted_fact_comes_back_equal(client):
    """What is posted is what is answered, by id and as the best of its workload."""
    record = make_record()
    assert client.post("/v1/facts", content=to_json(record)).status_code == 201
    answer = client.get(f"/v1/facts/{record.id}")
    assert from_json(TuningRecord, answer.content) == record
    best = client.get(f"/v1/best/{record.workload}").json()
    assert len(best) == 1


def test_posting_twice_is_posting_once(client, store):
    """Adding is idempotent: 201 for a new fact, 200 for a known one."""
    text = to_json(make_record())
    codes = [client.post("/v1/facts", content=text).status_code for _ in range(2)]
    assert codes == [201, 200]
    assert len(store) == 1
    assert client.get("/healthz").json() == {"records": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/facts/none", None, 404, "record-not-found"),
        ("GET", "/v1/best/none", None, 404, "record-not-found"),
        ("POST", "/v1/facts", b"{}", 422, "invalid-record"),
        ("POST", "/v1/facts", b"\x80not json", 422, "invalid-record"),
        ("GET", "/nowhere", None, 404, "http-404"),
        ("PUT", "/v1/facts", None, 405, "http-405"),
    ],
)
def test_errors_are_problem_documents(client, method, path, body, status, code):
    """Every refusal is a problem document with a stable code."""
    answer = client.request(method, path, content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == code
