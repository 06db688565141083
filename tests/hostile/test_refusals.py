"""No bytes of anybody make a service fail, or tell where its database is."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from feinsum.cli.shared.output import print_json
from feinsum.cli.shared.records import compute_fractions, print_records, record_document
from feinsum.records import InMemoryStore
from feinsum.service import make_key
from tests.db.factories import make_peaks, make_record
from tests.hostile.live import database, live

__all__ = ["database", "live"]

NO_KEY_OF_OURS = [b"Basic \xff\xfe", b"Bearer \xff\xfe", b"Basic ====", b"\xff"]

SURROGATE = base64.urlsafe_b64encode(json.dumps(["\ud800"]).encode()).decode()
DEMAND_SURROGATE = base64.urlsafe_b64encode(
    json.dumps([1, 1, "\ud800", "\udfff"]).encode()
).decode()


def encoded(place: list[object]) -> str:
    """A place as a cursor has it."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


LISTS = (
    *(f"/v1/{name}" for name in ("workloads", "devices", "facts", "demand")),
    *("/workloads", "/devices", "/plans"),
)


def test_headers_that_are_no_text_are_refused(live):
    """Whatever bytes an Authorization header has, it is 401 with a code."""
    for value in NO_KEY_OF_OURS:
        answer = live.ask("GET", "/v1/devices", headers={"Authorization": value})
        assert (answer.status, answer.json()["code"]) == (401, "not-authenticated")


def test_cursors_with_half_a_character_are_refused(live):
    """A lone surrogate in a cursor is 422 on every list and page."""
    admin = live.key("admin", "operator")
    for path in LISTS:
        for cursor in (SURROGATE, DEMAND_SURROGATE):
            answer = live.ask("GET", f"{path}?cursor={cursor}", headers=admin)
            assert (answer.status, answer.json()["code"]) == (422, "invalid-request")


@given(cursor=st.text(max_size=40) | st.lists(st.integers() | st.text()).map(encoded))
@settings(max_examples=25, deadline=None)
def test_no_cursor_breaks_a_list(live, cursor):
    """Any text is a place in a list, or is refused as none."""
    for path in (*LISTS, "/v1/best/k-1"):
        answer = live.ask("GET", f"{path}?cursor={quote(cursor, errors='ignore')}")
        assert answer.status in (200, 404, 422), answer.body


def test_bodies_with_half_a_character_do_no_harm(live):
    """They are refused or answered; misses are counted afterwards as before."""
    for path, body in (
        ("/v1/best:batch", {"workloads": ["k-1"], "device": "\ud800"}),
        ("/v1/best:batch", {"workloads": ["k-1"], "architecture": "a\x00"}),
        ("/v1/best:batch", {"workloads": [{"key": "k-1", "text": "\ud800"}]}),
        ("/v1/canonicalize", {"text": "\ud800"}),
        ("/v1/canonicalize", {"subscripts": "\ud800,\ud800", "extents": {"\ud800": 1}}),
        ("/v1/canonicalize", {"subscripts": "i", "extents": {"i": "\ud800"}}),
        ("/v1/facts:missing", {"ids": ["\ud800"]}),
    ):
        answer = live.ask("POST", path, json.dumps(body))
        assert answer.status in (200, 422), answer.body
        live.ask("GET", "/v1/best/counted-1")
        assert live.ask("GET", "/v1/demand").status == 200


def test_head_is_answered_as_get(live):
    """HEAD has the status and the headers of GET, on every route that GET has."""
    with live.store() as store:
        store.add(make_record(3, workload="head-1"))
    for path in ("/v1/best/head-1", "/v1/best/none-1", "/v1/facts", "/healthz", "/"):
        head, get = live.ask("HEAD", path), live.ask("GET", path)
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers.get("etag") == get.headers.get("etag")


def test_a_key_in_a_url_is_refused_and_kept_nowhere(live):
    """A key that was pasted into an address is in no list, page or answer."""
    secret, _ = make_key("ann", "admin")
    live.ask("GET", f"/v1/best/{secret}")
    live.ask("GET", f"/v1/best/k-1?device={secret}")
    live.ask("GET", f"/v1/best/k-1?text={secret}")
    batch = {"workloads": [secret, {"key": "k-2", "text": secret}], "device": secret}
    live.ask("POST", "/v1/best:batch", json.dumps(batch))
    for path in ("/v1/demand", f"/v1/best/{secret}"):
        assert secret.encode() not in live.ask("GET", path).body
    assert secret not in live.server.log.read_text()


def test_a_refusal_does_not_say_where_the_database_is(live):
    """A 404 of a fact names neither path nor URL."""
    answer = live.ask("GET", f"/v1/facts/{'0' * 64}")
    assert answer.status == 404
    for part in ("/tmp", "sqlite", "postgresql", "feinsum query"):
        assert part not in answer.json()["detail"]


def test_a_query_of_nonsense_limits_prints(capsys):
    """Facts of a device with limits that nothing can have are printed all the same."""
    nonsense = replace(
        make_peaks(),
        bandwidth_bytes_per_s=1e-300,
        operations_per_s={"<f8": 1e-300, "<f4": -5.0},
    )
    record = make_record()
    slow = replace(record.measurement, samples_s=(1e-300,) * 3, baseline_s=(1e300,))
    for fact in (record, replace(record, measurement=slow)):
        store = InMemoryStore()
        store.add(fact)
        store.add(nonsense)
        fractions = compute_fractions([fact], store)
        print_records([fact], fractions)
        print_json(record_document(fact, fractions))
    assert "rowwise" in capsys.readouterr().out
