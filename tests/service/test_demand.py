"""Misses are counted, with the text that they are tuned by, until there is a fact."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from feinsum.db.sql.tables import DemandCallerRow, DemandRow
from feinsum.records import to_json
from feinsum.service import demand as demand_module
from tests.db.factories import WORKLOAD, make_device, make_record, text_of
from tests.service.conftest import key_for, send, store_of

KEY, TEXT = WORKLOAD, text_of(WORKLOAD)
BEST = f"/v1/best/{KEY}"


@pytest.fixture
def location(any_location):
    return any_location


def demands(client):
    found = client.get("/v1/demand").json()["demands"]
    return [(d["workload"], d["device"], d["count"], d["workload_text"]) for d in found]


def test_a_miss_counts_a_demand(client):
    """Each miss counts one, by workload and device, the most wanted first."""
    for _ in range(3):
        client.get(BEST, params={"device": "gpu"})
    client.get(BEST)
    assert demands(client) == [(KEY, "gpu", 3, None), (KEY, "", 1, None)]
    client.get(BEST, params={"device": "gpu"})
    assert demands(client)[0] == (KEY, "gpu", 4, None)


def test_the_text_of_a_miss_is_kept_if_it_is_the_workloads(client):
    """A text is kept once it has the digest of the key; another never is."""
    client.get(BEST, params={"text": "another"})
    assert demands(client) == [(KEY, "", 1, None)]
    asked = [{"key": KEY, "text": TEXT}, "none-1"]
    client.post("/v1/best:batch", json={"workloads": asked})
    client.get(BEST, params={"text": "another"})
    assert demands(client)[0] == (KEY, "", 3, TEXT)


def test_a_hit_is_no_demand(client):
    """What is answered is not in demand, and not any more once it is recorded."""
    here = make_device()
    client.get(BEST, params={"device": here.id})
    client.get(BEST, params={"device": "elsewhere"})
    assert len(demands(client)) == 2
    send(client, to_json(make_record(workload=KEY)))
    client.get(BEST, params={"device": here.id})
    assert demands(client) == [(KEY, "elsewhere", 1, None)]


def test_demand_has_a_limit(serve):
    """Beyond a number those go that fewest asked for, of these the oldest."""
    client = serve(max_demands=2)
    for key in ("k-1", "k-2", "k-3"):
        client.get(f"/v1/best/{key}")
        assert len(demands(client)) <= 2
    assert [d[0] for d in demands(client)] == ["k-2", "k-3"]


def test_each_caller_has_a_limit(serve):
    """Beyond it new demands of a caller are not kept; those of others are."""
    client = serve(max_demands_of_caller=2)
    ann = key_for(client, "read", "ann")
    for key in ("k-1", "k-2", "k-3", "k-1"):
        client.get(f"/v1/best/{key}")
        client.get("/v1/demand")
    client.get("/v1/best/k-3", headers=ann)
    assert [(d[0], d[2]) for d in demands(client)] == [
        ("k-1", 2),
        ("k-2", 1),
        ("k-3", 1),
    ]


def test_what_many_want_comes_first(client):
    """One caller who asks often is no more than one caller."""
    for name in ("ann", "bob"):
        headers = key_for(client, "read", name)
        client.get("/v1/best/k-1", headers=headers)
    for _ in range(9):
        client.get("/v1/best/k-2")
    found = client.get("/v1/demand").json()["demands"]
    assert [(d["workload"], d["n_callers"], d["count"]) for d in found] == [
        ("k-1", 2, 2),
        ("k-2", 1, 9),
    ]


def test_what_is_not_wanted_is_not_counted(client):
    """Nor what is refused, nor a question for facts that may serve for another
    workload.
    """
    for query in ("k-1?policy=nonsense", "k-1?counts=maybe", "k-1?counts=false"):
        client.get(f"/v1/best/{query}")
    client.get("/v1/nowhere")
    client.post("/v1/best:batch?counts=false", json={"workloads": ["k-2", "k-3"]})
    assert demands(client) == []
    assert client.get("/v1/best/k-1?counts=maybe").status_code == 422


def test_demand_expires(client):
    """What nobody asks for again is forgotten, and soon if nobody sent its text."""
    asked = [{"key": KEY, "text": TEXT}, "junk-1"]
    client.post("/v1/best:batch", json={"workloads": asked})
    assert len(demands(client)) == 2
    store = store_of(client)

    def age(days):
        with store.engine.begin() as connection:
            seen = datetime.now(UTC) - timedelta(days=days)
            connection.execute(update(DemandRow).values(last_seen=seen))
        client.get("/v1/best/k-now")
        return {d[0] for d in demands(client)}

    assert age(2) == {KEY, "k-now"}
    assert age(91) == {"k-now"}
    with store.engine.connect() as connection:
        rows = connection.execute(select(DemandCallerRow.workload_key)).scalars()
        assert set(rows) == {"k-now"}


def test_demand_is_cleared(client):
    """An operator forgets the demands for a workload, or all."""
    for key in ("k-1", "k-2", "k-3"):
        client.get(f"/v1/best/{key}")
    assert len(demands(client)) == 3
    store = store_of(client)
    assert store.clear_demands("k-2") == 1
    assert [d[0] for d in demands(client)] == ["k-1", "k-3"]
    assert store.clear_demands() == 2
    assert demands(client) == []
    client.get("/v1/best/k-1")
    assert demands(client) == [("k-1", "", 1, None)]


def test_waiting_misses_have_a_limit(client, monkeypatch):
    """Between two writes no more different misses are counted than there is room."""
    monkeypatch.setattr(demand_module, "MAX_BYTES", 2500)
    for key in ("k-1", "k-2", "k-3", "k-1"):
        client.get(f"/v1/best/{key}")
    assert {(d[0], d[2]) for d in demands(client)} == {("k-1", 2), ("k-2", 1)}


def test_many_services_count_together(serve):
    """Two services over one database add to one count; one that ends loses no miss."""
    clients = [serve(), serve()]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda c: [c.get(BEST) for _ in range(10)], clients))
    clients[0].__exit__(None, None, None)
    clients[1].get("/v1/demand")
    assert demands(clients[1]) == [(KEY, "", 20, None)]
