"""Documents as rows: what is inserted, which rows a look-up sees, and how they read.

A record becomes four rows, each after those that it refers to; a row that exists
already is left as it is::

    TuningRecord --> devices       id, name, vendor, ...
                     environments  id, device_id, driver_version, document
                     workloads     key, text
                     records       id, workload_key, ..., median_s, document

``document`` is the canonical text, whose SHA-256 is ``id``. A row whose text has
another digest was changed by somebody else and is never served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from math import isfinite
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    exists,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from feinsum.db.sql.tables import (
    Base,
    DevicePeaksRow,
    DeviceRow,
    EnvironmentRow,
    PlanRow,
    RecordingRow,
    RecordRow,
    RetractionRow,
    TrialRow,
    WorkloadRow,
)
from feinsum.errors import (
    InvalidRecordError,
    InvalidRequestError,
    RecordNotFoundError,
)
from feinsum.records import (
    FACT_KINDS,
    KINDS,
    Device,
    Document,
    DocumentKind,
    Processor,
    Serialized,
    TuningRecord,
    from_json,
    get_kind,
    mark_untrusted,
    serialize,
    to_json,
)
from feinsum.records.document import digest_of, format_canonical, parse_instant
from feinsum.records.kinds import DIGITS, parse_document

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEVICE_COLUMNS = (
    "platform", "name", "vendor", "kind", "architecture", "compute_units", "processor",
)  # fmt: skip
"""The columns of a device, in the order of its fields."""

MAX_INDEXED_LENGTHS = {"key": 500, "workload_key": 500, "transform_name": 500}
"""Maximum characters of columns with an index; an entry of a B-tree is bounded."""

INT32 = range(-(2**31), 2**31)

INSERTS: dict[str, Callable[[Table], Any]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}
"""The ``INSERT ... ON CONFLICT`` of each dialect."""

DocumentRow: TypeAlias = (
    type[RecordRow]
    | type[DevicePeaksRow]
    | type[TrialRow]
    | type[RetractionRow]
    | type[PlanRow]
)

TABLES: dict[DocumentKind, DocumentRow] = {
    "record": RecordRow,
    "peaks": DevicePeaksRow,
    "trial": TrialRow,
    "retraction": RetractionRow,
    "plan": PlanRow,
}

Row: TypeAlias = tuple[type[Base], dict[str, Any]]
"""A table, and the values of its columns."""


def make_rows(document: Document, serialized: Serialized | None = None) -> list[Row]:
    """Return the rows that store a document, each after those that it refers to.

    Args:
        document: the document to store.
        serialized: of a document that was parsed from JSON, if it is known.

    Raises:
        InvalidRecordError: if it would not round-trip, or has a value that a column
            cannot hold in SQLite or in PostgreSQL. So accepted documents can always be
            served, and merged into any other database.
    """
    if serialized is None:
        serialized = _round_trip(document)
    kind = get_kind(document)
    _check_id(document, serialized.text)
    rows: list[Row] = []
    if device := KINDS[kind].device(document):
        processor = None if device.processor is None else to_json(device.processor)
        values = make_columns(DeviceRow, device)
        rows.append((DeviceRow, values | {"processor": processor}))
    if isinstance(document, TuningRecord):
        # The environment was serialized as a part of the record.
        text = format_canonical(serialized.data["environment"])
        _check_id(document.environment, text)
        values = make_columns(EnvironmentRow, document.environment)
        rows.append((EnvironmentRow, values | {"document": text}))
        rows.append((WorkloadRow, make_columns(WorkloadRow, document)))
    values = make_columns(TABLES[kind], document)
    rows.append((TABLES[kind], values | {"document": serialized.text}))
    for _, values in rows:
        _check_columns(document, values)
    return rows


def make_columns(table: type[Base], document: object) -> dict[str, Any]:
    """Return the columns of a table that are derived from a document."""
    columns = {name: read(document) for name, read in table.sources.items()}
    # in documents, times are texts
    times = {k: v for k, v in columns.items() if k.endswith("_at")}
    return columns | {name: parse_instant(time) for name, time in times.items()}


def _round_trip(document: Document) -> Serialized:
    """Serialize a document made by a program, and check that it reads back equal."""
    try:
        serialized = serialize(document)
    except ValueError as error:
        raise InvalidRecordError(
            f"a fact without a text form was given ({error}); expected finite "
            "numbers everywhere"
        ) from None
    if to_json(from_json(type(document), serialized.text)) != serialized.text:
        raise InvalidRecordError(
            f"{type(document).__name__} {document.id}: it does not round-trip; "
            "expected every field to have its declared type, for example no int in "
            "place of a float"
        )
    return serialized


def _check_id(document: Any, text: str) -> None:
    """Check that the id of a document is the digest of its canonical text."""
    digest = digest_of(text)
    # sets the id of a document that has none yet, which saves serializing it again
    if vars(document).setdefault("id", digest) != digest:
        raise InvalidRecordError(
            f"{type(document).__name__} {document.id}: its content id is {digest}; "
            "expected them to be equal: its text is not in the canonical form"
        )


def _check_columns(document: Document, values: dict[str, Any]) -> None:
    """Refuse values that one of the two database systems cannot hold."""
    for name, value in values.items():
        max_length = MAX_INDEXED_LENGTHS.get(name)
        match value:
            case float() if not isfinite(value):
                problem = f"{value}, expected a finite number"
            case int() if value not in INT32:
                problem = "expected an integer of 32 bits"
            case str() if "\0" in value:
                problem = "expected a text without the character NUL"
            case str() if max_length is not None and len(value) > max_length:
                problem = f"expected {max_length} characters at most"
            case _:
                continue
        raise InvalidRecordError(
            f"{type(document).__name__} {document.id}: {name}: {problem}"
        )


def insert_missing(connection: Connection, rows: Iterable[Row]) -> int:
    """Insert those rows whose keys are missing; one statement per table.

    Returns:
        How many documents are new.
    """
    by_table: dict[type[Base], dict[str, dict[str, Any]]] = {}
    for row_class, values in rows:
        key = values["key"] if "key" in values else values["id"]
        by_table.setdefault(row_class, {}).setdefault(key, values)
    n_new = 0
    for row_class, by_key in by_table.items():
        table = row_class.__table__
        insert = INSERTS[connection.dialect.name](table).on_conflict_do_nothing()
        if row_class in TABLES.values():
            returning = insert.returning(*table.primary_key)
            n_new += len(connection.execute(returning, list(by_key.values())).all())
        else:
            connection.execute(insert, list(by_key.values()))
    return n_new


def read_documents(kind: DocumentKind, rows: Iterable[Any]) -> Iterator[Document]:
    """Parse rows of one kind; see :func:`read_document`."""
    documents = (read_document(kind, row) for row in rows)
    return (document for document in documents if document is not None)


def read_document(kind: DocumentKind, row: Any) -> Document | None:
    """Parse a row with the columns ``id`` and ``document``; log and skip a damaged one.

    Args:
        kind: the kind of the document.
        row: that of a record also has ``workload_key`` and ``device_id``, which must
            agree with the document. With a false ``is_trusted``, it is marked.
    """
    try:
        document = parse_document(kind, row.id, row.document)
    except InvalidRecordError as error:
        logger.error("row %s is skipped: %s", row.id, error)
        return None
    if isinstance(document, TuningRecord):
        # The columns are what a look-up filters by: if they are wrong, the record
        # would answer another query.
        columns = row.workload_key, row.device_id
        if columns != (document.workload, document.environment.device.id):
            logger.error("fact %s is skipped: its columns are damaged", row.id)
            return None
    return document if getattr(row, "is_trusted", True) else mark_untrusted(document)


def parse_device_row(columns: Sequence[Any]) -> Device:
    """Return the device of its :data:`DEVICE_COLUMNS`.

    An unreadable processor is omitted and logged: such a row is good enough to show,
    and facts contain their own devices.
    """
    fields = dict(zip(DEVICE_COLUMNS, columns, strict=True))
    if fields["processor"]:
        try:
            fields["processor"] = from_json(Processor, fields["processor"])
        except InvalidRecordError as error:
            logger.error("skipped the processor of a device: %s", error)
            fields["processor"] = None
    return Device(**fields)


# Statements

FactTable = type[RecordRow] | type[PlanRow] | type[DevicePeaksRow]

FACT_TABLES: tuple[FactTable, ...] = (RecordRow, PlanRow, DevicePeaksRow)

KEYS = (WorkloadRow.key, PlanRow.workload_key)
"""The columns with the keys of all facts."""

MAX_IDS = 500
"""Ids in one statement; SQLite limits the number of variables."""


def select_retracted(table: DocumentRow) -> ColumnElement[bool]:
    """Select whether a document was retracted, so that no look-up sees it."""
    return exists().where(RetractionRow.document_id == table.id)


def select_trusted(table: DocumentRow) -> ColumnElement[bool]:
    """Select whether a document was recorded here, or sent with a trusted key."""
    is_sent = exists().where(RecordingRow.record_id == table.id)
    return ~is_sent | is_sent.where(RecordingRow.is_trusted)


RETRACTED = select_retracted(RecordRow)

IS_TRUSTED = select_trusted(RecordRow)

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
    columns.append(select_trusted(table).label("is_trusted"))
    return select(*columns).where(~select_retracted(table))


# Building a statement takes as long as running it, so each is built once.
@cache
def filter_documents(
    kind: DocumentKind, filters: frozenset[str]
) -> Select[*tuple[Any, ...]] | None:
    """Select documents by bound parameters with the names of the filters.

    Args:
        kind: the kind of the documents.
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


MAX_CANDIDATES = 5
"""Ids that a refusal of an ambiguous one names."""


def complete(
    connection: Connection, start: str, columns: Iterable[ColumnElement[str]]
) -> str | None:
    """Return the only id or key in some columns that begins so; None without one.

    Args:
        connection: connection to the database.
        start: a whole one, or a part that reaches into its hexadecimal digits.
        columns: the columns, each with an index.

    Raises:
        InvalidRequestError: if several begin so, and none is ``start`` itself.
    """
    names: set[str] = set()
    for column in columns:
        # A range, since no digit follows f: not every index serves LIKE.
        beginning = select(column).where(column.between(start, f"{start}g")).distinct()
        names.update(
            connection.scalars(beginning.order_by(column).limit(MAX_CANDIDATES + 1))
        )
    candidates = sorted(name for name in names if name.startswith(start))
    if start in candidates or len(candidates) < 2:
        return next(iter(candidates), None)
    shown = candidates[:MAX_CANDIDATES]
    shown += ["..."] * (len(candidates) > MAX_CANDIDATES)
    raise InvalidRequestError(
        f"{start!r} begins several: {', '.join(shown)}; give more digits"
    )


def complete_id(
    connection: Connection, digits: str, *tables: DocumentRow | type[DeviceRow]
) -> str:
    """Return the only content id in some tables that begins so; a whole one is kept.

    Raises:
        RecordNotFoundError: if none begins so.
        InvalidRequestError: if several do.
    """
    if len(digits) == DIGITS:
        return digits
    whole_id = complete(connection, digits, [table.id for table in tables])
    if whole_id is None:
        raise RecordNotFoundError(
            f"no id begins with {digits!r}; expected the beginning of a stored one, or "
            f"all its {DIGITS} digits"
        )
    return whole_id


def split_into_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of the given size; the last one may be shorter.

    >>> list(split_into_batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def split_ids(ids: Collection[str]) -> Iterator[list[str]]:
    """Yield ids in order, as many as one statement can have."""
    return split_into_batches(sorted(ids), MAX_IDS)


def count_rows(connection: Connection, table: type[Base]) -> int:
    """Return the number of rows of a table."""
    return connection.execute(select(func.count()).select_from(table)).scalar_one()
