"""Shipped facts: text that reads back, found beside the user's own, fit to serve."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import canonicalize
from feinsum.db import ShippedStore, get_shipped_facts, write_facts
from feinsum.errors import RecordNotFoundError
from feinsum.ir import from_text
from feinsum.transforms import check_spec
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_record,
    tuning_records,
)
from tests.strategies import counts


def shipped(records, path) -> ShippedStore:
    write_facts(records, path)
    return ShippedStore((path.read_text("utf-8"),))


@counts(15, 500)
@given(records=st.lists(tuning_records(), max_size=5), seed=st.integers(0, 9))
def test_what_is_written_reads_back(records, seed, tmp_path_factory):
    """Every record once, whatever the order; the same records are the same text."""
    folder = tmp_path_factory.mktemp("shipped")
    store = shipped(records, folder / "one.jsonl")
    expected = {record.id: record for record in records}
    assert {record.id: record for record in store.records()} == expected
    assert len(store) == len(expected)
    random.Random(seed).shuffle(records)
    write_facts([*records, *records[:1]], folder / "two.jsonl")
    assert (folder / "two.jsonl").read_text() == (folder / "one.jsonl").read_text()


def test_queries_are_those_of_a_store(tmp_path):
    """By workload, by device, by id."""
    there = make_environment(make_device(1))
    records = [make_record(0), make_record(1, environment=there)]
    store = shipped(records, tmp_path / "facts.jsonl")
    assert set(store.query(WORKLOAD)) == set(records)
    assert store.query(WORKLOAD, device_id=there.device.id) == (records[1],)
    assert store.query("fe2-other") == ()
    assert store.get(records[0].id) == records[0]
    with pytest.raises(RecordNotFoundError):
        store.get("no such id")
    assert store.peaks(there.device.id) is None


def test_shipped_facts_can_be_served():
    """There are some. The key of each is that of its workload; its recipe is registered
    and lies in its space; it was verified, and faster than the untransformed kernel.
    """
    facts = tuple(get_shipped_facts().records())
    assert facts
    for fact in facts:
        form = canonicalize(from_text(fact.workload_text))
        assert (form.key, form.text) == (fact.workload, fact.workload_text)
        check_spec(fact.spec, form.einsum)
        verified = fact.measurement.verification
        assert verified.largest_error <= verified.tolerance, fact.id
        assert fact.measurement.speedup > 1, fact.id
