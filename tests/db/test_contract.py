"""Every store keeps the same contract."""

from __future__ import annotations

import pytest

from feinsum.db import LayeredStore
from feinsum.records import (
    DevicePeaks,
    FactStore,
    InMemoryStore,
    PlanRecord,
    Trial,
    TuningRecord,
)
from tests.db.contract import (
    FactStoreContract,
    MakeStore,
    PlansContract,
    TrialsContract,
)


class TestInMemoryStore(FactStoreContract, TrialsContract, PlansContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return InMemoryStore


class TestSqliteStore(FactStoreContract, TrialsContract, PlansContract):
    @pytest.fixture
    def make_store(self, make_sql_store: MakeStore) -> MakeStore:
        return make_sql_store


class TestPostgresqlStore(FactStoreContract, TrialsContract, PlansContract):
    @pytest.fixture
    def make_store(self, make_postgresql_store: MakeStore) -> MakeStore:
        return make_postgresql_store


class Scattered(LayeredStore):
    """Everything lies in a layer that its id chooses, or in the first two.

    It is new if it is new in all of them.
    """

    @property
    def _stores(self) -> list[FactStore]:
        return [layer for layer in self.layers if isinstance(layer, FactStore)]

    def _places(self, document_id: str) -> list[FactStore]:
        place = int(document_id, 16) % 4
        return [self._stores[place]] if place < 3 else self._stores[:2]

    def add(self, record: TuningRecord) -> bool:
        return min(place.add(record) for place in self._places(record.id))

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return min(place.add_peaks(peaks) for place in self._places(peaks.id))

    def add_trial(self, trial: Trial) -> bool:
        return min(place.add_trial(trial) for place in self._places(trial.id))

    def add_plan(self, record: PlanRecord) -> bool:
        return min(place.add_plan(record) for place in self._places(record.id))


class TestLayeredStore(FactStoreContract, TrialsContract, PlansContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda: LayeredStore([InMemoryStore(), InMemoryStore()])


class TestFactsInSeveralLayers(FactStoreContract, TrialsContract, PlansContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda: Scattered([InMemoryStore() for _ in range(3)])
