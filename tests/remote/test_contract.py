"""The store behind a live service keeps the contract of every store."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from feinsum.db import HttpStore
from feinsum.db.remote.client import Client, ExchangeLimits
from feinsum.errors import ServiceError
from feinsum.records import Retraction
from tests.db.contract import FactStoreContract, PlansContract
from tests.db.factories import make_record
from tests.remote.live import leased_store, live_service

VERY_PATIENT = ExchangeLimits(600.0, 600.0, 2**26)


class LeasedStore(HttpStore):
    """Gives its database back when it is closed, so that few of them are needed."""

    leases: ExitStack

    def close(self) -> None:
        self.leases.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with live_service(tmp_path_factory.mktemp("service")) as running:
        yield running


class TestHttpStore(FactStoreContract, PlansContract):
    def test_like_is_a_filter(self, store):
        """A service is not read as a whole for them: it gives none."""
        store.add(make_record())
        assert list(store.like("a b, b -> a")) == []

    def test_a_retracted_plan_is_in_no_answer(self, store):
        """Who may record may not retract."""
        retraction = Retraction("0" * 64, "a wrong clock", "ann")
        with pytest.raises(ServiceError, match="admin"):
            store.add(retraction)

    @pytest.fixture
    def make_store(self, service):
        with ExitStack() as stack:

            def make() -> HttpStore:
                leases = stack.enter_context(ExitStack())
                plain = leases.enter_context(leased_store(service))
                store = LeasedStore(Client(plain.client.address, limits=VERY_PATIENT))
                store.leases = leases
                return store

            yield make
