"""Who asks for much takes a bounded part of a worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from feinsum.db.server.serving import CostlyResults
from feinsum.records import to_json
from feinsum.service.state import MAX_LISTINGS
from tests.db.factories import make_record
from tests.service.conftest import Clock, send, store_of


def test_a_costly_read_takes_a_twentieth_of_a_processor():
    """It is done again after 20 times what it took; one that takes little always is."""
    cpu, clock = Clock(), Clock()
    recent = CostlyResults(cpu, clock)
    n_reads = 0

    def read(cost_s):
        nonlocal n_reads
        n_reads += 1
        cpu.now_s += cost_s
        return n_reads

    assert [recent("totals", lambda: read(0.3)) for _ in range(5)] == [1] * 5
    assert recent("others", lambda: read(0.3)) == 2
    clock.now_s = 5.9
    assert recent("totals", lambda: read(0.3)) == 1
    clock.now_s = 6.1
    assert recent("totals", lambda: read(0.001)) == 3
    assert recent("totals", lambda: read(0.001)) == 4


def test_totals_of_a_small_database_are_those_of_now(client):
    """What is cheap to count is counted again."""
    for n in range(3):
        send(client, to_json(make_record(n)))
        assert client.get("/v1/devices").json()["devices"][0]["n_facts"] == n + 1
        assert store_of(client).overview().n_facts == n + 1


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/facts", "page_of_facts"), ("/v1/plans", "page_of_plans")]
)
def test_few_long_lists_are_read_at_once(client, monkeypatch, path, method):
    """However many ask for them; all are answered."""
    lock, reading, most = threading.Lock(), 0, 0
    store = store_of(client)
    read = getattr(store, method)

    def counted(*args, **options):
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
        try:
            threading.Event().wait(0.02)
            return read(*args, **options)
        finally:
            with lock:
                reading -= 1

    monkeypatch.setattr(store, method, counted)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: client.get(f"{path}?limit=1000"), range(16)))
    assert {answer.status_code for answer in found} == {200}
    assert most <= MAX_LISTINGS
