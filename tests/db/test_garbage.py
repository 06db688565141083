"""Garbage: what no look-up can prefer goes, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import WorkloadKey
from feinsum.db import open_store
from feinsum.db.exchange.files import read_file
from feinsum.db.exchange.garbage import collect_garbage, find_garbage
from feinsum.db.exchange.merging import compare, import_entries, merge
from feinsum.db.exchange.rekeying import rekey_record
from feinsum.errors import StoreUnavailableError
from feinsum.records import InMemoryStore, Policy, TuningRecord, find_best_match
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_peaks,
    make_processor,
    make_record,
    make_trial,
)
from tests.strategies import counts

ENVIRONMENTS = [
    make_environment(device, driver)
    for device in (
        make_device(0),
        make_device(0, make_processor("zen4")),
        make_device(1, make_processor("zen5")),
    )
    for driver in ("6.0", "7.0")
]
TRANSFORMS = ("rowwise", "transposed")
times = st.sampled_from([0.2, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0])


@st.composite
def facts(draw: st.DrawFn) -> TuningRecord:
    """Facts of a workload whose intervals overlap often, some slower than nothing."""
    known = make_record(draw(st.integers(0, 3)))
    samples = tuple(draw(st.lists(times, min_size=1, max_size=4)))
    measured = replace(known.measurement, samples_s=samples, baseline_s=(1.0,))
    return replace(
        known,
        environment=draw(st.sampled_from(ENVIRONMENTS)),
        spec=replace(known.spec, name=draw(st.sampled_from(TRANSFORMS))),
        measurement=measured,
    )


def left_of(records: Sequence[TuningRecord], n_next: int) -> list[TuningRecord]:
    gone = {entry.id for entry in find_garbage([records], n_next).surplus}
    return [record for record in records if record.id not in gone]


@counts(60, 5000)
@given(st.lists(facts(), max_size=20, unique_by=lambda record: record.id))
def test_no_look_up_has_another_answer(records):
    """Wherever it is asked, under any policy, with any transforms installed."""
    left = left_of(records, 0)
    for known in ([TRANSFORMS[0]], [TRANSFORMS[1]], TRANSFORMS):
        before, after = (
            [record for record in found if record.spec.name in known]
            for found in (records, left)
        )
        elsewhere = make_environment(make_device(7, make_processor("zen5")))
        for environment in (*ENVIRONMENTS, elsewhere):
            for policy in get_args(Policy):
                one = find_best_match(before, environment, policy)
                two = find_best_match(after, environment, policy)
                assert (one.level, one.record) == (two.level, two.record)


@given(
    st.lists(facts(), max_size=15, unique_by=lambda record: record.id),
    st.integers(0, 3),
)
def test_collecting_twice_is_collecting_once(records, n_next):
    """What is left has nothing more that can go."""
    left = left_of(records, n_next)
    assert left_of(left, n_next) == left
    assert set(map(id, left_of(records, n_next + 1))) >= set(map(id, left))


def distinct(n: int, **options: object) -> list[TuningRecord]:
    """Facts of one group whose intervals do not overlap, the fastest first."""
    records = [make_record(k) for k in range(n)]
    return [
        replace(
            record,
            measurement=replace(
                record.measurement,
                samples_s=(2.0 ** (k - 25),) * 3,
                baseline_s=(2.0 ** (n - 25),) * 3,
            ),
            **options,
        )
        for k, record in enumerate(records)
    ]


def test_the_best_and_the_next_ones_are_kept():
    """The slowest go; each says its place in its group and why."""
    records = distinct(6)
    plan = find_garbage([records[::-1]], 2)
    assert [entry.id for entry in plan.surplus] == [r.id for r in records[3:]]
    assert plan.n_records == 6
    first = plan.surplus[0]
    assert (first.place, first.n_group, first.recipe) == (4, 6, str(records[3].spec))
    assert first.reason.startswith("number 4 of 6: 8 times as fast")
    assert find_garbage([records], 5).surplus == ()


def test_facts_that_warn_are_kept():
    """What is slower than the plain kernel says where a recipe is not to be taken."""
    records = [
        replace(r, measurement=replace(r.measurement, baseline_s=(2.0**-26,)))
        for r in distinct(3)
    ]
    assert left_of(records, 0) == records


def test_what_comes_after_a_recipe_that_is_slow_elsewhere_is_kept():
    """Where the best recipe of a device is slow, the next one of it is taken."""
    fast, slower = distinct(2)
    slow_here = replace(
        fast,
        environment=ENVIRONMENTS[-1],
        measurement=replace(fast.measurement, baseline_s=fast.measurement.samples_s),
    )
    records = [fast, slower, slow_here]
    assert find_best_match(records, ENVIRONMENTS[-1], "loose").record == slower
    assert left_of(records, 0) == records


def test_groups_do_not_compete():
    """Another device, driver, size, transform or spelling is another group."""
    fast, slow = distinct(2)
    others = [
        replace(slow, environment=environment) for environment in ENVIRONMENTS[1:]
    ]
    others += [
        replace(slow, measurement=replace(slow.measurement, sizes={"n": 7})),
        replace(slow, spec=replace(slow.spec, version=2)),
        replace(slow, spec=replace(slow.spec, name="other")),
        replace(slow, workload_text="spelled in another way"),
    ]
    assert left_of([fast, slow, *others], 0) == [fast, *others]


def test_what_a_kept_fact_was_rekeyed_from_is_kept():
    """Under its own key a slower one would go."""
    slow = distinct(2)[1]
    workload = WorkloadKey("of today")
    moved = rekey_record(slow, workload)
    assert find_garbage([distinct(2), [moved]], 0).surplus == ()
    assert [e.id for e in find_garbage([distinct(2)], 0).surplus] == [slow.id]


def test_what_goes_can_be_brought_back(tmp_path, make_sql_store, make_postgresql_store):
    """From the file of what was removed, and from the copy that was made before."""
    for make in (make_sql_store, make_postgresql_store):
        store, before = make(), InMemoryStore()
        store.add_all([*distinct(6), make_peaks(), make_trial()])
        merge(before, store)
        plan = find_garbage((store.query(key) for key in store.workloads()), 1)
        done = collect_garbage(store, plan, tmp_path)
        assert (done.n_removed, len(store)) == (4, 2)
        assert len(store.trials(WORKLOAD)) == 1
        assert store.peaks(make_device().id) == make_peaks()
        (records, *others) = compare(before, store)
        assert set(records.only_a) == {entry.id for entry in plan.surplus}
        assert all(difference.is_empty for difference in others)
        if store.path is not None:
            with open_store(done.backup) as copy:
                assert all(found.is_empty for found in compare(before, copy))
        else:
            copied = InMemoryStore()
            import_entries(copied, read_file(done.backup), pytest.fail)
            assert all(found.is_empty for found in compare(before, copied))
        import_entries(store, read_file(done.removed), pytest.fail)
        assert all(difference.is_empty for difference in compare(before, store))


def test_nothing_goes_that_cannot_be_written_down(make_sql_store, tmp_path):
    """Without a place for the files nothing is removed."""
    store = make_sql_store()
    store.add_all(distinct(6))
    plan = find_garbage([store.query(WORKLOAD)], 0)
    with pytest.raises(StoreUnavailableError, match="cannot write a backup"):
        collect_garbage(store, plan, tmp_path / "no such folder")
    assert len(store) == 6
