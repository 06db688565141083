"""The statements of the store: inserting missing rows, reading valid ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    bindparam,
    exists,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from feinsum.db.sql.rows import Row, document_of
from feinsum.db.sql.tables import (
    Base,
    DevicePeaksRow,
    PlanRow,
    RecordingRow,
    RecordRow,
    RetractionRow,
    TrialRow,
    WorkloadRow,
)
from feinsum.errors import InvalidRecordError
from feinsum.records import (
    DevicePeaks,
    Document,
    DocumentKind,
    PlanRecord,
    Retraction,
    Trial,
    TuningRecord,
    untrusted,
)

logger = logging.getLogger(__name__)

INSERTS: dict[str, Callable[[Table], Any]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}

Kept = (
    type[RecordRow]
    | type[DevicePeaksRow]
    | type[TrialRow]
    | type[RetractionRow]
    | type[PlanRow]
)


def retracted(row: Kept) -> ColumnElement[bool]:
    """The document is believed no more."""
    return exists().where(RetractionRow.document_id == row.id)


def trusted(row: Kept) -> ColumnElement[bool]:
    """A trusted key sent it, or nobody did: it was recorded in the database itself."""
    sent = exists().where(RecordingRow.record_id == row.id)
    return ~sent | sent.where(RecordingRow.is_trusted)


PEAKS = select(DevicePeaksRow.id, DevicePeaksRow.document).where(
    ~retracted(DevicePeaksRow)
)

ALL_PLANS = select(PlanRow.id, PlanRow.document)

PLANS = ALL_PLANS.add_columns(trusted(PlanRow).label("is_trusted")).where(
    ~retracted(PlanRow)
)

RECORDS = select(
    RecordRow.id, RecordRow.workload_key, RecordRow.device_id, RecordRow.document
)

RETRACTED = retracted(RecordRow)

IS_TRUSTED = trusted(RecordRow)

MARKED = RECORDS.add_columns(IS_TRUSTED.label("is_trusted"))

OF_WORKLOAD = MARKED.where(
    RecordRow.workload_key == bindparam("workload"), ~RETRACTED
).order_by(RecordRow.id)
"""The look-up; made once, since making a statement takes as long as running it."""

OF_DEVICE = OF_WORKLOAD.where(RecordRow.device_id == bindparam("device"))

START = bindparam("start", type_=Text)
LIKE = (
    RECORDS.join(WorkloadRow, WorkloadRow.key == RecordRow.workload_key)
    .where(func.substr(WorkloadRow.text, 1, func.length(START)) == START, ~RETRACTED)
    .order_by(RecordRow.id)
)
"""The records whose texts have a start; SQLite's LIKE would not heed the case."""

TRIALS = select(TrialRow.id, TrialRow.document)

RETRACTIONS = select(RetractionRow.id, RetractionRow.document)

TRIED = select(TrialRow.workload_key).distinct()

WORKLOADS = select(RecordRow.workload_key).distinct()

TABLES: dict[DocumentKind, Kept] = {
    "record": RecordRow,
    "peaks": DevicePeaksRow,
    "trial": TrialRow,
    "retraction": RetractionRow,
    "plan": PlanRow,
}

SELECTS: dict[DocumentKind, Select[*tuple[Any, ...]]] = {
    "record": MARKED.where(~RETRACTED),
    "peaks": PEAKS,
    "trial": TRIALS,
    "retraction": RETRACTIONS,
    "plan": PLANS,
}
"""What look-ups see of each kind; that of :data:`HAVE_TRUST` with ``is_trusted``."""

HAVE_TRUST: frozenset[DocumentKind] = frozenset({"record", "plan"})


def insert_missing(connection: Connection, row: Row) -> bool:
    """Insert a row unless its key exists; returns whether it was inserted."""
    kind, values = row
    table = kind.__table__
    insert = INSERTS[connection.dialect.name](table).values(values)
    missing = insert.on_conflict_do_nothing().returning(*table.primary_key)
    return connection.execute(missing).first() is not None


def copy_recorders(connection: Connection, old_id: str, new_id: str) -> None:
    """Note that those who sent a fact sent a new one as well."""
    row = RecordingRow
    columns = row.recorder, row.received_at, row.is_trusted
    sent = select(*columns).where(row.record_id == old_id)
    table = RecordingRow.__table__
    for recorder, received_at, is_trusted in connection.execute(sent).all():
        values = {
            table.c.record_id: new_id,
            table.c.recorder: recorder,
            table.c.received_at: received_at,
            table.c.is_trusted: is_trusted,
        }
        connection.execute(table.insert().values(values))


def insert_missing_rows(connection: Connection, rows: Iterable[Row]) -> bool:
    """Insert missing rows, in order; returns whether the last one was missing."""
    is_new = False
    for row in rows:
        is_new = insert_missing(connection, row)
    return is_new


def insert_all_missing(connection: Connection, rows: Iterable[Row]) -> int:
    """Insert those of many rows whose keys are missing; one statement per table.

    Returns:
        How many rows of :data:`TABLES` are new.
    """
    tables: dict[type[Base], dict[str, dict[str, Any]]] = {}
    for kind, values in rows:
        key = values["key"] if "key" in values else values["id"]
        tables.setdefault(kind, {}).setdefault(key, values)
    n_new = 0
    for kind, many in tables.items():
        table = kind.__table__
        insert = INSERTS[connection.dialect.name](table).on_conflict_do_nothing()
        if kind in TABLES.values():
            missing = insert.returning(*table.primary_key)
            n_new += len(connection.execute(missing, list(many.values())).all())
        else:
            connection.execute(insert, list(many.values()))
    return n_new


def sound(
    kind: DocumentKind, rows: Iterable[Any], *, has_trust: bool = False
) -> Iterator[Document]:
    """The documents of the rows of :data:`SELECTS` that match their ids.

    The others are logged and skipped.

    Args:
        has_trust: whether rows have a column ``is_trusted``; documents of those where
            it is false are marked.
    """
    for row in rows:
        document = _read(kind, row)
        if document is None:
            continue
        if isinstance(document, TuningRecord) and not _has_columns_of(document, row):
            logger.error("fact %s is skipped: its columns are damaged", row.id)
            continue
        is_doubted = has_trust and not row.is_trusted
        yield untrusted(document) if is_doubted else document


def sound_records(
    rows: Iterable[Any], *, has_trust: bool = False
) -> Iterator[TuningRecord]:
    """The same for records alone."""
    found = sound("record", rows, has_trust=has_trust)
    return cast(Iterator[TuningRecord], found)


def sound_peaks(rows: Iterable[Any]) -> Iterator[DevicePeaks]:
    """The same for measured limits."""
    return cast(Iterator[DevicePeaks], sound("peaks", rows))


def sound_plans(
    rows: Iterable[Any], *, has_trust: bool = False
) -> Iterator[PlanRecord]:
    """The same for plans."""
    return cast(Iterator[PlanRecord], sound("plan", rows, has_trust=has_trust))


def sound_trials(rows: Iterable[Any]) -> Iterator[Trial]:
    """The same for trials."""
    return cast(Iterator[Trial], sound("trial", rows))


def sound_retractions(rows: Iterable[Any]) -> Iterator[Retraction]:
    """The same for retractions."""
    return cast(Iterator[Retraction], sound("retraction", rows))


def _has_columns_of(record: TuningRecord, row: Any) -> bool:
    content = record.workload, record.environment.device.id
    return content == (row.workload_key, row.device_id)


def _read(kind: DocumentKind, row: Any) -> Document | None:
    try:
        return document_of(kind, row.id, row.document)
    except InvalidRecordError as error:
        logger.error("row %s is skipped: %s", row.id, error)
        return None
