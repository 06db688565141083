"""Whatever a fact says is text on a page; problems are pages for browsers alone."""

from __future__ import annotations

import json

import pytest

from feinsum.records import DevicePeaks, TuningRecord, from_json, to_json
from feinsum.service.problems import MEDIA_TYPE
from tests.service.conftest import send, store_of
from tests.service.pages.documents import ACCEPT, get, is_sound_page, text_of
from tests.service.pages.facts import HOSTILE, MARKUP, make_fact

DEVICE = HOSTILE.environment.device

PATHS = [
    "/",
    "/workloads",
    f"/workloads/{HOSTILE.workload}",
    f"/facts/{HOSTILE.id}",
    "/devices",
    f"/devices/{DEVICE.id}",
]


@pytest.fixture
def attacked(client):
    """A service whose database has markup wherever there is text."""
    store = store_of(client)
    assert store.receive(HOSTILE, MARKUP)
    store.add(DevicePeaks(DEVICE, -1.0, {MARKUP: 0.0}, "2025-01-01T00:00:00"))
    return client


def test_markup_in_facts_is_text(attacked):
    """No element and no attribute comes from a fact; what it says can be read."""
    for path in PATHS:
        page = get(attacked, path)
        assert len(list(page.iter("script"))) == 2
        assert list(page.iter("img")) == []
        assert "<script>alert(1)" in text_of(page) or path == "/workloads"
        assert "49" not in text_of(page.find(".//h1"))


def test_markup_in_a_search_is_text(client):
    """What was typed comes back as the value of its field, and nothing else."""
    request = client.build_request("GET", "/workloads", params={"q": MARKUP})
    page = get(client, str(request.url.raw_path, "ascii"))
    assert len(list(page.iter("script"))) == 2
    assert page.find(".//input[@name='q']").get("value") == MARKUP


def with_times(samples, baseline):
    """The document of a fact with other times than it was measured with."""
    fact = make_fact()
    absurd = {"samples_s": samples, "baseline_s": baseline}
    timing = json.loads(to_json(fact.measurement)) | absurd
    return json.dumps(json.loads(to_json(fact)) | {"measurement": timing})


def test_absurd_times_are_drawn_somewhere(client):
    """Times that nobody can have measured, from before they were refused, break no
    page.
    """
    for samples, baseline in (
        ([1e300, 1e-300, 1.0], [1e-300]),
        ([5e-200] * 300, [1e-200]),
    ):
        fact = from_json(TuningRecord, with_times(samples, baseline))
        assert store_of(client).add(fact)
        for path in (f"/workloads/{fact.workload}", f"/facts/{fact.id}"):
            assert is_sound_page(get(client, path))


def test_times_beyond_all_numbers_come_on_no_page(client):
    """A ratio or a sum that is not finite is refused when it is sent."""
    for samples, baseline in (([1e-300], [1e308]), ([1e308, 1e308], [1e308])):
        sent = send(client, with_times(samples, baseline))
        assert (sent.status_code, sent.json()["code"]) == (422, "implausible")


PROBLEMS = [
    ("/nowhere", 404, "no-such-route"),
    ("/workloads/none", 404, "record-not-found"),
    (f"/facts/{'0' * 64}", 404, "record-not-found"),
    (f"/devices/{'0' * 64}", 404, "record-not-found"),
    ("/facts/nothing", 422, "invalid-request"),
    ("/workloads?cursor=x", 422, "invalid-request"),
    ("/workloads/%3Cb%3E", 422, "invalid-request"),
]


def test_a_browser_is_told_problems_on_a_page(client):
    """Status and code are those of the problem document."""
    for path, status, code in PROBLEMS:
        page = get(client, path, status)
        assert f"Status {status}, code {code}." in text_of(page)


def test_all_others_get_problem_documents(client):
    """Who does not put HTML first gets the document."""
    for accept in ("*/*", "application/json, text/html", ""):
        for path, status, code in PROBLEMS:
            answer = client.get(path, headers={"Accept": accept})
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.headers["content-type"] == MEDIA_TYPE


def test_problems_of_v1_are_always_documents(client):
    """Under ``/v1`` a problem is a document, whatever is accepted."""
    for path in ("/v1/best/none", "/v1/nowhere", "/v1/workloads?limit=0"):
        answer = client.get(path, headers=ACCEPT)
        assert answer.headers["content-type"] == MEDIA_TYPE


def test_a_browser_is_told_to_wait_on_a_page(serve):
    """Also what the gate refuses is a page, with the same headers."""
    client = serve(rate_per_s=0.01, burst=1)
    assert client.get("/", headers=ACCEPT).status_code == 200
    answer = client.get("/", headers=ACCEPT)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert "Too many requests" in answer.text


def test_a_wrong_method_is_told_the_right_ones(client):
    """Pages are read with GET and HEAD."""
    answer = client.post("/workloads")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert client.head("/workloads").status_code == 200
