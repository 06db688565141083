"""Running services for the tests: in this process, on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from feinsum.canonical import WorkloadKey
from feinsum.db import SqlStore
from feinsum.db.server.demand import DemandLimits, DemandRequest
from feinsum.db.server.serving import ServingStore
from feinsum.records import Miss
from feinsum.service import Settings, create_app, make_key
from tests.db.conftest import make_postgresql_store

__all__ = ["make_postgresql_store"]

Serve = Callable[..., TestClient]


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Where the database of a service is."""
    return str(tmp_path / "facts.sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def any_location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same, on SQLite and on PostgreSQL in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "facts.sqlite")
    make: Callable[[], SqlStore] = request.getfixturevalue("make_postgresql_store")
    return make().location.url.render_as_string(hide_password=False)


@pytest.fixture
def serve(location: str) -> Iterator[Serve]:
    """Makes clients of services with some settings, ended after the test."""
    with ExitStack() as stack:

        def make(**settings: object) -> TestClient:
            chosen = {
                "database": location,
                "anonymous_record": True,
                "freshness_s": 0,
                "rate_per_s": 0,
                "demand_every_s": 3600,
            } | settings
            app = create_app(Settings(**chosen))
            return stack.enter_context(TestClient(app))

        yield make


@pytest.fixture
def client(serve: Serve) -> TestClient:
    """A client of a service that anybody may read and record with."""
    return serve()


def store_of(client: TestClient) -> ServingStore:
    """The store behind a client in this process."""
    store: ServingStore = client.app.state.service.store
    return store


def key_for(
    client: TestClient, scope: str, name: str = "ci", *, is_trusted: bool = False
) -> dict[str, str]:
    """Headers with a new key of that scope."""
    secret, key = make_key(name, scope, is_trusted=is_trusted)
    store_of(client).add_key(key)
    return {"Authorization": f"Bearer {secret}"}


def send(client: TestClient, document: str, path: str = "/v1/facts", **headers: str):
    """Post a document, by default a fact."""
    sent = {"Content-Type": "application/json", **headers}
    return client.post(path, content=document, headers=sent)


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def add_misses(
    store: ServingStore,
    counts: Mapping[Miss, int],
    texts: Mapping[WorkloadKey, str] | None = None,
) -> None:
    """Count misses of one caller."""
    asked = {DemandRequest(miss, "ann"): n for miss, n in counts.items()}
    store.add_misses(asked, texts or {}, DemandLimits())
