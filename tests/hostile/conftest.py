"""Live servers with honest facts, and keys of an attacker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from feinsum.db.server.serving import open_serving_store
from tests.db.conftest import make_postgresql_store
from tests.hostile.live import schema_in
from tests.hostile.world import HONEST, NAMES, Attacker, World, new_keys
from tests.remote.live import served_here

__all__ = ["make_postgresql_store"]


@contextmanager
def world_of(database: str, folder: Path) -> Iterator[World]:
    """A server over a database with honest facts."""
    secrets, keys = new_keys(NAMES)
    with open_serving_store(database) as store:
        store.add_all(HONEST)
        for key in keys:
            store.add_key(key)
    with served_here(database, folder, anonymous_record=False) as server:
        yield World(Attacker(server, tuple(secrets)), database)


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def lasting_world(request, tmp_path_factory):
    """The same on SQLite and on PostgreSQL in turn, for many attacks."""
    folder = tmp_path_factory.mktemp("hostile")
    with ExitStack() as stack:
        database = str(folder / "facts.sqlite")
        if request.param == "postgresql":
            server = request.getfixturevalue("postgresql")
            database = stack.enter_context(schema_in(server))
        yield stack.enter_context(world_of(database, folder))


@pytest.fixture
def world(lasting_world):
    """One where no trace of an attack is left to the next test."""
    yield lasting_world
    lasting_world.retract_attackers()


@pytest.fixture(scope="session")
def lasting(tmp_path_factory):
    """One on SQLite for many attacks."""
    folder = tmp_path_factory.mktemp("hostile")
    with world_of(str(folder / "facts.sqlite"), folder) as found:
        yield found
