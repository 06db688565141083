"""The statements that read documents: which rows a look-up sees."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    bindparam,
    exists,
    func,
    select,
)

from feinsum.db.sql.rows import TABLES, DocumentRow
from feinsum.db.sql.tables import (
    Base,
    DevicePeaksRow,
    PlanRow,
    RecordingRow,
    RecordRow,
    RetractionRow,
    WorkloadRow,
)
from feinsum.records import FACT_KINDS, DocumentKind

FactRow = type[RecordRow] | type[PlanRow] | type[DevicePeaksRow]

FACT_TABLES: tuple[FactRow, ...] = (RecordRow, PlanRow, DevicePeaksRow)

MAX_IDS = 500
"""How many ids are passed to one statement; SQLite has a limit of variables."""


def retracted(table: DocumentRow) -> ColumnElement[bool]:
    """Whether a document was retracted, so that no look-up sees it."""
    return exists().where(RetractionRow.document_id == table.id)


def trusted(table: DocumentRow) -> ColumnElement[bool]:
    """Whether a trusted key sent a document, or nobody did: it was recorded here."""
    is_sent = exists().where(RecordingRow.record_id == table.id)
    return ~is_sent | is_sent.where(RecordingRow.is_trusted)


RETRACTED = retracted(RecordRow)

IS_TRUSTED = trusted(RecordRow)

RECORDS = select(
    RecordRow.id, RecordRow.workload_key, RecordRow.device_id, RecordRow.document
)


def select_documents(kind: DocumentKind) -> Select[*tuple[Any, ...]]:
    """Select the documents of a kind that look-ups see, with their trust."""
    table = TABLES[kind]
    columns: list[Any] = [table.id, table.document]
    if kind == "record":
        columns += [RecordRow.workload_key, RecordRow.device_id]
    if kind not in FACT_KINDS:
        return select(*columns)
    columns.append(trusted(table).label("is_trusted"))
    return select(*columns).where(~retracted(table))


# Building a statement takes as long as running it, so each is built once.
@cache
def filter_documents(
    kind: DocumentKind, filters: frozenset[str]
) -> Select[*tuple[Any, ...]] | None:
    """Select documents by bound parameters with the names of the filters.

    Args:
        filters: some of ``among`` (ids), ``workload``, ``device_id`` and ``notation``.
            Without any, the parameters are ``after`` (an id) and ``limit``.

    Returns:
        None if documents of the kind have no such property.
    """
    table, statement = TABLES[kind], select_documents(kind)
    columns = table.__table__.c
    for name in filters:
        column = {"among": "id", "workload": "workload_key"}.get(name, name)
        if name == "notation" and table is RecordRow:
            # SQLite's LIKE ignores the case, so the beginnings are compared
            start = bindparam("notation", type_=Text)
            begins = func.substr(WorkloadRow.text, 1, func.length(start)) == start
            statement = statement.join(
                WorkloadRow, WorkloadRow.key == RecordRow.workload_key
            ).where(begins)
        elif column not in columns:
            return None
        elif name == "among":
            statement = statement.where(table.id.in_(bindparam(name, expanding=True)))
        else:
            statement = statement.where(columns[column] == bindparam(name))
    if not filters:
        # Pages, so that no lock is held while a whole database is read. Only here: with
        # another filter, PostgreSQL might walk along the ids instead of its index.
        statement = statement.where(table.id > bindparam("after"))
        statement = statement.limit(bindparam("limit", type_=Integer))
    return statement.order_by(table.id)


def count(connection: Connection, table: type[Base]) -> int:
    """Return the number of rows of a table."""
    return connection.execute(select(func.count()).select_from(table)).scalar_one()
