"""Every store keeps the same contract."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from feinsum.db import LayeredStore
from feinsum.records import Document, InMemoryStore, Store
from tests.db.contract import (
    FactStoreContract,
    MakeStore,
    PlansContract,
    TrialsContract,
)


class Scattered(LayeredStore):
    """Everything lies in a layer that its id chooses, or in the first two.

    It is new if it is new in all of them.
    """

    def add_all(self, documents: Iterable[Document]) -> int:
        return sum(self._add(document) for document in documents)

    def _add(self, document: Document) -> bool:
        stores = [layer for layer in self.layers if isinstance(layer, Store)]
        number = int(document.id, 16) % 4
        chosen = [stores[number]] if number < 3 else stores[:2]
        return min(store.add(document) for store in chosen)


STORES = {
    "memory": InMemoryStore,
    "layers": lambda: LayeredStore([InMemoryStore(), InMemoryStore()]),
    "several layers": lambda: Scattered([InMemoryStore() for _ in range(3)]),
}


class TestStores(FactStoreContract, TrialsContract, PlansContract):
    @pytest.fixture(params=[*STORES, "make_sql_store", "make_postgresql_store"])
    def make_store(self, request):
        if request.param in STORES:
            return STORES[request.param]
        make: MakeStore = request.getfixturevalue(request.param)
        return make
