"""What a database says of its facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from feinsum.canonical import WorkloadKey
from feinsum.db.server.demand import DemandLimits, DemandRequest
from feinsum.db.server.serving import open_serving_store
from feinsum.db.sql.statistics import DriverCount, TransformCount, WorkloadCount
from feinsum.records import Demand, Miss, Retraction
from tests.db.factories import (
    make_device,
    make_environment,
    make_processor,
    make_record,
    make_trial,
    text_of,
)


def test_facts_are_counted(make_sql_store, make_postgresql_store):
    """By device and driver, and by transform; those with most facts come first."""
    other = make_device(1, make_processor("zen5"))
    elsewhere = make_environment(other, "7.0")
    later = replace(
        make_record(9, environment=elsewhere, workload=WorkloadKey("another")),
        recorded_at="2026-02-03T04:05:06+02:00",
    )
    for make in (make_sql_store, make_postgresql_store):
        store = make()
        assert store.stats().newest is None
        store.add_all([make_record(0), make_record(1), later, make_trial()])
        found = store.stats()
        first = datetime(2025, 1, 31, 12, tzinfo=UTC)
        last = datetime(2026, 2, 3, 2, 5, 6, tzinfo=UTC)
        platform = make_device().platform
        assert found.drivers == (
            DriverCount(
                make_device().id, "cpu-0", platform, None, "6.0", 1, 2, first, first
            ),
            DriverCount(other.id, "cpu-1", platform, "zen5", "7.0", 1, 1, last, last),
        )
        (transform,) = found.transforms
        assert transform == TransformCount(
            "rowwise", 1, 2, 3, transform.highest_speedup
        )
        assert transform.highest_speedup == max(
            r.measurement.speedup for r in store.records()
        )
        assert (found.oldest, found.newest) == (first, last)
        assert list(store.workloads()) == ["another", make_record().workload]


def test_workloads_are_counted_by_facts_and_trials(
    make_sql_store, make_postgresql_store
):
    """Retracted facts are not counted; a workload may have trials alone."""
    other = WorkloadKey("another")
    for make in (make_sql_store, make_postgresql_store):
        store = make()
        assert store.listed_workloads() == ()
        store.add_all([make_record(0), make_record(1), make_trial()])
        store.add(make_trial(1, workload=other))
        first, second = store.listed_workloads()
        speedup = max(r.measurement.speedup for r in store.records())
        assert first == WorkloadCount(
            make_record().workload, make_record().workload_text, 2, 1, 1, speedup
        )
        assert second == WorkloadCount(other, text_of(other), 0, 0, 1, None)
        store.add(Retraction(make_record(0).id, "a wrong clock", "ann"))
        assert store.listed_workloads()[0].n_records == 1


def test_pages_of_demands_lead_through_all(any_database):
    """Each comes once, those of the most callers first, then those wanted most."""
    counts = {
        DemandRequest(Miss(WorkloadKey(f"k-{n % 3}"), f"d-{n % 2}"), f"c-{n}"): 1
        + n % 5
        for n in range(15)
    }
    with open_serving_store(any_database) as store:
        store.add_misses(counts, {}, DemandLimits())
        every, pages = store.demands(), list[Demand]()
        while page := store.demands(pages[-1].sort_key if pages else None, 2):
            pages += page
    assert pages == [*every]
    assert len(every) == 6
    order = [(-d.n_callers, -d.count, d.workload, d.device) for d in every]
    assert order == sorted(order)


def test_devices_are_found_by_name_in_order(any_database):
    """Whatever their ids are; devices without facts are in no list."""
    with open_serving_store(any_database) as store:
        for number in range(5):
            store.add(make_record(environment=make_environment(make_device(number))))
        names = [listed.device.name for listed in store.devices_named("CPU", 9)]
    assert names == [f"cpu-{number}" for number in range(5)]
