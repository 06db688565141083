"""Every store keeps the same contract."""

from __future__ import annotations

import pytest

from feinsum.db import LayeredStore
from feinsum.records import InMemoryStore
from tests.db.contract import MakeStore, RecordStoreContract, TrialStoreContract


class TestInMemoryStore(RecordStoreContract, TrialStoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return InMemoryStore


class TestSqliteStore(RecordStoreContract, TrialStoreContract):
    @pytest.fixture
    def make_store(self, make_sql_store: MakeStore) -> MakeStore:
        return make_sql_store


class TestPostgresqlStore(RecordStoreContract, TrialStoreContract):
    @pytest.fixture
    def make_store(self, make_postgresql_store: MakeStore) -> MakeStore:
        return make_postgresql_store


class TestLayeredStore(RecordStoreContract, TrialStoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda: LayeredStore([InMemoryStore(), InMemoryStore()])
