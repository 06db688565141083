"""Databases united and compared: a union is commutative, associative, idempotent."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feinsum.canonical import WorkloadKey
from feinsum.db import open_store
from feinsum.db.exchange.files import Bad, read_file, write_file
from feinsum.db.exchange.merging import compare, import_entries, list_documents, merge
from feinsum.errors import InvalidRecordError, StoreUnavailableError
from feinsum.records import (
    Document,
    InMemoryStore,
    Retraction,
    Store,
    Trial,
    accept_all,
    to_json,
)
from tests.db.factories import (
    make_peaks,
    make_plan_record,
    make_record,
    make_trial,
    tuning_records,
)

AT = "2026-02-01T09:00:00+00:00"
documents = (
    tuning_records()
    | st.builds(make_trial, st.integers(0, 3))
    | st.integers(1, 3).map(lambda n: make_peaks(measured_at=f"2025-01-0{n}T00:00:00"))
    | st.integers(0, 3).map(make_plan_record)
)
few = st.lists(
    documents | documents.map(lambda one: Retraction(one.id, "wrong", "ann", AT)),
    max_size=6,
)
in_files = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Makes:
    """Makes stores with documents: in memory or in files, each a new one."""

    def __init__(self, stack: ExitStack, folder: Path | None) -> None:
        self._stack, self._folder, self._n = stack, folder, 0

    def __call__(self, documents: Iterable[Document] = ()) -> Store:
        self._n += 1
        store: Store = (
            InMemoryStore()
            if self._folder is None
            else self._stack.enter_context(open_store(self._folder / f"{self._n}"))
        )
        store.add_all(list(documents))
        return store

    def union(self, *stores: Store) -> Store:
        result = self()
        for store in stores:
            merge(result, store)
        return result


def content(store: Store) -> list[Document]:
    return list(list_documents(store, has_trials=True))


def everything() -> list[Document]:
    """Documents of all kinds."""
    records = [make_record(n) for n in range(3)]
    trials = [make_trial(n) for n in range(2)]
    return [*records, make_peaks(), *trials, make_plan_record()]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@in_files
@given(one=few, two=few, three=few)
def test_merging_is_a_union(tmp_path_factory, kind, one, two, three):
    """A ∪ b = b ∪ a, (a ∪ b) ∪ c = a ∪ (b ∪ c), a ∪ a = a; all is in it."""
    with ExitStack() as stack:
        folder = None if kind == "memory" else tmp_path_factory.mktemp("union")
        make = Makes(stack, folder)
        a, b, c = make(one), make(two), make(three)
        union = content(make.union(a, b))
        assert union == content(make.union(b, a))
        left, right = make.union(make.union(a, b), c), make.union(a, make.union(b, c))
        assert content(left) == content(right)
        assert all(difference.is_empty for difference in compare(left, right))
        assert content(make.union(a, a)) == content(a)
        retracted = {d.document for d in one + two if isinstance(d, Retraction)}
        kept = (d for d in one + two if isinstance(d, Trial) or d.id not in retracted)
        assert {d.id for d in union} == {d.id for d in kept}


@given(one=few, two=few)
def test_a_comparison_names_what_each_lacks(one, two):
    """By kind: the difference of the sets, both ways, and the number in both."""
    with ExitStack() as stack:
        make = Makes(stack, None)
        a, b = make(one), make(two)
        for found in compare(a, b):
            ids_a, ids_b = set(a.ids(found.kind)), set(b.ids(found.kind))
            assert set(found.only_a) == ids_a - ids_b
            assert set(found.only_b) == ids_b - ids_a
            assert found.n_both == len(ids_a & ids_b)
            assert found.is_empty == (ids_a == ids_b)


def test_between_all_kinds_of_databases(make_postgresql_store, make_sql_store):
    """Whatever the stores are, all documents arrive, and once."""
    makes = InMemoryStore, make_sql_store, make_postgresql_store
    for make_source, make_target in product(makes, makes):
        source, target = make_source(), make_target()
        assert source.add_all(everything()) == 7
        assert merge(target, source).total() == 7
        assert merge(target, source).total() == 0
        assert content(target) == content(source)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_reads_back(tmp_path, database, suffix):
    """All documents, of all kinds, as they were; a second time nothing is new."""
    path = tmp_path / f"facts{suffix}"
    with open_store(database) as source:
        source.add_all(everything())
        assert write_file(list_documents(source, has_trials=True), path).total() == 7
        assert list(tmp_path.glob("*.part")) == []
        with open_store(tmp_path / "other.sqlite") as target:
            found = import_entries(target, read_file(path), pytest.fail)
            assert +found.n_new == Counter(record=3, peaks=1, trial=2, plan=1)
            again = import_entries(target, read_file(path), pytest.fail)
            assert (again.n_read, again.n_new.total()) == (found.n_read, 0)
            assert content(target) == content(source)


UNKEEPABLE = (
    replace(make_record(7), recorded_at="yesterday"),
    replace(make_record(7), workload=WorkloadKey("k\0")),
    replace(make_record(7), workload=WorkloadKey("k" * 501)),
    replace(make_record(7), spec=replace(make_record().spec, version=2**31)),
    replace(make_record(7), spec=replace(make_record().spec, name="n" * 501)),
    replace(make_record(7), measurement=replace(make_record().measurement,
            baseline_s=(1e308,) * 3, samples_s=(1e-308,) * 3)),
)  # fmt: skip


def test_what_no_column_takes_is_refused_alike(make_any_sql_store):
    """By SQLite as by PostgreSQL, so that they can be merged; the others are kept."""
    bad = [(f"line {n}", document) for n, document in enumerate(UNKEEPABLE, 3)]
    entries = [("line 2", make_record(0)), *bad, ("line 99", make_record(1))]
    store, refused = make_any_sql_store(), list[Bad]()
    found = import_entries(store, entries, refused.append, check=accept_all)
    assert (found.n_new["record"], found.n_bad) == (2, len(UNKEEPABLE))
    assert [entry.position for entry in refused] == [position for position, _ in bad]
    assert len(store) == 2


def test_a_forged_id_is_not_taken(make_sql_store, caplog):
    """A row whose id is that of a text in another form is left out of a merger."""
    text = f" {to_json(make_record(0))}"
    source, target = make_sql_store(), make_sql_store()
    source.add_all([make_record(0), make_record(1)])
    forged = hashlib.sha256(text.encode()).hexdigest()
    with source.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE records SET id = ?, document = ? WHERE id = ?",
            (forged, text, make_record(0).id),
        )
    assert merge(target, source).total() == 1
    assert content(target) == [make_record(1)]
    assert forged in caplog.text


def test_the_first_bad_entry_can_end_an_import():
    """What stands before it is kept, what comes after it is not looked at."""

    def end(bad: Bad) -> None:
        raise bad.problem

    problem = InvalidRecordError("no fact")
    entries = [("line 2", make_record(0)), Bad("line 3", problem), ("", make_record(1))]
    store = InMemoryStore()
    with pytest.raises(InvalidRecordError, match="no fact"):
        import_entries(store, entries, end)
    assert content(store) == [make_record(0)]


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    """Missing, a folder, in a folder that does not exist: a StoreUnavailableError."""
    for path in (tmp_path / "no such file", tmp_path):
        with pytest.raises(StoreUnavailableError, match="cannot be read"):
            list(read_file(path))
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        write_file([], tmp_path / "no such folder" / "facts.jsonl")


def test_a_failed_export_leaves_the_older_file(tmp_path):
    """It is replaced only by a complete one."""
    path = tmp_path / "facts.jsonl"
    path.write_text("older")

    def failing() -> Iterable[Document]:
        yield make_record()
        raise StoreUnavailableError("gone")

    with pytest.raises(StoreUnavailableError, match="gone"):
        write_file(failing(), path)
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]
