"""A service with facts that pages can show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from feinsum.db.server.serving import ServingStore, open_serving_store
from feinsum.distributed import plan_program
from tests.db.factories import (
    make_device,
    make_environment,
    make_fleet,
    make_plan_record,
)
from tests.distributed.test_facts import softmax
from tests.service.pages.facts import MATMUL, make_fact, make_limits

PROGRAM = plan_program(softmax(), processes=2)

Fill = Callable[[ServingStore], None]


def fill(store: ServingStore) -> None:
    """Two workloads; the first one on two devices, and on one with three drivers."""
    near, far = make_device(0), make_device(1)
    old, new = make_environment(near, "6.0"), make_environment(near, "7.0")
    store.add_all(
        [
            make_fact(1e-3, environment=new, day=3),
            make_fact(2e-3, environment=old, day=2),
            make_fact(5e-3, block=8, environment=new),
            make_fact(2e-2, name="generic", environment=new),
            make_fact(4e-3, environment=make_environment(far)),
            make_fact(2e-3, workload=MATMUL, environment=new),
            make_limits(near),
            make_plan_record(fleet=make_fleet()),
            make_plan_record(plan=PROGRAM, fleet=make_fleet(engine="local")),
        ]
    )


@pytest.fixture
def filled(location: str) -> None:
    """The database has facts."""
    with open_serving_store(location) as store:
        fill(store)


@pytest.fixture
def reader(filled: None, serve: Callable[..., TestClient]) -> TestClient:
    """A client of a service with facts."""
    return serve()
