"""Pages: the contents of a database, in order and part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Connection, Select, exists, func, or_, select

from feinsum.db.sql.retracting import KEPT
from feinsum.db.sql.rows import DEVICE_COLUMNS, device_of
from feinsum.db.sql.statements import (
    RETRACTED,
    retracted,
    trusted,
)
from feinsum.db.sql.tables import (
    DevicePeaksRow,
    DeviceRow,
    PlanRow,
    RecordRow,
    TrialRow,
    WorkloadRow,
)
from feinsum.records import Device


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
        is_trusted: see :mod:`feinsum.db.server.trust`.
    """

    id: str
    document: str
    is_trusted: bool


MOST_CHARACTERS = 1_000_000
"""Characters of the entries of one page; the entry that exceeds them is its last."""

CODES = {
    "float64": "<f8", "float32": "<f4", "complex128": "<c16", "complex64": "<c8",
}  # fmt: skip
"""How texts of workloads write dtypes."""

BAR = " | "

Order: TypeAlias = Literal["key", "speedup", "facts", "latest"]
"""Of workloads: by key, or those first with the highest speed-up, the most facts, or
the latest fact.
"""

BY: dict[Order, ColumnElement[Any]] = {
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
        exists().where(row.device_id == DeviceRow.id, ~retracted(row))
        for row in (PlanRow, DevicePeaksRow)
    ),
)
"""The same for a device, with its trials, plans and limits."""

CHARACTERS = (
    func.length(DeviceRow.name)
    + func.length(DeviceRow.platform)
    + func.length(func.coalesce(DeviceRow.processor, ""))
)

DEVICES = select(
    DeviceRow.id,
    CHARACTERS,
    *(getattr(DeviceRow, name) for name in DEVICE_COLUMNS),
)
"""Those of :class:`ListedDevice`, without the number of facts."""

Counts: TypeAlias = Mapping[str, int]
"""How many facts there are by the id of a device; see :func:`count_by_device`."""


def is_cut(lengths: Iterable[int]) -> bool:
    """Whether a page of entries of these lengths ends for want of room.

    >>> is_cut([10, 20]), is_cut([10, MOST_CHARACTERS - 10])
    (False, True)
    """
    return sum(lengths) >= MOST_CHARACTERS


def fitting(connection: Connection, entries: Select[str, int], limit: int) -> list[str]:
    """The ids of the entries of a page, of which only the lengths are read.

    Args:
        entries: ids and lengths, in order.
    """
    ids: list[str] = []
    n_characters = 0
    for entry_id, length in connection.execute(entries.limit(limit)):
        ids.append(entry_id)
        n_characters += length or 0
        if n_characters >= MOST_CHARACTERS:
            break
    return ids


def known_ids(connection: Connection, record_ids: Sequence[str]) -> frozenset[str]:
    """Those of some ids that are of stored facts, retracted or not."""
    found = (select(row.id).where(row.id.in_(record_ids)) for row in KEPT)
    return frozenset(one for ids in found for one in connection.scalars(ids))


def page_of_workloads(
    connection: Connection, after: str, limit: int
) -> tuple[ListedWorkload, ...]:
    """Workloads with facts by key, after ``after``."""
    page = select(WorkloadRow.key, func.length(WorkloadRow.text))
    page = page.where(WorkloadRow.key > after, HAS_FACT).order_by(WorkloadRow.key)
    return workloads_in(connection, fitting(connection, page, limit))


def ordered_workloads(
    connection: Connection,
    start: int,
    limit: int,
    order: Order,
    having: Having,
    notations: Collection[str] | None = None,
) -> list[str]:
    """The keys of a page of workloads, in an order.

    Args:
        start: how many come before the page.
        notations: only workloads whose texts begin so; see :func:`notations_in`.

    Complexity: reads the facts of all workloads that fit, though not their documents.
    """
    page = select(WorkloadRow.key, func.length(WorkloadRow.text))
    page = page.where(*_conditions(having))
    if notations is not None:
        page = page.where(_notation(connection).in_(notations))
    by = [] if order == "key" else [_of_facts(BY[order], having.device).desc()]
    page = page.order_by(*by, WorkloadRow.key).offset(start)
    return fitting(connection, page, limit)


def workloads_in(
    connection: Connection, keys: Sequence[str], device_id: str = ""
) -> tuple[ListedWorkload, ...]:
    """Workloads by their keys, in the same order, without those that have no fact."""
    workloads = select(
        WorkloadRow.key,
        WorkloadRow.text,
        _of_facts(func.count(), device_id),
        _of_facts(func.max(RecordRow.speedup), device_id),
    )
    rows = connection.execute(workloads.where(WorkloadRow.key.in_(keys)))
    found = {row[0]: ListedWorkload(*row) for row in rows if row[2]}
    return tuple(found[key] for key in keys if key in found)


def _facts_of_workload(device_id: str) -> list[ColumnElement[bool]]:
    """What the facts of a workload satisfy, on one device or on all."""
    on_device = [RecordRow.device_id == device_id] if device_id else []
    return [RecordRow.workload_key == WorkloadRow.key, *on_device, ~RETRACTED]


def _of_facts(value: ColumnElement[Any], device_id: str) -> ColumnElement[Any]:
    """A value of the facts of each workload."""
    facts = select(value).select_from(RecordRow)
    return facts.where(*_facts_of_workload(device_id)).scalar_subquery()


def _conditions(having: Having) -> Iterator[ColumnElement[bool]]:
    yield exists().where(*_facts_of_workload(having.device))
    if having.key:
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
        code = CODES.get(having.dtype, having.dtype)
        yield WorkloadRow.text.contains(f"]:{code} ", autoescape=True)


def count_by_device(connection: Connection) -> Counts:
    """The number of facts of every device; those that look-ups see.

    Complexity: reads all facts, though not their documents.
    """
    counts = select(RecordRow.device_id, func.count()).where(~RETRACTED)
    rows = connection.execute(counts.group_by(RecordRow.device_id))
    return {row[0]: row[1] for row in rows}


def devices_named(
    connection: Connection, part: str, limit: int, counts: Counts
) -> tuple[ListedDevice, ...]:
    """Devices whose names and microarchitectures contain a text, ignoring case."""
    design = func.coalesce(DeviceRow.microarchitecture, "")
    words = func.lower(DeviceRow.name + " " + design)
    is_named = words.contains(part.lower(), autoescape=True)
    page = select(DeviceRow.id, CHARACTERS).where(is_named, IS_MEASURED)
    among = fitting(connection, page.order_by(DeviceRow.id), limit)
    rows = DEVICES.where(DeviceRow.id.in_(among)).order_by(DeviceRow.name, DeviceRow.id)
    return tuple(_device_of(row, counts) for row in connection.execute(rows))


def find_workload(
    connection: Connection, key: str, device_id: str = ""
) -> ListedWorkload | None:
    """The workload of a key, if it has a fact, on a device if one is given."""
    found = workloads_in(connection, [key], device_id)
    return found[0] if found else None


def notations_in(connection: Connection) -> frozenset[str]:
    """The subscripts in the texts of workloads: ``i j, j -> i``.

    Complexity: reads the text of every workload.
    """
    known = select(_notation(connection)).where(HAS_FACT)
    return frozenset(connection.scalars(known.distinct()))


def _notation(connection: Connection) -> ColumnElement[str]:
    """The part of a workload's text before the first ``|``."""
    if connection.dialect.name == "postgresql":
        return func.split_part(WorkloadRow.text, BAR, 1)
    length = func.instr(WorkloadRow.text, BAR) - 1
    return func.substr(WorkloadRow.text, 1, length)


def page_of_devices(
    connection: Connection, after: str, limit: int, counts: Counts
) -> tuple[ListedDevice, ...]:
    """Devices by id, after ``after``."""
    page = select(DeviceRow.id, CHARACTERS).where(DeviceRow.id > after, IS_MEASURED)
    among = fitting(connection, page.order_by(DeviceRow.id), limit)
    rows = DEVICES.where(DeviceRow.id.in_(among)).order_by(DeviceRow.id)
    return tuple(_device_of(row, counts) for row in connection.execute(rows))


def find_device(
    connection: Connection, device_id: str, counts: Counts
) -> ListedDevice | None:
    """The device of an id."""
    wanted = DEVICES.where(DeviceRow.id == device_id, IS_MEASURED)
    row = connection.execute(wanted).first()
    return None if row is None else _device_of(row, counts)


def _device_of(row: Any, counts: Counts) -> ListedDevice:
    device_id, n_characters, *columns = row
    n_facts = counts.get(device_id, 0)
    return ListedDevice(device_id, device_of(columns), n_facts, n_characters)


LENGTHS = select(RecordRow.id, func.length(RecordRow.document))


def page_of_facts(
    connection: Connection,
    after: str,
    limit: int,
    workload: str | None = None,
    device_id: str | None = None,
) -> tuple[ListedFact, ...]:
    """Facts by id, from behind ``after``; those that look-ups see."""
    page = LENGTHS.where(RecordRow.id > after, ~RETRACTED)
    if workload is not None:
        page = page.where(RecordRow.workload_key == workload)
    if device_id is not None:
        page = page.where(RecordRow.device_id == device_id)
    return _facts(connection, RecordRow, page, limit)


def page_of_plans(
    connection: Connection,
    after: str,
    limit: int,
    workload: str | None = None,
    *,
    only_trusted: bool = False,
) -> tuple[ListedFact, ...]:
    """Plans by id, after ``after``; those that look-ups see."""
    page = select(PlanRow.id, func.length(PlanRow.document))
    page = page.where(PlanRow.id > after, ~retracted(PlanRow))
    if workload is not None:
        page = page.where(PlanRow.workload_key == workload)
    if only_trusted:
        page = page.where(trusted(PlanRow))
    return _facts(connection, PlanRow, page, limit)


def _facts(
    connection: Connection,
    row: type[RecordRow | PlanRow],
    page: Select[str, int],
    limit: int,
) -> tuple[ListedFact, ...]:
    ids = fitting(connection, page.order_by(row.id), limit)
    documents = select(row.id, row.document, trusted(row)).where(row.id.in_(ids))
    rows = connection.execute(documents.order_by(row.id))
    return tuple(ListedFact(*one) for one in rows)
