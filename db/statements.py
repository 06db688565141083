"""The statements of the store: insert what is missing, read what is sound."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from feinsum.db.rows import Row, peaks_of, record_of, trial_of
from feinsum.db.tables import Base, DevicePeaksRow, RecordRow, TrialRow
from feinsum.errors import InvalidRecordError
from feinsum.records import DevicePeaks, Trial, TuningRecord

__all__ = [
    "PEAKS",
    "RECORDS",
    "TRIALS",
    "TRIED",
    "insert_all_missing",
    "insert_missing",
    "sound_peaks",
    "sound_records",
    "sound_trials",
]

logger = logging.getLogger(__name__)

Fact = TypeVar("Fact")

INSERTS: dict[str, Callable[[Table], Any]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}

PEAKS = select(DevicePeaksRow.id, DevicePeaksRow.document)

RECORDS = select(
    RecordRow.id, RecordRow.workload_key, RecordRow.device_id, RecordRow.document
)

TRIALS = select(TrialRow.id, TrialRow.document)

TRIED = select(TrialRow.workload_key).distinct()


def insert_missing(connection: Connection, row: Row) -> bool:
    """Insert a row unless its key is there already; whether it was inserted."""
    kind, values = row
    table = cast(Table, kind.__table__)
    insert = INSERTS[connection.dialect.name](table).values(values)
    missing = insert.on_conflict_do_nothing().returning(*table.primary_key)
    return connection.execute(missing).first() is not None


def insert_all_missing(connection: Connection, rows: Iterable[Row]) -> None:
    """Insert those of many rows whose keys are not there; one statement a table."""
    tables: dict[type[Base], list[dict[str, Any]]] = {}
    for kind, values in rows:
        tables.setdefault(kind, []).append(values)
    for kind, many in tables.items():
        insert = INSERTS[connection.dialect.name](cast(Table, kind.__table__))
        connection.execute(insert.on_conflict_do_nothing(), many)


def sound_records(rows: Iterable[Any]) -> Iterator[TuningRecord]:
    """The records of those rows of :data:`RECORDS` that are what they say.

    The others are logged and left out.
    """
    for row in rows:
        record = _read(record_of, row)
        if record is None:
            continue
        content = record.workload, record.environment.device.id
        if content == (row.workload_key, row.device_id):
            yield record
        else:
            logger.error("fact %s is skipped: its columns are damaged", row.id)


def sound_peaks(rows: Iterable[Any]) -> Iterator[DevicePeaks]:
    """The same for rows of :data:`PEAKS`."""
    for row in rows:
        peaks = _read(peaks_of, row)
        if peaks is not None:
            yield peaks


def sound_trials(rows: Iterable[Any]) -> Iterator[Trial]:
    """The same for rows of :data:`TRIALS`."""
    for row in rows:
        trial = _read(trial_of, row)
        if trial is not None:
            yield trial


def _read(parse: Callable[[str, str], Fact], row: Any) -> Fact | None:
    try:
        return parse(row.id, row.document)
    except InvalidRecordError as error:
        logger.error("row %s is skipped: %s", row.id, error)
        return None
