"""Pages: what a database holds, in order and a part at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, func, select

from feinsum.db.sql.rows import DEVICE_COLUMNS, device_of
from feinsum.db.sql.statements import RETRACTED, TRUSTED
from feinsum.db.sql.tables import (
    DeviceRow,
    QuarantineRow,
    RecordRow,
    VerdictRow,
    WorkloadRow,
)
from feinsum.records import Device

__all__ = [
    "ListedDevice",
    "ListedFact",
    "ListedWorkload",
    "find_device",
    "find_workload",
    "known_ids",
    "notations_in",
    "page_of_devices",
    "page_of_facts",
    "page_of_quarantine",
    "page_of_workloads",
]


@dataclass(frozen=True)
class ListedWorkload:
    """A workload, its text as first recorded, and how many facts it has."""

    key: str
    text: str
    n_facts: int


@dataclass(frozen=True)
class ListedDevice:
    """A device, and how many facts were measured there."""

    id: str
    device: Device
    n_facts: int


@dataclass(frozen=True)
class ListedFact:
    """A fact as its document, which is JSON text."""

    id: str
    document: str


BAR = " | "

WORKLOADS = select(
    WorkloadRow.key,
    WorkloadRow.text,
    select(func.count())
    .select_from(RecordRow)
    .where(RecordRow.workload_key == WorkloadRow.key, TRUSTED)
    .scalar_subquery(),
)
"""The columns of :class:`ListedWorkload`."""

HAS_FACT = exists().where(RecordRow.workload_key == WorkloadRow.key, ~RETRACTED)
"""Something is recorded of the workload, in quarantine or not."""

DEVICES = select(
    DeviceRow.id,
    select(func.count())
    .select_from(RecordRow)
    .where(RecordRow.device_id == DeviceRow.id, TRUSTED)
    .scalar_subquery(),
    *(getattr(DeviceRow, name) for name in DEVICE_COLUMNS),
)
"""Those of :class:`ListedDevice`."""


def known_ids(connection: Connection, record_ids: Sequence[str]) -> frozenset[str]:
    """Those of some ids that are stored, in quarantine or not."""
    found = select(RecordRow.id).where(RecordRow.id.in_(record_ids))
    return frozenset(connection.scalars(found))


def page_of_workloads(
    connection: Connection,
    after: str,
    limit: int,
    notations: Collection[str] | None = None,
) -> tuple[ListedWorkload, ...]:
    """Workloads by key, from behind ``after``; none whose facts are all retracted.

    Args:
        notations: only workloads whose texts begin so; see :func:`notations_in`.
    """
    page = WORKLOADS.where(WorkloadRow.key > after, HAS_FACT)
    if notations is not None:
        page = page.where(_notation(connection).in_(notations))
    rows = connection.execute(page.order_by(WorkloadRow.key).limit(limit))
    return tuple(ListedWorkload(*row) for row in rows)


def find_workload(connection: Connection, key: str) -> ListedWorkload | None:
    """The workload of a key."""
    wanted = WORKLOADS.where(WorkloadRow.key == key, HAS_FACT)
    row = connection.execute(wanted).first()
    return None if row is None else ListedWorkload(*row)


def notations_in(connection: Connection) -> frozenset[str]:
    """What stands before the operands in the texts of workloads: ``i j, j -> i``.

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
    connection: Connection, after: str, limit: int
) -> tuple[ListedDevice, ...]:
    """Devices by id, from behind ``after``."""
    page = DEVICES.where(DeviceRow.id > after).order_by(DeviceRow.id)
    return tuple(map(_device_of, connection.execute(page.limit(limit))))


def find_device(connection: Connection, device_id: str) -> ListedDevice | None:
    """The device of an id."""
    row = connection.execute(DEVICES.where(DeviceRow.id == device_id)).first()
    return None if row is None else _device_of(row)


def _device_of(row: Any) -> ListedDevice:
    device_id, n_facts, *columns = row
    return ListedDevice(device_id, device_of(columns), n_facts)


def page_of_facts(
    connection: Connection,
    after: str,
    limit: int,
    workload: str | None = None,
    device_id: str | None = None,
) -> tuple[ListedFact, ...]:
    """Facts by id, from behind ``after``; those that look-ups see."""
    page = select(RecordRow.id, RecordRow.document).where(RecordRow.id > after, TRUSTED)
    if workload is not None:
        page = page.where(RecordRow.workload_key == workload)
    if device_id is not None:
        page = page.where(RecordRow.device_id == device_id)
    rows = connection.execute(page.order_by(RecordRow.id).limit(limit))
    return tuple(ListedFact(*row) for row in rows)


def page_of_quarantine(
    connection: Connection, after: str, limit: int
) -> tuple[ListedFact, ...]:
    """Facts that wait in quarantine by id, from behind ``after``; none rejected."""
    page = (
        select(RecordRow.id, RecordRow.document)
        .join(QuarantineRow, QuarantineRow.record_id == RecordRow.id)
        .outerjoin(VerdictRow, VerdictRow.record_id == RecordRow.id)
        .where(RecordRow.id > after, VerdictRow.record_id.is_(None), ~RETRACTED)
        .order_by(RecordRow.id)
    )
    return tuple(ListedFact(*row) for row in connection.execute(page.limit(limit)))
