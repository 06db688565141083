"""Lists of the service: pages of workloads, devices and facts, and totals.

A page ends after ``limit`` entries or about a megabyte of text, whichever comes first.
The ids and lengths of the entries are read first, then the entries of the page, so that
no long document is read in vain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import ColumnElement, Connection, Select, exists, func, or_, select

from feinsum.db.sql.retracting import count_records
from feinsum.db.sql.rows import (
    DEVICE_COLUMNS,
    IS_TRUSTED,
    RETRACTED,
    TABLES,
    parse_device_row,
    read_documents,
    select_documents,
    select_retracted,
    select_trusted,
)
from feinsum.db.sql.statistics import DRIVERS, DriverCount
from feinsum.db.sql.tables import (
    DevicePeaksRow,
    DeviceRow,
    EnvironmentRow,
    PlanRow,
    RecordRow,
    TrialRow,
    WorkloadRow,
)
from feinsum.records import Device, DocumentKind, TuningRecord


@dataclass(frozen=True)
class Having:
    """Filters for a list of workloads; empty ones do not apply.

    Attributes:
        key: prefix of the key or of its digest.
        transform: prefix of the name of a transform with facts.
        dtype: numpy's name of the dtype of an operand.
        device: id of a device with facts, of which alone facts are counted.
    """

    key: str = ""
    transform: str = ""
    dtype: str = ""
    device: str = ""


@dataclass(frozen=True)
class ListedWorkload:
    """A workload, its text as first recorded, and its facts.

    Attributes:
        speedup: the highest one of its facts.
    """

    key: str
    text: str
    n_facts: int
    speedup: float


@dataclass(frozen=True)
class ListedDevice:
    """A device, and how many facts were measured there.

    Attributes:
        n_characters: length of its texts.
    """

    id: str
    device: Device
    n_facts: int
    n_characters: int = 0


@dataclass(frozen=True)
class ListedFact:
    """A fact as its document, which is JSON text.

    Attributes:
        is_trusted: see :mod:`feinsum.db.sql.trust`.
    """

    id: str
    document: str
    is_trusted: bool


@dataclass(frozen=True)
class Overview:
    """Totals of a database; facts hidden from look-ups are not counted."""

    n_facts: int
    n_workloads: int
    n_devices: int


MAX_DRIVERS = 100

MAX_CHARACTERS = 1_000_000
"""Characters of the entries of one page; the entry that exceeds them is its last."""

DTYPE_CODES = {
    "float64": "<f8", "float32": "<f4", "complex128": "<c16", "complex64": "<c8",
}  # fmt: skip
"""How texts of workloads write dtypes."""

BAR = " | "

Order: TypeAlias = Literal["key", "speedup", "facts", "latest"]
"""Orders of workloads: by key, or first those with the highest speed-up, the most facts
or the latest fact.
"""

ORDER_VALUES: dict[Order, ColumnElement[Any]] = {
    "speedup": func.max(RecordRow.speedup),
    "facts": func.count(),
    "latest": func.max(RecordRow.recorded_at),
}

HAS_FACT = exists().where(RecordRow.workload_key == WorkloadRow.key, ~RETRACTED)
"""Look-ups see a fact of the workload."""

IS_MEASURED = or_(
    exists().where(RecordRow.device_id == DeviceRow.id, ~RETRACTED),
    exists().where(TrialRow.device_id == DeviceRow.id),
    *(
        exists().where(table.device_id == DeviceRow.id, ~select_retracted(table))
        for table in (PlanRow, DevicePeaksRow)
    ),
)
"""The same for a device, with its trials, plans and limits."""

N_CHARACTERS = (
    func.length(DeviceRow.name)
    + func.length(DeviceRow.platform)
    + func.length(func.coalesce(DeviceRow.processor, ""))
)

RECORD_LENGTHS = select(RecordRow.id, func.length(RecordRow.document))


def is_cut(lengths: Iterable[int]) -> bool:
    """Return whether entries of these lengths are too long for one page.

    >>> is_cut([10, 20]), is_cut([10, MAX_CHARACTERS - 10])
    (False, True)
    """
    return sum(lengths) >= MAX_CHARACTERS


def select_fitting_ids(
    connection: Connection, entries: Select[str, int], limit: int
) -> list[str]:
    """Select the ids of the entries of a page, given ids and lengths in order."""
    ids: list[str] = []
    n_characters = 0
    # Rows arrive one by one, so the rest of a long page is never read.
    for entry_id, length in connection.execute(entries.limit(limit)):
        ids.append(entry_id)
        n_characters += length or 0
        if n_characters >= MAX_CHARACTERS:
            break
    return ids


# Workloads


def list_workload_page(
    connection: Connection, after: str, limit: int
) -> tuple[ListedWorkload, ...]:
    """Return workloads with facts by key, after ``after``."""
    page = select(WorkloadRow.key, func.length(WorkloadRow.text))
    page = page.where(WorkloadRow.key > after, HAS_FACT).order_by(WorkloadRow.key)
    return get_workloads(connection, select_fitting_ids(connection, page, limit))


def list_ordered_keys(
    connection: Connection,
    start: int,
    limit: int,
    order: Order,
    having: Having,
    notations: Collection[str] | None = None,
) -> list[str]:
    """List the keys of a page of workloads in a given order.

    ``start`` is how many come before the page. With notations, only workloads whose
    texts begin so are listed; see :func:`find_notations`.

    Complexity: reads the facts of all workloads that fit, though not their documents.
    """
    page = select(WorkloadRow.key, func.length(WorkloadRow.text))
    page = page.where(*_make_conditions(having))
    if notations is not None:
        page = page.where(_select_notation(connection).in_(notations))
    if order != "key":
        page = page.order_by(
            _select_fact_value(ORDER_VALUES[order], having.device).desc()
        )
    page = page.order_by(WorkloadRow.key).offset(start)
    return select_fitting_ids(connection, page, limit)


def get_workloads(
    connection: Connection, keys: Sequence[str], device_id: str = ""
) -> tuple[ListedWorkload, ...]:
    """Return workloads by their keys, in the same order, without those of no fact."""
    statement = select(
        WorkloadRow.key,
        WorkloadRow.text,
        _select_fact_value(func.count(), device_id),
        _select_fact_value(func.max(RecordRow.speedup), device_id),
    )
    rows = connection.execute(statement.where(WorkloadRow.key.in_(keys)))
    workloads = {row[0]: ListedWorkload(*row) for row in rows if row[2]}
    return tuple(workloads[key] for key in keys if key in workloads)


def find_notations(connection: Connection) -> frozenset[str]:
    """Return the subscripts in the texts of workloads: ``i j, j -> i``.

    Complexity: reads the text of every workload.
    """
    notations = select(_select_notation(connection)).where(HAS_FACT)
    return frozenset(connection.scalars(notations.distinct()))


def _make_conditions(having: Having) -> Iterator[ColumnElement[bool]]:
    yield exists().where(*_make_fact_conditions(having.device))
    if having.key:
        # People copy a whole key, or only its digest from a message.
        start, digest = having.key, f"-{having.key}"
        yield or_(
            WorkloadRow.key.startswith(start, autoescape=True),
            WorkloadRow.key.contains(digest, autoescape=True),
        )
    if having.transform:
        begins = RecordRow.transform_name.startswith(having.transform, autoescape=True)
        yield WorkloadRow.key.in_(
            select(RecordRow.workload_key).where(begins, ~RETRACTED)
        )
    if having.dtype:
        code = DTYPE_CODES.get(having.dtype, having.dtype)
        yield WorkloadRow.text.contains(f"]:{code} ", autoescape=True)


def _make_fact_conditions(device_id: str) -> list[ColumnElement[bool]]:
    """Return the conditions on facts of a workload, on one device or on all."""
    on_device = [RecordRow.device_id == device_id] if device_id else []
    return [RecordRow.workload_key == WorkloadRow.key, *on_device, ~RETRACTED]


def _select_fact_value(value: ColumnElement[Any], device_id: str) -> ColumnElement[Any]:
    """Return a value of the facts of each workload, as a correlated subquery."""
    facts = select(value).select_from(RecordRow)
    return facts.where(*_make_fact_conditions(device_id)).scalar_subquery()


def _select_notation(connection: Connection) -> ColumnElement[str]:
    """Return the part of a workload's text before the first ``|``."""
    if connection.dialect.name == "postgresql":
        return func.split_part(WorkloadRow.text, BAR, 1)
    length = func.instr(WorkloadRow.text, BAR) - 1
    return func.substr(WorkloadRow.text, 1, length)


# Devices


def count_by_device(connection: Connection) -> Mapping[str, int]:
    """Count the facts of every device that look-ups see.

    Complexity: reads all facts, though not their documents.
    """
    counts = select(RecordRow.device_id, func.count()).where(~RETRACTED)
    rows = connection.execute(counts.group_by(RecordRow.device_id))
    return {row[0]: row[1] for row in rows}


def is_device_named(text: str) -> ColumnElement[bool]:
    """Select devices whose names or microarchitectures contain a text in any case."""
    microarchitecture = func.coalesce(DeviceRow.microarchitecture, "")
    words = func.lower(DeviceRow.name + " " + microarchitecture)
    return words.contains(text.lower(), autoescape=True)


def list_devices(
    connection: Connection,
    condition: ColumnElement[bool],
    limit: int,
    counts: Mapping[str, int],
) -> tuple[ListedDevice, ...]:
    """Return a page of the measured devices that meet a condition, ordered by id.

    Their numbers of facts are those of :func:`count_by_device`.
    """
    page = select(DeviceRow.id, N_CHARACTERS).where(condition, IS_MEASURED)
    among = select_fitting_ids(connection, page.order_by(DeviceRow.id), limit)
    columns = (getattr(DeviceRow, name) for name in DEVICE_COLUMNS)
    devices = select(DeviceRow.id, N_CHARACTERS, *columns).where(
        DeviceRow.id.in_(among)
    )
    return tuple(
        ListedDevice(id_, parse_device_row(columns), counts.get(id_, 0), n_characters)
        for id_, n_characters, *columns in connection.execute(
            devices.order_by(DeviceRow.id)
        )
    )


def list_drivers(connection: Connection, device_id: str) -> tuple[DriverCount, ...]:
    """Return the drivers with which a device was measured, latest first."""
    newest_first = func.max(RecordRow.recorded_at).desc()
    of_device = DRIVERS.where(RecordRow.device_id == device_id).order_by(None)
    drivers = of_device.order_by(newest_first, EnvironmentRow.driver_version)
    rows = connection.execute(drivers.limit(MAX_DRIVERS))
    return tuple(DriverCount(*row) for row in rows)


# Facts and plans


def list_documents(
    connection: Connection,
    after: str,
    limit: int,
    workload: str | None = None,
    device_id: str | None = None,
    *,
    kind: DocumentKind,
    only_trusted: bool = False,
) -> tuple[ListedFact, ...]:
    """Return facts of a kind that look-ups see, by id, after ``after``."""
    table = TABLES[kind]
    conditions = {"workload_key": workload, "device_id": device_id}
    page = select(table.id, func.length(table.document))
    page = page.where(table.id > after, ~select_retracted(table)).order_by(table.id)
    for name, value in conditions.items():
        if value is not None:
            page = page.where(table.__table__.c[name] == value)
    if only_trusted:
        page = page.where(select_trusted(table))
    among = table.id.in_(select_fitting_ids(connection, page, limit))
    documents = select(table.id, table.document, select_trusted(table)).where(among)
    rows = connection.execute(documents.order_by(table.id))
    return tuple(ListedFact(*row) for row in rows)


def list_latest_facts(
    connection: Connection, limit: int, device_id: str | None = None
) -> tuple[TuningRecord, ...]:
    """Return the facts recorded last, newest first."""
    latest = RECORD_LENGTHS.where(~RETRACTED)
    if device_id is not None:
        latest = latest.where(RecordRow.device_id == device_id)
    newest_first = latest.order_by(RecordRow.recorded_at.desc(), RecordRow.id)
    return _read_records(
        connection, select_fitting_ids(connection, newest_first, limit)
    )


def list_fastest_facts(
    connection: Connection, workload: str, limit: int
) -> tuple[TuningRecord, ...]:
    """Return the facts of a workload that fit: trusted ones first, by speed-up."""
    facts = RECORD_LENGTHS.where(RecordRow.workload_key == workload, ~RETRACTED)
    ordered = facts.order_by(IS_TRUSTED.desc(), RecordRow.speedup.desc(), RecordRow.id)
    return _read_records(connection, select_fitting_ids(connection, ordered, limit))


def _read_records(
    connection: Connection, ids: Sequence[str]
) -> tuple[TuningRecord, ...]:
    """Return the valid records with some ids, in their order."""
    statement = select_documents("record").where(RecordRow.id.in_(ids))
    rows = connection.execute(statement).all()
    records = {record.id: record for record in read_documents("record", rows)}
    return tuple(cast(TuningRecord, records[i]) for i in ids if i in records)


def count_contents(connection: Connection) -> Overview:
    """Count the contents."""
    workloads = select(func.count()).select_from(WorkloadRow).where(HAS_FACT)
    devices = select(func.count()).select_from(DeviceRow).where(IS_MEASURED)
    return Overview(
        count_records(connection),
        connection.execute(workloads).scalar_one(),
        connection.execute(devices).scalar_one(),
    )
