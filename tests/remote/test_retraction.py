"""Retractions between clients and a live service."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from feinsum.cli import app
from feinsum.db import HttpStore, ShippedStore, open_store
from feinsum.db.exchange.merging import merge
from feinsum.db.remote.layer import open_remote
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import InvalidRecordError, ServiceError
from feinsum.records import LookUp, Retraction, RetractionQuery, to_json
from feinsum.service import make_key
from tests.db.factories import WORKLOAD, make_device, make_peaks, make_record
from tests.remote.chaos import answering, chaos
from tests.remote.conftest import forget
from tests.remote.live import live_service

HERE = LookUp({WORKLOAD: ""}, make_device(), "default")
FACTS = [make_record(n) for n in range(3)]
ONE = RetractionQuery(ids=(FACTS[0].id,))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with live_service(tmp_path_factory.mktemp("service"), max_age_s=3600) as service:
        yield service


@pytest.fixture
def url(running, monkeypatch):
    """A service with three facts, and the key of an administrator."""
    found = running.lease()
    secret, key = make_key("ann", "admin")
    with open_serving_store(running.path(found)) as store:
        store.add_key(key)
        store.add_all([*FACTS, make_peaks()])
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", secret)
    yield found
    running.give_back(found)


def known(url):
    return {record.id for record in open_remote(url).candidates(HERE)[WORKLOAD]}


def test_who_retracts_forgets_at_once(url):
    """Though answers may be kept for an hour: in this process and in others."""
    every = {fact.id for fact in FACTS}
    assert known(url) == every
    store = HttpStore.at(url)
    assert store.retract(ONE).n_facts == 1
    assert known(url) == every
    done = store.retract(ONE, reason="a wrong clock", is_dry_run=False)
    assert [one.id for one in done.suspects] == [FACTS[0].id]
    assert known(url) == every - {FACTS[0].id}
    forget()
    assert known(url) == every - {FACTS[0].id}
    assert len(store) == 2
    assert store.find_lacking("record", every) == frozenset()


def test_retractions_go_both_ways(url, tmp_path):
    """A merge brings them to a service and back; limits of devices as well."""
    retractions = [
        Retraction(one.id, "wrong", "me", "2026-02-01T09:00:00+00:00")
        for one in (FACTS[1], make_peaks())
    ]
    store = HttpStore.at(url)
    with open_store(tmp_path / "laptop.sqlite") as laptop:
        laptop.add_all([*FACTS, *retractions])
        assert +merge(store, laptop) == {"retraction": 2}
        assert {r.id for r in store.records()} == {FACTS[0].id, FACTS[2].id}
        assert store.peaks(make_device().id) is None
        assert set(store.documents("retraction")) == set(retractions)
        store.retract(ONE, reason="wrong", is_dry_run=False)
        assert +merge(laptop, store) == {"retraction": 1}
        assert [r.id for r in laptop.records()] == [FACTS[2].id]


def test_packaged_facts_are_sent_by_a_command(url, monkeypatch):
    """The documented one; here few of them, for they go one by one."""
    few = ShippedStore(tuple(to_json(make_record(10 + n)) for n in range(3)))
    monkeypatch.setattr("feinsum.db.get_shipped_facts", lambda: few)
    done = CliRunner().invoke(app, ["db", "import", "packaged", "--database", url])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "new: 3 records" in done.stdout
    assert {r.id for r in few.records()} < {r.id for r in HttpStore.at(url).records()}


def test_odd_retractions_of_a_service_are_refused():
    """What is none, or not the one that it says, ends a merge."""
    for entry in (
        {"id": "0" * 64, "document": json.loads("{}")},
        {"id": "0" * 64, "document": {**vars(Retraction("1" * 64, "", ""))}},
        {"document": None},
    ):
        page = json.dumps({"retractions": [entry], "next": None})
        with (
            chaos(answering("200 OK", page)) as service,
            pytest.raises(InvalidRecordError),
        ):
            list(HttpStore.at(service.url).documents("retraction"))


def test_odd_answers_to_a_retraction_are_refused():
    """It is not known then what was retracted."""
    with chaos(answering("200 OK", json.dumps({"n_facts": -1}))) as service:
        store = HttpStore.at(service.url)
        with pytest.raises(ServiceError, match="does not say what was retracted"):
            store.retract(ONE)
