"""Totals of a database: its size, and its facts by driver, transform and workload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select, text

from feinsum.db.address import Location
from feinsum.db.sql.rows import RETRACTED, count_rows, split_ids
from feinsum.db.sql.schema import NEWEST
from feinsum.db.sql.tables import (
    DeviceRow,
    EnvironmentRow,
    PlanRow,
    RecordRow,
    RetractionRow,
    TrialRow,
    WorkloadRow,
)

SIZES = {
    "postgresql": "SELECT pg_database_size(current_database())",
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
}


@dataclass(frozen=True)
class DriverCount:
    """Counts for a device with a driver."""

    device_id: str
    device: str
    platform: str
    microarchitecture: str | None
    driver_version: str
    n_workloads: int
    n_records: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True)
class TransformCount:
    """Counts for a version of a transform."""

    name: str
    version: int
    n_workloads: int
    n_records: int
    highest_speedup: float


@dataclass(frozen=True)
class WorkloadCount:
    """Totals of a workload.

    Attributes:
        text: its canonical einsum.
        n_records: number of facts that are not retracted.
        n_devices: number of devices on which these were measured.
        highest_speedup: highest speed-up of these facts; None without one.
    """

    key: str
    text: str
    n_records: int
    n_devices: int
    n_trials: int
    highest_speedup: float | None


@dataclass(frozen=True)
class Statistics:
    """Properties and totals of a store.

    Attributes:
        location: path or URL, without a password.
        schema_version: version of the tables.
        n_records, n_workloads, n_devices, n_trials, n_retractions, n_plans: stored
            rows, including damaged and retracted ones. Workloads are those of records.
        size_bytes: size of the file, or of the whole database on a server.
        oldest, newest: times of records; None if there are none.
        drivers, transforms: counts without retracted facts, most records first.
    """

    location: str
    schema_version: str
    n_records: int
    n_workloads: int
    n_devices: int
    n_trials: int
    n_retractions: int
    n_plans: int
    size_bytes: int
    is_read_only: bool
    oldest: datetime | None
    newest: datetime | None
    drivers: tuple[DriverCount, ...]
    transforms: tuple[TransformCount, ...]


N_RECORDS = func.count()
N_WORKLOADS = func.count(RecordRow.workload_key.distinct())

DRIVER_COLUMNS = (
    DeviceRow.id,
    DeviceRow.name,
    DeviceRow.platform,
    DeviceRow.microarchitecture,
    EnvironmentRow.driver_version,
)

DRIVERS = (
    select(
        *DRIVER_COLUMNS,
        N_WORKLOADS,
        N_RECORDS,
        func.min(RecordRow.recorded_at),
        func.max(RecordRow.recorded_at),
    )
    .join_from(RecordRow, EnvironmentRow)
    .join(DeviceRow, DeviceRow.id == RecordRow.device_id)
    .where(~RETRACTED)
    .group_by(*DRIVER_COLUMNS)
    .order_by(N_RECORDS.desc(), DeviceRow.id, EnvironmentRow.driver_version)
)

TRANSFORM_COLUMNS = (RecordRow.transform_name, RecordRow.transform_version)

TRANSFORMS = (
    select(*TRANSFORM_COLUMNS, N_WORKLOADS, N_RECORDS, func.max(RecordRow.speedup))
    .where(~RETRACTED)
    .group_by(*TRANSFORM_COLUMNS)
    .order_by(
        N_RECORDS.desc(), RecordRow.transform_name, RecordRow.transform_version.desc()
    )
)

FACTS_BY_WORKLOAD = (
    select(
        RecordRow.workload_key,
        WorkloadRow.text,
        N_RECORDS,
        func.count(RecordRow.device_id.distinct()),
        func.max(RecordRow.speedup),
    )
    .join_from(RecordRow, WorkloadRow)
    .where(~RETRACTED)
    .group_by(RecordRow.workload_key, WorkloadRow.text)
)


def summarize(connection: Connection, location: Location) -> Statistics:
    """Count and measure a database with the newest schema."""
    size = connection.execute(text(SIZES[connection.dialect.name])).scalar_one()
    drivers = tuple(DriverCount(*row) for row in connection.execute(DRIVERS))
    return Statistics(
        location=str(location),
        schema_version=NEWEST,
        n_records=count_rows(connection, RecordRow),
        n_workloads=count_rows(connection, WorkloadRow),
        n_devices=count_rows(connection, DeviceRow),
        n_trials=count_rows(connection, TrialRow),
        n_retractions=count_rows(connection, RetractionRow),
        n_plans=count_rows(connection, PlanRow),
        size_bytes=int(size),
        is_read_only=location.is_read_only,
        oldest=min((driver.oldest for driver in drivers), default=None),
        newest=max((driver.newest for driver in drivers), default=None),
        drivers=drivers,
        transforms=tuple(TransformCount(*r) for r in connection.execute(TRANSFORMS)),
    )


def list_workloads(connection: Connection) -> tuple[WorkloadCount, ...]:
    """List workloads with facts or trials, by number of facts, of trials, by key."""
    key, n_trials = TrialRow.workload_key, dict[str, int]()
    for row in connection.execute(select(key, func.count()).group_by(key)):
        n_trials[row[0]] = row[1]
    counts = [
        WorkloadCount(key, text, n, n_devices, n_trials.get(key, 0), speedup)
        for key, text, n, n_devices, speedup in connection.execute(FACTS_BY_WORKLOAD)
    ]
    # A trial has no row in workloads: its text is in one of the documents.
    documents = select(key, func.min(TrialRow.document)).group_by(key)
    for chunk in split_ids({*n_trials} - {workload.key for workload in counts}):
        for workload, document in connection.execute(documents.where(key.in_(chunk))):
            einsum = json.loads(document).get("workload_text", "")
            n = n_trials[workload]
            counts.append(WorkloadCount(workload, einsum, 0, 0, n, None))
    counts.sort(key=lambda count: (-count.n_records, -count.n_trials, count.key))
    return tuple(counts)
