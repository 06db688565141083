"""Parquet: a flat table for data frames, which reads back as it was."""

from __future__ import annotations

import pickle

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from feinsum.db.exchange.files import Bad, read_file, write_file
from feinsum.errors import InvalidRecordError
from feinsum.records import to_json
from tests.db.factories import (
    make_device,
    make_environment,
    make_peaks,
    make_processor,
    make_record,
    make_trial,
    tuning_records,
)
from tests.strategies import counts


@counts(20, 500)
@given(records=st.lists(tuning_records(), max_size=6))
def test_records_read_back(tmp_path_factory, records):
    """Every document in order, whatever characters it has."""
    path = tmp_path_factory.mktemp("parquet") / "facts.parquet"
    write_file(records, path)
    assert [
        entry[1] for entry in read_file(path) if isinstance(entry, tuple)
    ] == records


def test_the_columns_are_of_the_documents(tmp_path):
    """A kind that has no such column has null there, as has a device whose processor
    was not recorded; times are in UTC.
    """
    path = tmp_path / "facts.parquet"
    known = make_device(processor=make_processor("zen5"))
    record = make_record(1, environment=make_environment(known))
    peaks, trial = make_peaks(known), make_trial(2, status="build-failed")
    write_file([record, peaks, trial], path)
    rows = parquet.read_table(path).to_pylist()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert columns["kind"] == ["record", "peaks", "trial"]
    assert columns["id"] == [record.id, peaks.id, trial.id]
    assert columns["median_s"] == [2e-3, None, None]
    assert columns["status"] == [None, None, "build-failed"]
    assert columns["microarchitecture"] == ["zen5", "zen5", None]
    assert columns["device_id"][:2] == [known.id] * 2
    assert rows[0]["transform_name"] == "rowwise"
    assert rows[0]["recorded_at"].isoformat() == record.recorded_at
    assert rows[0]["document"] == to_json(record)


HOSTILE = (
    ("kind", "pickle", "kind 'pickle'"),
    ("kind", None, "kind None"),
    ("kind", "trial", "not a valid Trial"),
    ("id", "0" * 64, "content id"),
    ("id", None, "content id"),
    ("document", "{}", "content id"),
    ("document", None, "content id"),
)
"""The column that is changed, its value, and the reason."""


def test_a_hostile_row_is_refused(tmp_path):
    """It is named by its number, with the reason; the rows around it are read."""
    record = make_record()
    good = {"kind": "record", "id": record.id, "document": to_json(record)}
    rows = [good, *(good | {name: value} for name, value, _ in HOSTILE), good]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "facts.parquet")
    first, *bad, last = read_file(tmp_path / "facts.parquet")
    assert (first, last) == (("row 1", record), (f"row {len(rows)}", record))
    for n, (entry, (*_, reason)) in enumerate(zip(bad, HOSTILE, strict=True), 2):
        assert isinstance(entry, Bad)
        assert entry.position == f"row {n}"
        assert reason in str(entry)


def test_what_is_no_table_is_refused(tmp_path):
    """Empty, cut off, or something else."""
    path = tmp_path / "facts.parquet"
    other = pickle.dumps(3), b'{"kind":"header"}'
    for content in (b"", b"PAR1", b"PAR1" * 100, *other):
        path.write_bytes(content)
        with pytest.raises(InvalidRecordError, match="not a Parquet table"):
            list(read_file(path))


def test_a_table_of_somebody_else_is_refused(tmp_path):
    """It lacks the columns, or they have other types."""
    path = tmp_path / "facts.parquet"
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(InvalidRecordError, match="not a Parquet table"):
        list(read_file(path))
    numbers = {"kind": ["record"], "id": [1], "document": [2]}
    parquet.write_table(pyarrow.table(numbers), path)
    (bad,) = read_file(path)
    assert isinstance(bad, Bad)
