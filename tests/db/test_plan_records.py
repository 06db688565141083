"""What plans moved and took goes wherever facts go."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feinsum.db import SqlStore
from feinsum.db.exchange import (
    all_documents,
    audit,
    compare,
    import_entries,
    merge,
    sign_facts,
)
from feinsum.db.exchange.lines import read_lines, write_lines
from feinsum.db.exchange.parquet import read_parquet, write_parquet
from feinsum.errors import ImplausibleError
from feinsum.records import (
    InMemoryStore,
    RetractionQuery,
    check_plausible,
    refusals,
)
from feinsum.records.signature import public_key_of, sign, why_untrusted
from tests.db.factories import make_plan, make_plan_record, make_record

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))

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


def test_plans_are_retracted_like_facts(make_store):
    """By the digits that their ids begin with, by their key, and by time; not by a
    transform, which they have not.
    """
    store = make_store()
    store.add_all([*RECORDS, make_record()])
    by_transform = RetractionQuery(transform="rowwise")
    assert store.retract(by_transform).plans == ()
    of_one = RetractionQuery(workload=RECORDS[0].workload)
    assert {one.id for one in store.retract(of_one).plans} == {
        one.id for one in RECORDS[:3]
    }
    gone = RetractionQuery(ids=(RECORDS[0].id[:12],))
    done = store.retract(gone, reason="a wrong clock", is_dry_run=False)
    assert (done.n_facts, done.unknown) == (1, ())
    assert RECORDS[0] not in held(store)
    assert store.retract(gone).n_facts == 0
    everything = RetractionQuery(since="2025-01-01")
    done = store.retract(everything, reason="a wrong clock", is_dry_run=False)
    assert (len(done.suspects), len(done.plans), done.n_facts) == (1, 3, 4)
    assert held(store) == []


def test_signed_plans_take_the_place_of_unsigned_ones(make_store):
    """Each is there once, signed; what a signature covers cannot be changed."""
    store = make_store()
    store.add_all(RECORDS)
    done = sign_facts(store, KEY, is_dry_run=False)
    assert (done.n_records, done.n_signed) == (4, 4)
    assert sign_facts(store, KEY, is_dry_run=False).n_signed == 0
    expected = {sign(one, KEY).id for one in RECORDS}
    assert {one.id for one in held(store)} == expected
    trusted = {public_key_of(KEY)}
    for one in held(store):
        assert why_untrusted(one, trusted) == ""
        assert not refusals(one)
        faster = replace(one, samples_s=tuple(s / 2 for s in one.samples_s))
        assert "is not that of" in why_untrusted(faster, trusted)


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
