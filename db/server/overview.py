"""Overviews for people: totals, latest facts, drivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from feinsum.db.server.pages import HAS_FACT, IS_MEASURED, LENGTHS, fitting
from feinsum.db.sql.info import count
from feinsum.db.sql.retracting import hidden
from feinsum.db.sql.statements import IS_TRUSTED, MARKED, RETRACTED, sound_records
from feinsum.db.sql.tables import (
    DeviceRow,
    EnvironmentRow,
    RecordRow,
    WorkloadRow,
)
from feinsum.records import TuningRecord

MOST_DRIVERS = 100


@dataclass(frozen=True)
class Overview:
    """Totals of a database; facts hidden from look-ups are not counted."""

    n_facts: int
    n_workloads: int
    n_devices: int


@dataclass(frozen=True)
class DriverOf:
    """A driver of a device, and the facts that were measured with it.

    Attributes:
        oldest, newest: when the first and the last of them were recorded.
    """

    version: str
    n_workloads: int
    n_facts: int
    oldest: datetime
    newest: datetime


def overview(connection: Connection) -> Overview:
    """Count the contents."""
    n_facts = count(connection, RecordRow) - hidden(connection)
    known = select(func.count()).select_from(WorkloadRow).where(HAS_FACT)
    n_workloads = connection.execute(known).scalar_one()
    measured = select(func.count()).select_from(DeviceRow).where(IS_MEASURED)
    n_devices = connection.execute(measured).scalar_one()
    return Overview(n_facts, n_workloads, n_devices)


def latest_facts(
    connection: Connection, limit: int, device_id: str | None = None
) -> tuple[TuningRecord, ...]:
    """The facts recorded last, newest first."""
    latest = LENGTHS.where(~RETRACTED)
    if device_id is not None:
        latest = latest.where(RecordRow.device_id == device_id)
    newest_first = latest.order_by(RecordRow.recorded_at.desc(), RecordRow.id)
    return _records(connection, fitting(connection, newest_first, limit))


def fastest_facts(
    connection: Connection, workload: str, limit: int
) -> tuple[TuningRecord, ...]:
    """The facts of a workload, as many as fit: trusted ones first, then by speed-up."""
    found = LENGTHS.where(RecordRow.workload_key == workload, ~RETRACTED)
    by = IS_TRUSTED.desc(), RecordRow.speedup.desc(), RecordRow.id
    ordered = found.order_by(*by)
    return _records(connection, fitting(connection, ordered, limit))


def _records(connection: Connection, ids: Sequence[str]) -> tuple[TuningRecord, ...]:
    """The sound records of some ids, in their order."""
    rows = connection.execute(MARKED.where(RecordRow.id.in_(ids))).all()
    found = {record.id: record for record in sound_records(rows, has_trust=True)}
    return tuple(found[one] for one in ids if one in found)


def drivers_of(connection: Connection, device_id: str) -> tuple[DriverOf, ...]:
    """The drivers with which a device was measured, latest first."""
    newest = func.max(RecordRow.recorded_at)
    drivers = (
        select(
            EnvironmentRow.driver_version,
            func.count(RecordRow.workload_key.distinct()),
            func.count(),
            func.min(RecordRow.recorded_at),
            newest,
        )
        .join_from(RecordRow, EnvironmentRow)
        .where(RecordRow.device_id == device_id, ~RETRACTED)
        .group_by(EnvironmentRow.driver_version)
        .order_by(newest.desc(), EnvironmentRow.driver_version)
        .limit(MOST_DRIVERS)
    )
    return tuple(DriverOf(*row) for row in connection.execute(drivers))
