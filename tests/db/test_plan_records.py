"""What plans moved and took goes wherever facts go."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from feinsum.db import SqlStore
from feinsum.db.exchange import all_documents, audit, compare, import_entries, merge
from feinsum.db.exchange.lines import read_lines, write_lines
from feinsum.db.exchange.parquet import read_parquet, write_parquet
from feinsum.errors import ImplausibleError
from feinsum.records import InMemoryStore, check_plausible
from tests.db.factories import make_plan, make_plan_record, make_record

RECORDS = [make_plan_record(n) for n in range(3)] + [
    make_plan_record(plan=make_plan(5))
]
FAKE = replace(RECORDS[0], counted=1)

STORES = ["make_sql_store", "make_postgresql_store"]


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest) -> Callable[[], SqlStore]:
    return request.getfixturevalue(request.param)


def held(store):
    return list(store.documents("plan"))


def test_a_merge_is_a_union(make_store):
    """A ∪ b = b ∪ a, (a ∪ b) ∪ c = a ∪ (b ∪ c), a ∪ a = a, for plans as for facts."""
    parts = [RECORDS[:2], RECORDS[1:3], RECORDS[3:]]

    def united(*order):
        store = make_store()
        for part in order:
            source = InMemoryStore()
            source.add_all([make_record(), *parts[part]])
            merge(store, source)
        return store

    expected = sorted(RECORDS, key=lambda record: record.id)
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 0, 2, 1)):
        assert held(united(*order)) == expected
    assert all(one.is_empty for one in compare(united(0, 1, 2), united(2, 1, 0)))


@pytest.mark.parametrize(
    ("write", "read"), [(write_lines, read_lines), (write_parquet, read_parquet)]
)
def test_files_bring_plans_back(make_store, write, read):
    """Lines and tables have all that a database has of them."""
    one, other = make_store(), make_store()
    one.add_all(RECORDS)
    stream = io.BytesIO()
    assert write(all_documents(one, has_trials=False), stream) == {"plan": 4}
    stream.seek(0)
    assert import_entries(other, read(stream), pytest.fail).n_new["plan"] == 4
    assert held(other) == held(one)
    assert one.info().n_plans == 4


def test_what_was_made_up_comes_into_no_database():
    """Neither by a merge nor by a file; of one that has it, an audit says so."""
    with pytest.raises(ImplausibleError, match=r"\[counts\]"):
        check_plausible(FAKE)
    source, target = InMemoryStore(), InMemoryStore()
    source.add_all([FAKE, RECORDS[1]])
    left_out = []
    assert merge(target, source, on_bad=left_out.append)["plan"] == 1
    assert held(target) == [RECORDS[1]]
    assert len(left_out) == 1
    (odd,) = audit(source)
    assert (odd.kind, odd.id, odd.is_refused) == ("plan", FAKE.id, True)
