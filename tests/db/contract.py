"""What every store of tuning records must fulfil: one law per test.

A subclass gives the fixture ``make_store``: a function that makes a new and
empty store, released after the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError
from feinsum.records import (
    LookUp,
    MatchLevel,
    Retraction,
    Store,
    TuningRecord,
    find_best_match,
)
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_peaks,
    make_plan,
    make_plan_record,
    make_processor,
    make_record,
    make_trial,
    make_workload,
    tuning_records,
)
from tests.strategies import counts

MakeStore: TypeAlias = Callable[[], Store]

few_records = st.lists(tuning_records(), max_size=6)
stores_settings = settings(
    counts(5, 100),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # every example makes new stores
        HealthCheck.differing_executors,  # one law, many subclasses
    ],
)


@contextmanager
def released(make_store: MakeStore) -> Iterator[MakeStore]:
    """Makes stores that are closed at the end of the block."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(make_store()))


def filled(make_store: MakeStore, records: Iterable[TuningRecord]) -> Store:
    """A new store with these records."""
    store = make_store()
    for record in records:
        store.add(record)
    return store


def content(store: Store) -> tuple[TuningRecord, ...]:
    """All that a store holds."""
    return tuple(store.records())


class FactStoreContract:
    """The laws of a :class:`feinsum.records.Store`."""

    @pytest.fixture
    def make_store(self):
        raise NotImplementedError("a contract is run by its subclasses")

    @pytest.fixture
    def store(self, make_store):
        return make_store()

    def test_new_store_is_empty_and_writable(self, store):
        """It can be opened by whoever takes a database, and is not read-only."""
        assert isinstance(store, Store)
        store.check_writable()
        assert len(store) == 0
        assert content(store) == ()
        assert store.query(WORKLOAD) == ()

    def test_add_is_idempotent(self, store):
        """Adding a fact twice is adding it once; only the first time it is new."""
        assert store.add(make_record()) is True
        assert store.add(make_record()) is False
        assert content(store) == (make_record(),)
        assert len(store) == 1

    @stores_settings
    @given(record=tuning_records())
    def test_get_inverts_add(self, make_store, record):
        """A record that was added is got back equal, by its id."""
        with released(make_store) as make:
            found = filled(make, [record]).get(record.id)
        assert found == record
        assert found.id == record.id

    def test_unknown_id_is_refused(self, store):
        """An id that was never added raises RecordNotFoundError, naming it."""
        store.add(make_record())
        with pytest.raises(RecordNotFoundError, match="no-such-id"):
            store.get("no-such-id")

    @stores_settings
    @given(records=few_records)
    def test_query_is_a_filter(self, make_store, records):
        """A query gives exactly the workload's records, filtered by device."""
        distinct = sorted({r.id: r for r in records}.values(), key=lambda r: r.id)
        with released(make_store) as make:
            store = filled(make, records)
            for n in range(3):
                key = make_workload(n)
                expected = tuple(r for r in distinct if r.workload == key)
                assert store.query(key) == expected
                for device_id in (make_device(0).id, make_device(1).id, "unknown"):
                    assert store.query(key, device_id=device_id) == tuple(
                        r for r in expected if r.environment.device.id == device_id
                    )

    def test_documents_match_all_filters(self, store):
        """Documents of a kind come ordered by id: those that match every filter."""
        devices = [make_environment(make_device(n)) for n in range(2)]
        records = [
            make_record(n, workload=make_workload(n % 3), environment=devices[n % 2])
            for n in range(12)
        ]
        assert store.add_all(records) == 12

        def ids(**filters: Any) -> list[str]:
            return [document.id for document in store.documents("record", **filters)]

        assert ids() == list(store.ids("record")) == sorted(r.id for r in records)
        first = records[0]
        filters = {"workload": first.workload, "device_id": first.environment.device.id}
        matching = sorted(records[n].id for n in (0, 6))
        assert ids(**filters) == matching
        assert ids(among=[first.id, records[1].id, "0" * 64], **filters) == [first.id]
        assert ids(among=[]) == ids(workload="none") == ids(device_id="none") == []
        assert list(store.documents("peaks", workload=first.workload)) == []

    def test_lacking_ids_are_not_stored(self, store):
        """Of some ids, those are lacking that are not stored."""
        store.add(make_record(0))
        ids = {make_record(n).id for n in range(2)}
        assert store.find_lacking("record", ids) == {make_record(1).id}
        assert store.find_lacking("record", set()) == set()

    def test_processors_do_not_hide_facts(self, store):
        """Where the processor alone is another, or not known, facts are candidates,
        and fit as those of the same architecture.
        """
        known = (None, make_processor("zen4"), make_processor("zen5"))
        devices = [make_device(processor=one) for one in known]
        facts = [make_record(environment=make_environment(one)) for one in devices]
        for fact in facts[:2]:
            store.add(fact)
        here = facts[2].environment
        look_up = LookUp({WORKLOAD: ""}, here.device, "default")
        found = store.candidates(look_up)[WORKLOAD]
        assert {one.id for one in found} == {one.id for one in facts[:2]}
        assert find_best_match(found, here).level == MatchLevel.SAME_ARCHITECTURE
        assert store.query(WORKLOAD, device_id=here.device.id) == ()
        assert find_best_match(found, here, "strict").level == MatchLevel.MISS
        store.add(facts[2])
        found = store.candidates(look_up)[WORKLOAD]
        assert find_best_match(found, here, "strict").record == facts[2]

    def test_like_is_a_filter(self, store):
        """Records whose text begins so, up to the bar and to the letter, by id."""
        texts = ["a b -> a | A0", "a b -> a | A1", "a b -> a b | A0", "b a -> b | A0"]
        for n, text in enumerate(texts):
            key = make_workload(n)
            store.add(make_record(n, workload=key, workload_text=text))
        wanted = [r for r in store.records() if r.workload_text in texts[:2]]
        assert len(wanted) == 2
        assert list(store.like("a b -> a")) == wanted
        assert [*store.like("a b"), *store.like("A b -> a")] == []

    def test_adding_while_iterating(self, store):
        """A store may be added to while its records are read."""
        store.add(make_record(0))
        for record in store.records():
            store.add(record)
            assert store.add(make_peaks())
        assert len(store) == 1

    def test_latest_peaks_win(self, store):
        """The limits of a device are the latest ones, added before or after others; new
        only the first time.
        """
        peaks = [make_peaks(measured_at=f"2025-01-0{n + 1}T00:00:00") for n in range(3)]
        store.add(make_peaks(make_device(1), measured_at="2026-01-01T00:00:00"))
        assert store.peaks(make_device().id) is None
        for n, latest in ((1, 1), (2, 2), (0, 2)):
            assert store.add(peaks[n]) is True
            assert store.add(peaks[n]) is False
            assert store.peaks(make_device().id) == peaks[latest]


class TrialsContract:
    """The laws of a :class:`feinsum.records.Store` that keeps trials."""

    def test_a_trial_reads_back(self, store):
        """What is kept is what was given, whatever a compiler said; it is new once."""
        for n, message in enumerate(("", "é\n'quoted' \x00", "x" * 2000)):
            key = make_workload(n)
            trial = make_trial(workload=key, status="build-failed", message=message)
            assert store.add(trial) is True
            assert store.add(trial) is False
            assert store.trials(key) == (trial,)

    def test_trials_are_of_one_workload_the_oldest_first(self, store):
        """In the order of their times, in whatever order they were added."""
        known = [make_trial(n, second=n) for n in range(4)]
        store.add(make_trial(workload=WorkloadKey("another")))
        for n in (2, 0, 3, 1):
            store.add(known[n])
        assert store.trials(WORKLOAD) == tuple(known)

    def test_what_was_tried_is_known(self, store):
        """The workloads that have trials, each once, in order; facts do not count."""
        assert store.tried() == ()
        store.add(make_record(workload=WorkloadKey("a fact")))
        for n, key in enumerate(("b", "a", "b")):
            store.add(make_trial(n, workload=WorkloadKey(key)))
        assert store.tried() == ("a", "b")

    def test_no_look_up_sees_a_trial(self, store):
        """Trials are no records: not by query, by id, in all, nor in their number."""
        trial = make_trial()
        store.add(trial)
        store.add(make_record(workload=WorkloadKey("another")))
        assert store.query(WORKLOAD) == ()
        assert store.query(WORKLOAD, device_id=make_device().id) == ()
        assert [r.workload for r in store.records()] == ["another"]
        assert len(store) == 1
        assert store.trials(WorkloadKey("another")) == ()
        with pytest.raises(RecordNotFoundError):
            store.get(trial.id)


class PlansContract:
    """The laws of a :class:`feinsum.records.Store` that keeps plans."""

    def test_adding_a_plan_is_idempotent(self, store):
        """What a plan moved and took is new only the first time, and reads back."""
        one, other = make_plan_record(0), make_plan_record(1)
        for record in (one, other):
            assert store.add(record) is True
            assert store.add(record) is False
        found = store.plans(one.workload)
        assert found == tuple(sorted((one, other), key=lambda record: record.id))
        assert [record.median_s for record in found if record == other] == [2e-3]

    def test_plans_are_of_one_workload(self, store):
        """Plans of another einsum are in no answer; nor are facts and trials."""
        one, other = make_plan_record(), make_plan_record(plan=make_plan(5))
        assert one.workload != other.workload
        store.add(make_record())
        store.add(one)
        store.add(other)
        assert store.plans(one.workload) == (one,)
        assert store.plans("another") == ()
        assert len(store) == 1

    def test_a_retracted_plan_is_in_no_answer(self, store):
        """Before or after it comes."""
        gone, kept = make_plan_record(0), make_plan_record(1)
        store.add(Retraction(gone.id, "a wrong clock", "ann"))
        store.add(gone)
        store.add(kept)
        assert store.plans(gone.workload) == (kept,)
        assert [*store.documents("plan")] == [kept]
