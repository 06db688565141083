"""Rekeying: older facts are found again, and nothing is lost or made twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey, canonicalize
from feinsum.db import open_store
from feinsum.db.exchange import REKEYED_FROM, RekeyPlan, plan_rekey, rekey, rekeyed
from feinsum.db.sql.engine import engine_of, writer
from feinsum.db.sql.location import locate
from feinsum.db.sql.rows import insert_missing, rows_of
from feinsum.errors import StoreUnavailableError
from feinsum.ir import BatchedEinsum, array, batched_einsum, to_text
from feinsum.records import InMemoryStore, TuningRecord, to_json
from tests import strategies
from tests.db.contract import MakeStore, content, filled, merged
from tests.db.factories import make_device, make_peaks, make_record
from tests.db.rekeyable import (
    EINSUMS,
    OLDEST,
    fact,
    facts,
    older_facts,
    older_facts_of,
    rekey_all,
)
from tests.db.test_schema import OLD, OLD_SCHEMA
from tests.older import OLDER, older_key, respelled, under_older_key

PRESENT = f"{FORM_VERSION}-{CANONICALIZER}"
NEWER = "fe99-nauty3.1"


def unreadable_fact() -> TuningRecord:
    return make_record(workload=WorkloadKey(f"{OLDER}-unreadable"))


# one record


records = st.builds(
    replace,
    strategies.tuning_records,
    provenance=st.dictionaries(
        st.sampled_from(["note", REKEYED_FROM]), st.text(max_size=5), max_size=2
    ),
)
keys = st.sampled_from([WorkloadKey(f"{v}-0123") for v in (OLDER, PRESENT, NEWER)])


@given(record=records, first=keys, second=keys)
def test_the_way_does_not_matter(
    record: TuningRecord, first: WorkloadKey, second: WorkloadKey
) -> None:
    """By way of another key a record becomes what it becomes at once."""
    assert rekeyed(rekeyed(record, first), second) == rekeyed(record, second)


@given(record=records, key=keys)
def test_a_record_under_its_own_key_is_itself(
    record: TuningRecord, key: WorkloadKey
) -> None:
    """Also after it was under another key."""
    assert rekeyed(record, record.workload) == record
    assert rekeyed(rekeyed(record, key), record.workload).id == record.id


def test_the_fact_stays_as_it_is() -> None:
    """The key is new and the provenance names the origin; all else is unchanged."""
    old = replace(respelled(facts(0)[0]), provenance={"host": "here"})
    new = rekeyed(old, WorkloadKey(f"{NEWER}-0123"))
    assert new.provenance == {"host": "here", REKEYED_FROM: old.id}
    back = replace(new, workload=old.workload, provenance=old.provenance)
    assert back == old


# a store


def test_a_plan_writes_nothing(make_store: MakeStore) -> None:
    """Looking for what is missing leaves a store as it was."""
    store = filled(make_store, older_facts())
    before = content(store)
    assert len(plan_rekey(store).missing) == len(before)
    assert content(store) == before


def test_every_older_fact_is_found_under_the_key_of_today(
    make_store: MakeStore,
) -> None:
    """Be it spelled as today or not; its text and its recipe stay."""
    store = filled(make_store, older_facts())
    rekey_all(store)
    for e in EINSUMS:
        key = canonicalize(e).key
        expected = {rekeyed(record, key).id for record in older_facts_of(e)}
        assert {record.id for record in store.query(key)} == expected


def test_nothing_is_lost_or_changed(make_store: MakeStore) -> None:
    """Every record is still there, to the byte; so are the measured limits."""
    old = [*older_facts(), *facts(5), unreadable_fact()]
    store = filled(make_store, old)
    store.add(make_peaks())
    rekey_all(store)
    for record in old:
        assert to_json(store.get(record.id)) == to_json(record)
    assert len(store) == len(old) + len(older_facts())
    assert store.peaks(make_device().id) == make_peaks()


def test_rekeying_is_idempotent(make_store: MakeStore) -> None:
    """The second time everything is there, and nothing is added."""
    store = filled(make_store, older_facts())
    n_moves = len(rekey_all(store).moves)
    once = content(store)
    again = rekey_all(store)
    assert again.missing == ()
    assert len(again.moves) == n_moves
    assert content(store) == once


def test_rekeying_commutes_with_merging(make_store: MakeStore) -> None:
    """Rekeyed and then merged is merged and then rekeyed, whoever does it."""
    a = filled(make_store, [*older_facts()[:6], *facts(3)])
    b = filled(make_store, [*older_facts()[4:], unreadable_fact()])
    both = merged(make_store, a, b)
    for store in (a, b, both):
        rekey_all(store)
    assert content(merged(make_store, a, b)) == content(both)


def test_a_key_that_is_right_stays(make_store: MakeStore) -> None:
    """Facts under the keys of today are not moved."""
    store = filled(make_store, facts(0, 1))
    assert plan_rekey(store) == RekeyPlan(len(facts(0, 1)), 0, (), ())


def test_a_key_of_another_text_is_not_right(make_store: MakeStore) -> None:
    """The prefix alone does not make a key: the digest must be that of the text."""
    wrong = replace(fact(EINSUMS[0]), workload=canonicalize(EINSUMS[1]).key)
    store = filled(make_store, [wrong])
    rekey_all(store)
    (new,) = store.query(canonicalize(EINSUMS[0]).key)
    assert new == rekeyed(wrong, new.workload)


@pytest.mark.parametrize("present_too", [False, True])
@pytest.mark.parametrize("with_origin", [False, True])
def test_versions_between_make_no_chain(
    make_store: MakeStore, with_origin: bool, present_too: bool
) -> None:
    """A fact that came by way of several versions is one fact of today.

    Its provenance names the record that was measured, whichever of the older
    ones a database has.
    """
    for make in (under_older_key, respelled):
        origin = make(fact(EINSUMS[1]), OLDEST)
        between = rekeyed(origin, older_key(origin.workload_text))
        key = canonicalize(EINSUMS[1]).key
        today = rekeyed(origin, key)
        store = filled(
            make_store, [between, *[origin] * with_origin, *[today] * present_too]
        )
        plan = rekey_all(store)
        assert len(plan.moves) == 1 + with_origin
        assert len(plan.missing) == 1 - present_too
        (found,) = store.query(key)
        assert found == today
        assert found.provenance[REKEYED_FROM] == origin.id


@pytest.mark.parametrize("with_origin", [False, True])
def test_a_fact_comes_back_as_itself(make_store: MakeStore, with_origin: bool) -> None:
    """A fact of today that an older installation rekeyed has no double here."""
    measured = fact(EINSUMS[0])
    taken_back = rekeyed(measured, older_key(measured.workload_text))
    store = filled(make_store, [taken_back, *[measured] * with_origin])
    rekey_all(store)
    assert store.query(measured.workload) == (measured,)


def test_numbers_are_given_by_prefix(make_store: MakeStore) -> None:
    """Records, workloads, what is there, missing and unreadable, by old prefix."""
    oldest = [under_older_key(record, OLDEST) for record in facts(0)]
    store = filled(make_store, [*older_facts(), *oldest, *facts(0), unreadable_fact()])
    store.add(rekeyed(oldest[0], canonicalize(EINSUMS[0]).key))
    first, second = plan_rekey(store).count()
    assert (first.old, first.new) == (OLDEST, PRESENT)
    assert (first.n, first.n_workloads) == (3, 3)
    assert (first.n_there, first.n_missing, first.n_unreadable) == (1, 2, 0)
    assert (second.old, second.new) == (OLDER, PRESENT)
    assert (second.n, second.n_workloads) == (10, 7)
    assert (second.n_there, second.n_missing, second.n_unreadable) == (0, 9, 1)


def too_large_text() -> str:
    """A ring of rows with a larger symmetric graph than what is canonicalized."""
    x = [array(f"x{k}", 3) for k in range(10_001)]
    rows = [[left, right] for left, right in zip(x, [*x[1:], x[0]], strict=True)]
    return to_text(batched_einsum("i,i->i", rows))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid-einsum"),
        ("i -> j | x[3]:<f8 | x", "invalid-einsum"),
        (too_large_text(), "canonicalization-failed"),
    ],
    ids=["no text", "no einsum", "too large"],
)
def test_what_has_no_key_is_reported_and_left(text: str, code: str) -> None:
    """The plan names the record and the reason; the others are rekeyed."""
    bad = replace(unreadable_fact(), workload_text=text)
    store = filled(InMemoryStore, [bad, *older_facts()])
    plan = rekey_all(store)
    (entry,) = plan.unreadable
    assert (entry.id, entry.old) == (bad.id, bad.workload)
    assert entry.problem.code == code
    assert len(store) == 1 + 2 * len(older_facts())


def test_every_text_is_canonicalized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost grows with the workloads, not with the records."""
    texts = []

    def counted(e: BatchedEinsum) -> object:
        texts.append(to_text(e))
        return canonicalize(e)

    monkeypatch.setattr("feinsum.db.exchange.rekeying.canonicalize", counted)
    old = [under_older_key(record) for record in facts(*range(10))]
    plan_rekey(filled(InMemoryStore, old))
    assert len(texts) == len(set(texts)) == len(EINSUMS)


def test_progress_is_told_after_every_record() -> None:
    """Of how many, too; both while planning and while adding."""
    store = filled(InMemoryStore, [*older_facts(), *facts(7)])
    n, n_missing = len(store), len(older_facts())
    told: list[tuple[int, int]] = []
    plan = plan_rekey(store, lambda done, total: told.append((done, total)))
    rekey(store, plan, lambda done, total: told.append((done, total)))
    expected = [(k, n) for k in range(1, n + 1)]
    assert told == expected + [(k, n_missing) for k in range(1, n_missing + 1)]


def test_what_was_added_before_an_interruption_stays() -> None:
    """The next plan has the rest, and the end is the same."""

    def interrupt(done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    store, other = (filled(InMemoryStore, older_facts()) for _ in range(2))
    plan = rekey_all(other)
    with pytest.raises(KeyboardInterrupt):
        rekey(store, plan, interrupt)
    assert len(rekey_all(store).missing) == len(plan.missing) - 2
    assert content(store) == content(other)


# files


def test_a_database_that_is_only_read(database: Path) -> None:
    """A plan can be made, and following it is one clear error."""
    with open_store(database) as store:
        for record in older_facts():
            store.add(record)
    with open_store(database, is_read_only=True) as store:
        before = content(store)
        plan = plan_rekey(store)
        assert len(plan.missing) == len(before)
        with pytest.raises(StoreUnavailableError, match="is read-only"):
            rekey(store, plan)
        assert content(store) == before


def test_a_damaged_row_is_left_out(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that is not what it says is logged; the others are rekeyed."""
    bad, *good = older_facts()
    with open_store(database) as store:
        for record in (bad, *good):
            store.add(record)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(
                "UPDATE records SET document = '{}' WHERE id = ?", [bad.id]
            )
        rekey_all(store)
        assert len(content(store)) == 2 * len(good)
    assert bad.id in caplog.text


@pytest.mark.parametrize("facts", [[], older_facts()], ids=["dump", "more facts"])
def test_a_database_of_the_first_schema(
    database: Path, facts: list[TuningRecord]
) -> None:
    """It is migrated and rekeyed; the fact of the dump, whose text is no einsum, is
    left as it is.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMA.read_text())
    add_without_migrating(database, facts)
    with open_store(database) as store:
        assert len(store) == 1 + len(facts)
        (unreadable,) = store.query(OLD)
        other = filled(InMemoryStore, [unreadable, *facts])
        rekey_all(other)
        plan = rekey_all(store)
        assert [entry.id for entry in plan.unreadable] == [unreadable.id]
        assert content(store) == content(other)


def add_without_migrating(database: Path, records: list[TuningRecord]) -> None:
    """Add records as then: columns that are empty were not there yet."""
    engine = engine_of(locate(database))
    with writer(engine).begin() as connection:
        for record in records:
            for table, values in rows_of(record):
                known = {name: v for name, v in values.items() if v is not None}
                insert_missing(connection, [(table, known)])
    engine.dispose()
