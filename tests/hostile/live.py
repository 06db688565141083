"""Live services for attacks: real processes, over SQLite and over PostgreSQL."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine, make_url

from feinsum.db.server import Scope, ServingStore, open_serving_store
from feinsum.service import new_key
from tests.service.running import PATIENCE_S, Server, running

__all__ = ["Answer", "Live", "database", "live", "schema_in"]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Live:
    """A service and its database."""

    server: Server
    database: str

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send a request on a connection of its own; JSON, if there is a body."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        sent = {} if body is None else {"Content-Type": "application/json"}
        content = body.encode() if isinstance(body, str) else body
        try:
            connection.request(method, path, content, sent | dict(headers or {}))
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, found, reply.read())
        finally:
            connection.close()

    @contextmanager
    def store(self) -> Iterator[ServingStore]:
        """The database itself."""
        with open_serving_store(self.database) as store:
            yield store

    def key(self, scope: Scope, name: str) -> dict[str, str]:
        """Headers with a new key."""
        secret, key = new_key(name, scope)
        with self.store() as store:
            store.add_key(key)
        return {"Authorization": f"Bearer {secret}"}

    def most_memory(self) -> int:
        """The most bytes that any process of the service ever had in memory."""
        process = psutil.Process(self.server.process.pid)
        family = [process, *process.children(recursive=True)]
        return max(_peak_bytes(one.pid) for one in family)


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the system does not tell the memory of process {pid}")


@contextmanager
def schema_in(server: str) -> Iterator[str]:
    """The URL of a new database in a PostgreSQL server, dropped afterwards."""
    url = make_url(server).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    name = f"feinsum_{uuid.uuid4().hex}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    try:
        own = url.update_query_dict({"options": f"-csearch_path={name}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
        engine.dispose()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where an empty database is, on each kind in turn."""
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("hostile") / "facts.sqlite")
        return
    with schema_in(request.getfixturevalue("postgresql")) as url:
        yield url


@pytest.fixture(scope="module")
def live(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service that runs with its defaults, but for the rate and the freshness."""
    folder = tmp_path_factory.mktemp("logs")
    settings = {"rate_per_s": 0, "freshness_s": 0, "body_s": 2}
    with running(database, folder, **settings) as server:
        yield Live(server, database)
