"""Pages: what a database holds, in order and a part at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from feinsum.db.statements import TRUSTED
from feinsum.db.tables import DeviceRow, QuarantineRow, RecordRow, WorkloadRow
from feinsum.records import Device

__all__ = [
    "ListedDevice",
    "ListedFact",
    "ListedWorkload",
    "known_ids",
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


def known_ids(connection: Connection, record_ids: Sequence[str]) -> frozenset[str]:
    """Those of some ids that are stored, in quarantine or not."""
    found = select(RecordRow.id).where(RecordRow.id.in_(record_ids))
    return frozenset(connection.scalars(found))


def page_of_workloads(
    connection: Connection, after: str, limit: int
) -> tuple[ListedWorkload, ...]:
    """Workloads by key, from behind ``after``."""
    n_facts = (
        select(func.count())
        .select_from(RecordRow)
        .where(RecordRow.workload_key == WorkloadRow.key, TRUSTED)
        .scalar_subquery()
    )
    page = (
        select(WorkloadRow.key, WorkloadRow.text, n_facts)
        .where(WorkloadRow.key > after)
        .order_by(WorkloadRow.key)
    )
    return tuple(ListedWorkload(*row) for row in connection.execute(page.limit(limit)))


def page_of_devices(
    connection: Connection, after: str, limit: int
) -> tuple[ListedDevice, ...]:
    """Devices by id, from behind ``after``."""
    n_facts = (
        select(func.count())
        .select_from(RecordRow)
        .where(RecordRow.device_id == DeviceRow.id, TRUSTED)
        .scalar_subquery()
    )
    page = (
        select(
            DeviceRow.id,
            n_facts,
            DeviceRow.platform,
            DeviceRow.name,
            DeviceRow.vendor,
            DeviceRow.kind,
            DeviceRow.architecture,
            DeviceRow.compute_units,
        )
        .where(DeviceRow.id > after)
        .order_by(DeviceRow.id)
    )
    return tuple(
        ListedDevice(device_id, Device(*columns), count)
        for device_id, count, *columns in connection.execute(page.limit(limit))
    )


def page_of_facts(
    connection: Connection,
    after: str,
    limit: int,
    workload: str | None = None,
    device_id: str | None = None,
) -> tuple[ListedFact, ...]:
    """Facts by id, from behind ``after``; none that is in quarantine."""
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
    """Facts in quarantine by id, from behind ``after``."""
    page = (
        select(RecordRow.id, RecordRow.document)
        .join(QuarantineRow, QuarantineRow.record_id == RecordRow.id)
        .where(RecordRow.id > after)
        .order_by(RecordRow.id)
    )
    return tuple(ListedFact(*row) for row in connection.execute(page.limit(limit)))
