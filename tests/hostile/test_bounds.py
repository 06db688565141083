"""What strangers may take of a service: of its disk, its pages and its clients."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, cycle
from urllib.request import Request, urlopen

import pytest
from starlette.testclient import TestClient

from feinsum.db import open_store
from feinsum.db.exchange.merging import back_up_store
from feinsum.db.remote import client
from feinsum.db.remote.store import HttpStore
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import ServiceError
from feinsum.records import to_json
from feinsum.service import Settings, create_app
from tests.db.factories import (
    make_device,
    make_environment,
    make_peaks,
    make_record,
    make_workload,
)
from tests.remote.chaos import ChaosServer, answering, chaos
from tests.service.conftest import key_for, send
from tests.service.running import running

HONEST, ODD = make_workload(1), make_workload(2)


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "facts.sqlite")


@pytest.fixture
def careful(location):
    """A service where recording needs a key."""
    settings = Settings(database=location, rate_per_s=0, freshness_s=0)
    with TestClient(create_app(settings)) as found:
        yield found


def named(service: TestClient, name: str) -> list[str]:
    """Which lists, searches and pages have a name."""
    places = [
        "/",
        "/devices",
        "/workloads",
        f"/workloads?q={name}",
        "/v1/devices",
        "/v1/workloads",
    ]
    found = {place: service.get(place) for place in places}
    assert {answer.status_code for answer in found.values()} == {200}
    shown = {
        place: answer.text.split("<main", 1)[-1] for place, answer in found.items()
    }
    return [
        place
        for place, text in shown.items()
        if text.count(name) > 3 * place.count(name)
    ]


def test_names_of_the_untrusted_go_at_once(careful):
    """Those of devices and of workloads, from every list, search and page."""
    name = "buy at example"
    odd = make_record(
        workload=ODD, environment=make_environment(replace(make_device(), name=name))
    )
    eve = key_for(careful, "record", "eve")
    assert send(careful, to_json(odd), **eve).status_code == 201
    peaks = to_json(make_peaks(replace(make_device(), name=f"{name} too")))
    headers = {"Content-Type": "application/json", **eve}
    assert careful.post("/v1/peaks", content=peaks, headers=headers).status_code == 201
    device = odd.environment.device.id
    assert named(careful, name)
    assert named(careful, ODD)
    asked = {"recorders": ["eve"], "reason": "x", "is_dry_run": False}
    admin = key_for(careful, "admin")
    gone = careful.post("/v1/facts:retract", json=asked, headers=admin)
    assert gone.json()["n_facts"] == 2
    assert named(careful, name) == named(careful, ODD) == []
    assert careful.get(f"/devices/{device}").status_code == 404
    assert careful.get(f"/workloads/{ODD}").status_code == 404


def test_an_untrusted_name_has_a_quota_over_all_workloads(location):
    """Beyond it comes 429 and when to come back; others and the trusted go on."""
    settings = Settings(database=location, rate_per_s=0, untrusted_mb_a_day=1)
    with TestClient(create_app(settings)) as service:
        eve, ann = key_for(service, "record", "eve"), key_for(service, "record", "ann")
        filler = {"software": {f"p{k}": "x" * 1000 for k in range(50)}}
        statuses = []
        for n in range(30):
            record = make_record(workload=make_workload(n))
            long = json.loads(to_json(record))
            long["environment"]["software"] = filler["software"]
            answer = send(service, json.dumps(long), **eve)
            statuses.append(answer.status_code)
            if answer.status_code == 429:
                break
        assert statuses[:5] == [201] * 5
        assert statuses[-1] == 429
        assert int(answer.headers["retry-after"]) > 0
        assert "trust" in answer.json()["detail"]
        for path in ("/v1/plans", "/v1/peaks"):
            headers = {"Content-Type": "application/json", **eve}
            sent = service.post(path, content="{" * 60_000, headers=headers)
            assert sent.status_code == 429
        assert send(service, to_json(make_record()), **ann).status_code == 201
        admin = key_for(service, "admin", "eve")
        assert send(service, to_json(make_record(5)), **admin).status_code == 201


def test_addresses_of_one_network_share_a_limit(location):
    """Everybody has 2**64 addresses of IPv6; of IPv4, and mapped ones, each counts."""
    settings = Settings(database=location, rate_per_s=1, burst=2)
    application = create_app(settings)

    def statuses(*addresses: str) -> list[int]:
        with_address = (
            TestClient(application, client=(address, 1)) for address in addresses
        )
        return [one.get("/v1/capabilities").status_code for one in with_address]

    assert statuses(*(f"2001:db8:0:1::{n}" for n in range(1, 5))) == [
        200,
        200,
        429,
        429,
    ]
    assert (
        statuses("2001:db8:0:2::1", "::ffff:192.0.2.1", "::ffff:192.0.2.2") == [200] * 3
    )
    assert statuses(*(f"192.0.2.{n}" for n in range(3, 9))) == [200] * 6


@contextmanager
def paging(cursors: Iterator[str]) -> Iterator[ChaosServer]:
    """A service whose pages are new each time, and lead to these cursors."""

    def behave(server: ChaosServer, stream: socket.socket) -> None:
        n = server.n_connections
        workload = {"key": f"k-{n}", "text": "", "n_facts": 1}
        page = {"workloads": [workload], "next": next(cursors)}
        answering("200 OK", json.dumps(page))(server, stream)

    with chaos(behave) as server:
        yield server


def test_pages_that_go_in_circles_are_an_error():
    """A service is asked for no page a second time."""
    with (
        paging(cycle("abc")) as server,
        pytest.raises(ServiceError, match="no page of"),
    ):
        len(HttpStore.at(server.url))
    assert server.n_connections < 6


def test_pages_that_never_end_are_an_error(monkeypatch):
    """Nobody reads a service for ever, however new every page is."""
    monkeypatch.setattr(client, "MAX_PAGES", 20)
    with (
        paging(map(str, count(1))) as server,
        pytest.raises(ServiceError, match="and has more"),
    ):
        len(HttpStore.at(server.url))
    assert server.n_connections < 30


def test_an_address_cannot_be_claimed(tmp_path):
    """Unless the operator names a proxy, nobody says for whom a request is."""
    database = str(tmp_path / "facts.sqlite")
    with running(database, tmp_path) as server:
        claim = Request(f"{server.url}/v1/capabilities")
        claim.add_header("X-Forwarded-For", "203.0.113.9")
        claim.add_header("X-Request-ID", "claim-1")
        with urlopen(claim) as answer:
            assert answer.status == 200
    # it was written by the end of the process
    lines = [one for one in server.log.read_text().splitlines() if "claim-1" in one]
    assert [json.loads(line)["address"] for line in lines] == ["127.0.0.1"]


def test_the_database_of_a_service_is_private(tmp_path):
    """The file, what SQLite puts beside it, and copies; a user's own follows umask."""
    path = tmp_path / "facts.sqlite"
    with open_serving_store(path) as store:
        store.add(make_record())
        back_up_store(store, tmp_path / "copy.sqlite")
        modes = {one.name: one.stat().st_mode for one in tmp_path.iterdir()}
    assert {"facts.sqlite", "copy.sqlite"} <= set(modes)
    assert not [name for name, mode in modes.items() if stat.S_IMODE(mode) & 0o077]
    with open_store(tmp_path / "own.sqlite"):
        pass
    (tmp_path / "plain").touch()
    plain = (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "own.sqlite").stat().st_mode == plain
