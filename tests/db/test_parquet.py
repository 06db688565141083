"""Parquet: a flat table for data frames, which reads back as it was."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from feinsum.db.exchange import Bad, read_file, write_file
from feinsum.errors import InvalidRecordError
from feinsum.records import TuningRecord, to_json
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
def test_records_read_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[TuningRecord]
) -> None:
    """Every document in order, whatever characters it has."""
    path = tmp_path_factory.mktemp("parquet") / "facts.parquet"
    write_file(records, path)
    assert [
        entry[1] for entry in read_file(path) if isinstance(entry, tuple)
    ] == records


def test_the_columns_are_of_the_documents(tmp_path: Path) -> None:
    """A kind that has no such column has null there; times are in UTC."""
    path = tmp_path / "facts.parquet"
    record, trial = make_record(1), make_trial(2, status="build-failed")
    write_file([record, make_peaks(), trial], path)
    rows = parquet.read_table(path).to_pylist()
    assert [row["kind"] for row in rows] == ["record", "peaks", "trial"]
    assert [row["id"] for row in rows] == [record.id, make_peaks().id, trial.id]
    assert [row["median_s"] for row in rows] == [2e-3, None, None]
    assert [row["status"] for row in rows] == [None, None, "build-failed"]
    assert rows[0]["transform_name"] == "rowwise"
    assert rows[0]["recorded_at"].isoformat() == record.recorded_at
    assert rows[0]["document"] == to_json(record)


def test_the_microarchitecture_has_a_column(tmp_path: Path) -> None:
    """Of a device whose processor was not recorded it is null."""
    path = tmp_path / "facts.parquet"
    known = make_device(processor=make_processor("zen5"))
    records = [make_record(), make_record(environment=make_environment(known))]
    write_file([*records, make_peaks(known)], path)
    rows = parquet.read_table(path).to_pylist()
    assert [row["microarchitecture"] for row in rows] == [None, "zen5", "zen5"]
    assert [row["device_id"] for row in rows[1:]] == [known.id] * 2


def table(path: Path, **changes: list[Any]) -> Path:
    """A table of one fact and one that is changed."""
    record = make_record()
    columns = {"kind": "record", "id": record.id, "document": to_json(record)}
    good = {name: [value] for name, value in columns.items()}
    rows = {name: good[name] + changes.get(name, good[name]) for name in good}
    parquet.write_table(pyarrow.table(rows), path)
    return path


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kind", "pickle", "kind 'pickle'"),
        ("kind", None, "kind None"),
        ("kind", "trial", "not a valid Trial"),
        ("id", "0" * 64, "content id"),
        ("id", None, "content id"),
        ("document", "{}", "content id"),
        ("document", None, "content id"),
    ],
)
def test_a_hostile_row_is_refused(
    tmp_path: Path, name: str, value: str | None, reason: str
) -> None:
    """It is named by its number, with the reason."""
    first, bad = read_file(table(tmp_path / "facts.parquet", **{name: [value]}))
    assert first == ("row 1", make_record())
    assert isinstance(bad, Bad)
    assert bad.position == "row 2"
    assert reason in str(bad)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1" * 100, pickle.dumps(3), b'{"kind":"header"}']
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, cut off, or something else."""
    path = tmp_path / "facts.parquet"
    path.write_bytes(content)
    with pytest.raises(InvalidRecordError, match="not a Parquet table"):
        list(read_file(path))


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """It lacks the columns, or they have other types."""
    path = tmp_path / "facts.parquet"
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(InvalidRecordError, match="not a Parquet table"):
        list(read_file(path))
    numbers = {"kind": ["record"], "id": [1], "document": [2]}
    parquet.write_table(pyarrow.table(numbers), path)
    (bad,) = read_file(path)
    assert isinstance(bad, Bad)
