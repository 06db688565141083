"""Live services for attacks: real processes, over SQLite and over PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from feinsum.db.server.api_keys import Scope
from feinsum.db.server.serving import ServingStore, open_serving_store
from feinsum.service import make_key
from tests.db.conftest import schema_in
from tests.service.running import Answer, Server, running

__all__ = ["Answer", "Live", "database", "live", "schema_in"]


@dataclass(frozen=True)
class Live:
    """A service and its database."""

    server: Server
    database: str

    def ask(self, *request: Any, **options: Any) -> Answer:
        """Send a request; see :meth:`Server.ask`."""
        return self.server.ask(*request, **options)

    @contextmanager
    def store(self) -> Iterator[ServingStore]:
        """The database itself."""
        with open_serving_store(self.database) as store:
            yield store

    def key(self, scope: Scope, name: str) -> dict[str, str]:
        """Headers with a new key."""
        secret, key = make_key(name, scope)
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


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request, tmp_path_factory):
    """Where an empty database is, on each kind in turn."""
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("hostile") / "facts.sqlite")
        return
    with schema_in(request.getfixturevalue("postgresql")) as url:
        yield url


@pytest.fixture(scope="module")
def live(database, tmp_path_factory):
    """A service that runs with its defaults, but for the rate and the freshness."""
    folder = tmp_path_factory.mktemp("logs")
    settings = {"rate_per_s": 0, "freshness_s": 0, "body_s": 2}
    with running(database, folder, **settings) as server:
        yield Live(server, database)
