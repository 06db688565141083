"""What pages read of a database: the same on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.canonical import WorkloadKey
from feinsum.db.server.pages import Having, ListedWorkload, Overview
from feinsum.db.server.serving import open_serving_store
from feinsum.records import RetractionQuery
from tests.db.factories import (
    make_device,
    make_environment,
    make_measurement,
    make_record,
)

OLD, NEW = make_environment(driver="6.0"), make_environment(driver="7.0")
OTHER = make_environment(make_device(1))

TEXTS = {
    "key-0": "i j, j -> i | A0[4,4]:<f8 A1[4]:<f8 | A0 A1",
    "key-1": "I j, j -> I | A0[N,4]:<f8 A1[4]:<f8 | A0 A1",
    "key-2": "i j, j -> i | A0[N,9]:<f8 A1[9]:<f8 | A0 A1",
    "key-3": "no einsum",
}


def fact(number, environment=OLD, key="key-0", day=1):
    record = make_record(number, workload=WorkloadKey(key), environment=environment)
    return replace(
        record, workload_text=TEXTS[key], recorded_at=f"2025-01-{day:02}T00:00:00+00:00"
    )


@pytest.fixture
def store(any_location):
    with open_serving_store(any_location) as opened:
        yield opened


def retract(store, name):
    query = RetractionQuery(recorders=(name,))
    store.retract(query, reason="wrong", is_dry_run=False)


def test_the_overview_counts_what_is_served(store):
    """Facts of everybody, unless they are retracted."""
    store.add_all([fact(0), fact(1, OTHER), fact(2, key="key-1")])
    store.receive(fact(3), "ann")
    store.receive(fact(4), "eve")
    assert store.overview() == Overview(n_facts=5, n_workloads=2, n_devices=2)
    retract(store, "eve")
    assert store.overview() == Overview(n_facts=4, n_workloads=2, n_devices=2)


def test_the_latest_facts_come_first(store):
    """By the time of recording; of one device if that is asked."""
    facts = [fact(0, day=2), fact(1, OTHER, day=3), fact(2, day=1)]
    store.add_all(facts)
    store.receive(fact(3, day=9), "eve")
    retract(store, "eve")
    assert store.latest_facts(9) == (facts[1], facts[0], facts[2])
    assert store.latest_facts(1, make_device(0).id) == (facts[0],)


def test_the_fastest_facts_come_first(store):
    """By speed-up; of one workload, the trusted ones first."""
    fast = replace(fact(5), measurement=fact(0).measurement)
    slow = replace(
        fact(6), measurement=replace(fact(0).measurement, baseline_s=(1e-4,))
    )
    store.add_all([slow, fast, fact(1, key="key-1")])
    store.receive(fact(3), "ann")
    assert store.fastest_facts("key-0", 9) == (fast, slow, fact(3))
    assert store.fastest_facts("key-0", 1) == (fast,)


def test_drivers_of_a_device_are_counted(store):
    """Each version with its workloads and facts, the one used last first."""
    store.add_all(
        [
            fact(0, day=1),
            fact(1, day=4),
            fact(2, NEW, day=9),
            fact(3, key="key-1", day=2),
            fact(4, OTHER),
        ]
    )
    found = store.drivers_of(make_device(0).id)
    assert [(d.driver_version, d.n_workloads, d.n_records) for d in found] == [
        ("7.0", 1, 1),
        ("6.0", 2, 3),
    ]
    assert [(d.oldest.day, d.newest.day) for d in found] == [(9, 9), (1, 4)]
    assert store.drivers_of("nothing") == ()


def test_one_workload_and_one_device_are_found(store):
    """By key and by id, with the number of their facts; None if there is none."""
    store.add_all([fact(0), fact(1)])
    text = TEXTS["key-0"]
    speedup = max(one.measurement.speedup for one in (fact(0), fact(1)))
    found = store.listed_workload("key-0")
    assert found == ListedWorkload("key-0", text, 2, speedup)
    assert store.listed_workload("key-1") is None
    listed = store.listed_device(make_device(0).id)
    assert (listed.device, listed.n_facts) == (make_device(0), 2)
    assert store.listed_device("nothing") is None
    assert store.listed_device("") is None


def test_workloads_are_found_by_their_notations(store):
    """A notation is what stands before the operands, to the letter."""
    store.add_all([fact(n, key=key) for n, key in enumerate(TEXTS)])
    first, second = "i j, j -> i", "I j, j -> I"
    assert {first, second} <= store.notations()
    assert len(store.notations()) == 3

    def keys(*notations, start=0, limit=9):
        read = store.ordered_workloads
        return [w.key for w in read(start, limit, "key", Having(), notations)]

    assert keys(first) == ["key-0", "key-2"]
    assert keys(second) == ["key-1"]
    assert keys(first, second, start=1, limit=1) == ["key-1"]
    assert keys() == []


def test_workloads_have_an_order_of_their_facts(store):
    """By speed-up, number or time of their facts; on a device, of its facts alone."""
    near, far = make_environment(make_device(0)), make_environment(make_device(1))
    fast = replace(make_measurement(), baseline_s=(1.0,))
    store.add_all(
        [
            fact(0, near, "key-0", day=1),
            fact(1, far, "key-0", day=9),
            fact(2, near, "key-1", day=5),
            fact(3, near, "key-1", day=4),
            fact(4, near, "key-1", day=3),
            replace(fact(5, far, "key-2", day=2), measurement=fast),
        ]
    )

    def keys(order, device=None, start=0, limit=9):
        having = Having(device=device.id if device else "")
        return [w.key for w in store.ordered_workloads(start, limit, order, having)]

    assert keys("speedup") == ["key-2", "key-0", "key-1"]
    assert keys("facts") == ["key-1", "key-0", "key-2"]
    assert keys("latest") == ["key-0", "key-1", "key-2"]
    assert keys("latest", make_device(0)) == ["key-1", "key-0"]
    assert keys("facts", start=1, limit=1) == ["key-0"]
    here = store.ordered_workloads(0, 9, "key", Having(device=make_device(0).id))
    assert [(w.key, w.n_facts) for w in here] == [("key-0", 1), ("key-1", 3)]
