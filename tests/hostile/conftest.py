"""Live servers with honest facts, and keys of an attacker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from feinsum.db import SqlStore
from feinsum.db.server import open_serving_store
from tests.db.conftest import make_postgresql_store
from tests.hostile.world import HONEST, NAMES, Attacker, World, new_keys
from tests.service.running import running

__all__ = ["make_postgresql_store"]

MakeWorld: TypeAlias = Callable[[], World]


@contextmanager
def world_of(database: str, folder: Path) -> Iterator[World]:
    """A server over a database with honest facts."""
    secrets, keys = new_keys(NAMES)
    with open_serving_store(database) as store:
        store.add_all(HONEST)
        for key in keys:
            store.add_key(key)
    with running(database, folder, rate_per_s=0, freshness_s=0) as server:
        yield World(Attacker(server, tuple(secrets)), database)


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same on SQLite and on PostgreSQL in turn."""
    database = str(tmp_path / "facts.sqlite")
    if request.param == "postgresql":
        make: Callable[[], SqlStore] = request.getfixturevalue("make_postgresql_store")
        database = make().location.url.render_as_string(hide_password=False)
    with world_of(database, tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One on SQLite for many attacks."""
    folder = tmp_path_factory.mktemp("hostile")
    with world_of(str(folder / "facts.sqlite"), folder) as found:
        yield found
