"""A leaked key against a live service: what it sent goes, what others sent stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from feinsum.db import HttpStore, SqlStore, open_store
from feinsum.db.exchange.merging import merge
from feinsum.db.remote.client import Client
from feinsum.db.remote.layer import open_remote
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import NotAuthenticatedError, NotPermittedError, RecordNotFoundError
from feinsum.memory import use_fresh_memory
from feinsum.records import LookUp, Retraction, RetractionQuery, TuningRecord, to_json
from feinsum.service import make_key
from tests.db.conftest import make_postgresql_store
from tests.db.factories import WORKLOAD, make_device, make_measurement, make_record
from tests.remote.live import served_here
from tests.service.running import Server

__all__ = ["make_postgresql_store"]

LOOK_UP = LookUp({WORKLOAD: ""}, make_device())

FAKES = RetractionQuery(recorders=("leaked",))

ON_SQLITE = pytest.mark.parametrize("team", ["sqlite"], indirect=True)


@dataclass
class Team:
    """A service that runs, its database, and a key of each kind."""

    server: Server
    location: str
    secrets: dict[str, str]

    def ask(self, method: str, path: str, body: str | None = None, **headers: str):
        """Status, headers and document of an answer, whatever it is."""
        answer = self.server.ask(method, path, body, headers)
        return answer.status, answer.headers, answer.json()

    def key(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def send(self, record: TuningRecord, name: str) -> dict:
        status, _, kept = self.ask(
            "POST", "/v1/facts", to_json(record), **self.key(name)
        )
        assert status in (200, 201)
        return kept

    def served(self) -> list[str]:
        """The ids in the answer to a look-up, the best first."""
        status, _, answer = self.ask("GET", f"/v1/best/{WORKLOAD}?policy=loose")
        assert status in (200, 404)
        return [fact["id"] for fact in answer.get("facts", ())]

    def store(self, name: str) -> HttpStore:
        store = HttpStore.at(self.server.url)
        key = self.secrets[name] if name else None
        return HttpStore(Client(store.client.address, key))


@pytest.fixture(params=["sqlite", "postgresql"])
def team(request, tmp_path):
    """Clients may keep nothing, so that only what the service says counts."""
    location = str(tmp_path / "facts.sqlite")
    if request.param == "postgresql":
        make: Callable[[], SqlStore] = request.getfixturevalue("make_postgresql_store")
        location = make().location.url.render_as_string(hide_password=False)
    secrets = {}
    with open_serving_store(location) as store:
        for name, scope in (("ci", "record"), ("leaked", "record"), ("ann", "admin")):
            secrets[name], key = make_key(name, scope)
            store.add_key(key)
    settings = {"anonymous_record": False, "max_age_s": 0}
    with served_here(location, tmp_path, **settings) as server:
        yield Team(server, location, secrets)


def fake(number: int) -> TuningRecord:
    """A fact that says to be a thousand times as fast."""
    honest = make_record(number, note="fake")
    return replace(honest, measurement=make_measurement(1e-6 * (number + 1)))


@pytest.fixture
def caching(tmp_path, monkeypatch):
    """A client with a cache of its own on disk, and time."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_REMOTE_BUDGET_MS", "60000")
    with use_fresh_memory():
        yield


def asked(team: Team) -> set[str]:
    """What a client gets, with its cache."""
    with use_fresh_memory():
        found = open_remote(team.server.url).candidates(LOOK_UP)
    return {record.id for record in found[WORKLOAD]}


@pytest.mark.usefixtures("caching")
def test_what_a_leaked_key_sent_is_forgotten_at_once(team, tmp_path):
    """In every answer, list, page and cache, and for good; honest facts stay, those
    included that the key sent again.
    """
    honest, fakes = [make_record(n) for n in range(3)], [fake(n) for n in range(5)]
    for one in honest[:2]:
        team.send(one, "ci")
    with open_serving_store(team.location) as store:
        store.add(honest[2])
    for one in (*fakes, *honest):
        team.send(one, "leaked")
    every = {one.id for one in (*honest, *fakes)}
    assert asked(team) == set(team.served()) == every
    _, headers, _ = team.ask("GET", f"/v1/best/{WORKLOAD}?policy=loose")
    etag = headers["etag"]

    admin = team.store("ann")
    dry = admin.retract(FAKES)
    assert {one.id for one in dry.suspects} == {one.id for one in fakes}
    assert (dry.n_facts, dry.n_shared, dry.is_dry_run) == (5, 3, True)
    assert set(team.served()) == every
    done = admin.retract(FAKES, reason="sent with a leaked key", is_dry_run=False)
    assert done.suspects == dry.suspects

    left = {one.id for one in honest}
    assert set(team.served()) == asked(team) == left
    status, _, answer = team.ask(
        "GET", f"/v1/best/{WORKLOAD}?policy=loose", **{"If-None-Match": etag}
    )
    assert status == 200
    assert {fact["id"] for fact in answer["facts"]} == left
    batch = json.dumps({"workloads": [WORKLOAD], "policy": "loose"})
    _, _, answer = team.ask("POST", "/v1/best:batch", batch)
    assert {fact["id"] for fact in answer["answers"][0]["facts"]} == left
    _, _, answer = team.ask("GET", "/v1/facts")
    assert {fact["id"] for fact in answer["facts"]} == left
    _, _, answer = team.ask("GET", "/v1/workloads")
    assert [one["n_facts"] for one in answer["workloads"]] == [3]
    status, _, answer = team.ask("GET", f"/v1/facts/{fakes[0].id}")
    assert (status, answer["code"]) == (404, "record-not-found")
    assert "retracted by ann" in answer["detail"]
    _, _, trust = team.ask("GET", f"/v1/facts/{fakes[0].id}/trust")
    assert [one["reason"] for one in trust["retractions"]] == ["sent with a leaked key"]
    _, _, answer = team.ask("GET", "/v1/retractions?limit=2")
    assert len(answer["retractions"]) == 2
    assert answer["next"]

    assert team.send(fakes[0], "leaked")["is_retracted"] is True
    with open_store(tmp_path / "laptop.sqlite") as laptop:
        laptop.add_all([*fakes, *honest])
        merge(team.store("ci"), laptop)
        assert set(team.served()) == left
        assert (+merge(laptop, team.store("")))["retraction"] == 5
        assert {record.id for record in laptop.records()} == left


@ON_SQLITE
def test_retracting_takes_an_administrator(team):
    """Neither a key that records nor nobody's: by no route, and nothing happens."""
    honest = make_record()
    team.send(honest, "ci")
    retraction = Retraction(honest.id, "because", "eve")
    ways = [
        lambda store: store.retract(RetractionQuery(ids=(honest.id,))),
        lambda store: store.retract(
            RetractionQuery(workload=WORKLOAD), reason="because", is_dry_run=False
        ),
        lambda store: store.add(retraction),
    ]
    for name, error in (("leaked", NotPermittedError), ("", NotAuthenticatedError)):
        for way in ways:
            with pytest.raises(error):
                way(team.store(name))
    path = f"/v1/facts/{honest.id}"
    assert team.ask("DELETE", f"{path}?reason=x", **team.key("leaked"))[0] == 403
    assert team.ask("DELETE", f"{path}?reason=x")[0] == 401
    assert team.served() == [honest.id]

    assert team.ask("DELETE", path, **team.key("ann"))[0] == 422
    missing = f"/v1/facts/{'0' * 64}?reason=x"
    assert team.ask("DELETE", missing, **team.key("ann"))[0] == 404
    for bad in ({}, {"ids": ["x"]}, {"since": "soon"}, {"transform": "@1"}):
        answer = team.ask(
            "POST", "/v1/facts:retract", json.dumps(bad), **team.key("ann")
        )
        assert (answer[0], answer[2]["code"]) == (422, "invalid-request")
    assert team.served() == [honest.id]
    status, _, done = team.ask("DELETE", f"{path}?reason=wrong", **team.key("ann"))
    assert (status, done["n_facts"], done["is_dry_run"]) == (200, 1, False)
    assert team.served() == []


@ON_SQLITE
@pytest.mark.usefixtures("caching")
def test_a_user_forgets_what_a_service_still_says(team, tmp_path, monkeypatch):
    """A retraction in one's own database counts for all layers, cached ones too."""
    from feinsum.db import looked_up_store

    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "own.sqlite"))
    monkeypatch.setenv("FEINSUM_REMOTE", team.server.url)
    monkeypatch.setenv("FEINSUM_LAYERS", "user,remote")
    honest, bad = make_record(), fake(1)
    for one in (honest, bad):
        team.send(one, "ci")

    def known() -> set[str]:
        with use_fresh_memory(), looked_up_store(None) as store:
            return {record.id for record in store.candidates(LOOK_UP)[WORKLOAD]}

    assert known() == {honest.id, bad.id}
    with open_store() as own:
        own.retract(
            RetractionQuery(ids=(bad.id,)),
            reason="odd", retracted_by="me", is_dry_run=False,
        )  # fmt: skip
    assert known() == {honest.id}
    with looked_up_store(None) as store, pytest.raises(RecordNotFoundError):
        store.get(bad.id)
