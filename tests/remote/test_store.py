"""A service as a database: what it refuses is an error of ours, and nothing is lost."""

from __future__ import annotations

import json

import pytest

from feinsum.db import HttpStore, open_store, opened_documents
from feinsum.db.address import parse_key_id
from feinsum.db.exchange.merging import merge
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import (
    InvalidRecordError,
    NoSuchRouteError,
    NotAuthenticatedError,
    NotPermittedError,
    RecordNotFoundError,
    ServiceError,
    StoreError,
    StoreUnavailableError,
    TooLargeError,
    TooManyRequestsError,
)
from feinsum.records import InMemoryStore, LookUp
from feinsum.service import make_key
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_peaks,
    make_plan_record,
    make_record,
    make_trial,
)
from tests.remote.chaos import answering, chaos, refusing
from tests.remote.live import live_service
from tests.remote.test_chaos import FAILURES


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    with live_service(folder, anonymous_read=False, anonymous_record=False) as service:
        yield service


@pytest.fixture
def service(running):
    """The URL of a live service that wants keys."""
    url = running.lease()
    yield url
    running.give_back(url)


@pytest.fixture
def key(running, service, monkeypatch):
    """Sets a new key of a scope."""

    def make(scope):
        secret, key = make_key(scope, scope)
        with open_serving_store(running.path(service)) as store:
            store.add_key(key)
        monkeypatch.setenv("FEINSUM_REMOTE_KEY", secret)
        return secret

    return make


def test_scopes_open_what_they_say(service, key, monkeypatch):
    """Without a key nothing, with one to read no recording; the error says which."""
    with pytest.raises(NotAuthenticatedError, match=r"no key.*set FEINSUM_REMOTE_KEY"):
        HttpStore.at(service).query(WORKLOAD)
    key_id = parse_key_id(key("read"))
    assert HttpStore.at(service).query(WORKLOAD) == ()
    for write in (
        lambda: HttpStore.at(service).add(make_record()),
        lambda: HttpStore.at(service).add(make_peaks()),
        HttpStore.at(service).check_writable,
    ):
        with pytest.raises(NotPermittedError, match="the service at http") as refusal:
            write()
        found = f"the key in FEINSUM_REMOTE_KEY has the id {key_id}"
        assert found in str(refusal.value)
    key("record")
    HttpStore.at(service).check_writable()
    assert len(HttpStore.at(service)) == 0
    assert HttpStore.at(service).add(make_record())
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", "fk_unknown")
    with pytest.raises(NotAuthenticatedError, match="the key in FEINSUM_REMOTE_KEY"):
        HttpStore.at(service).get(make_record().id)


def test_what_the_untrusted_sent_is_marked(service, key):
    """In look-ups and lists, until a trusted key sends it too; facts stay equal."""
    key("record")
    store = HttpStore.at(service)
    assert store.add(make_record())
    look_up = LookUp({WORKLOAD: ""})
    ways = [
        lambda: store.query(WORKLOAD),
        lambda: store.candidates(look_up)[WORKLOAD],
        lambda: tuple(store.records()),
    ]
    for way in ways:
        assert way() == (make_record(),)
        assert not way()[0].is_trusted
    assert store.add(make_plan_record())
    assert not store.plans(make_plan_record().workload)[0].is_trusted
    key("admin")
    store = HttpStore.at(service)
    assert not store.add(make_record())
    assert all(way()[0].is_trusted for way in ways)


def test_databases_and_services_are_merged(service, key, tmp_path):
    """Both ways: facts and limits go, trials stay; again there is nothing new."""
    key("record")
    with open_store(tmp_path / "own.sqlite") as own:
        own.add_all([*(make_record(n) for n in range(5)), make_peaks(), make_trial()])
        with opened_documents(service) as far:
            assert +merge(far, own) == {"record": 5, "peaks": 1}
            assert merge(far, own).total() == 0
    with open_store(tmp_path / "new.sqlite") as new, opened_documents(service) as far:
        assert +merge(new, far) == {"record": 5, "peaks": 1}
        assert merge(new, far).total() == 0
        assert new.peaks(make_device().id) == make_peaks()
        assert list(new.ids("record")) == list(far.ids("record"))
        assert [r.id for r in far.documents("record", {make_record(1).id})] == [
            make_record(1).id
        ]


CODES = [
    (401, NotAuthenticatedError), (403, NotPermittedError), (404, RecordNotFoundError),
    (404, NoSuchRouteError), (413, TooLargeError), (422, InvalidRecordError),
    (429, TooManyRequestsError), (503, StoreUnavailableError), (500, StoreError),
]  # fmt: skip


def test_a_problem_document_is_the_error_of_its_code():
    """In the words of the service, on one line."""
    for status, kind in CODES:
        with chaos(refusing(status, kind.code, "so\n\x1b[31mit is")) as server:
            with pytest.raises(kind) as caught:
                HttpStore.at(server.url).get("0" * 64)
            assert type(caught.value) is kind
            message = f"the service at {server.url} says: so ?[31mit is"
            if status in (401, 403):
                message += "; no key was sent; set FEINSUM_REMOTE_KEY"
            assert str(caught.value) == message


def test_what_no_service_says_is_an_error_of_services():
    """A code that does not go with its status, or that is not for it to state."""
    for status, code in (
        (500, "record-not-found"),
        (404, "too-large"),
        (200, "x"),
        (422, "wrong-result"),
        (422, "build-failed"),
        (400, "never-heard-of"),
        (418, "x" * 999),
        (400, "a b"),
    ):
        with chaos(refusing(status, code, "words")) as server:
            with pytest.raises(ServiceError) as caught:
                HttpStore.at(server.url).get("0" * 64)
            assert type(caught.value) is ServiceError


def test_who_names_a_service_is_told_of_every_failure():
    """By an error of the tree; each is tried, for whoever writes must know."""
    for name in sorted(set(FAILURES) - {"bomb", "100 MB", "429", "503"}):
        with chaos(FAILURES[name]) as server:
            store = HttpStore.at(server.url)
            for n in (1, 2):
                with pytest.raises((StoreError, ServiceError)):
                    store.add(make_record())
                assert server.n_connections == n


def test_a_busy_service_is_asked_again_when_it_says():
    """A patient client waits; one that is to wait too long gives up."""

    def busy_once(server, stream):
        if server.n_connections == 1:
            refusing(429, "too-many-requests", "", Retry_After="0")(server, stream)
        else:
            kept = json.dumps({"id": make_record().id})
            answering("201 Created", kept)(server, stream)

    with chaos(busy_once) as server:
        assert HttpStore.at(server.url).add(make_record())
        assert server.n_connections == 2
        server.behave = refusing(503, "store-unavailable", "", Retry_After="9999")
        with pytest.raises(StoreUnavailableError):
            HttpStore.at(server.url).add(make_record())
        assert server.n_connections == 3


def test_what_was_kept_is_what_was_sent():
    """A service that kept another fact, or does not say which, is none of ours."""
    for said in ('{"id": "' + "0" * 64 + '"}', "{}", "[]", "1"):
        with (
            chaos(answering("201 Created", said)) as server,
            pytest.raises(ServiceError, match="a different fact"),
        ):
            HttpStore.at(server.url).add(make_record())


def test_a_list_that_does_not_end_is_refused():
    """A page that is none, or that goes on without anything in it."""
    for page in (
        "{}",
        "[]",
        '{"facts": {}, "next": null}',
        '{"facts": [], "next": "again"}',
        '{"facts": [1], "next": 1}',
        '{"facts": [1], "next": ""}',
    ):
        with chaos(answering("200 OK", page)) as server:
            with pytest.raises(ServiceError, match="no page"):
                list(HttpStore.at(server.url).records())
            assert server.n_connections == 1


def test_lists_of_something_else_are_refused():
    """Numbers, ids, demands, limits: each is checked."""
    for entries in ("[1]", '[{"n_facts": "x", "id": 3}]', "[null]"):
        for path in ("workloads", "devices", "demand", "peaks", "missing"):
            name = {"demand": "demands"}.get(path, path)
            body = f'{{"{name}": {entries}, "next": null, "ids": 1}}'
            ask = {
                "workloads": len,
                "devices": lambda store: list(store.ids("peaks")),
                "demand": lambda store: list(store.demands()),
                "peaks": lambda store: store.peaks("0" * 64),
                "missing": lambda store: store.find_lacking("record", ["0" * 64]),
            }[path]
            refused = pytest.raises((ServiceError, InvalidRecordError))
            with chaos(answering("200 OK", body)) as server, refused:
                ask(HttpStore.at(server.url))


def test_an_older_service_has_no_plans():
    """It knows no such address: it is asked for none, and sent none by a merge."""
    with chaos(refusing(404, NoSuchRouteError.code, "no such route")) as server:
        far, own = HttpStore.at(server.url), InMemoryStore()
        record = make_plan_record()
        own.add(record)
        assert far.plans(record.workload) == ()
        assert list(far.documents("plan")) == []
        assert far.find_lacking("plan", [record.id]) == frozenset()
        with pytest.raises(NoSuchRouteError):
            far.add(record)
