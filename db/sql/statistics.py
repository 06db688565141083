"""Totals of a database: its size, and its facts by driver, transform and workload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select, text

from feinsum.db.sql.location import Location
from feinsum.db.sql.schema import NEWEST
from feinsum.db.sql.statements import MAX_IDS, RETRACTED, count
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
class StoreInfo:
    """Properties and totals of a store.

    Attributes:
        location: path or URL, without a password.
        schema_version: version of the tables.
        n_records, n_workloads, n_devices, n_trials, n_retractions, n_plans: stored
            rows, including damaged and retracted ones. Workloads are those of records.
        size_bytes: size of the file, or of the whole database on a server.
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
class Statistics:
    """The facts of a database, counted.

    Attributes:
        drivers: drivers with the most records first; likewise transforms.
        oldest, newest: times of records; None if there are none.
    """

    drivers: tuple[DriverCount, ...]
    transforms: tuple[TransformCount, ...]

    @property
    def oldest(self) -> datetime | None:
        return min((count.oldest for count in self.drivers), default=None)

    @property
    def newest(self) -> datetime | None:
        return max((count.newest for count in self.drivers), default=None)


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

TRANSFORMS = (
    select(
        RecordRow.transform_name,
        RecordRow.transform_version,
        N_WORKLOADS,
        N_RECORDS,
        func.max(RecordRow.speedup),
    )
    .where(~RETRACTED)
    .group_by(RecordRow.transform_name, RecordRow.transform_version)
    .order_by(
        N_RECORDS.desc(), RecordRow.transform_name, RecordRow.transform_version.desc()
    )
)

FACTS_BY_WORKLOAD = (
    select(
        RecordRow.workload_key,
        WorkloadRow.text,
        func.count(),
        func.count(RecordRow.device_id.distinct()),
        func.max(RecordRow.speedup),
    )
    .join_from(RecordRow, WorkloadRow)
    .where(~RETRACTED)
    .group_by(RecordRow.workload_key, WorkloadRow.text)
)

TRIALS_BY_WORKLOAD = select(TrialRow.workload_key, func.count()).group_by(
    TrialRow.workload_key
)


def describe(connection: Connection, location: Location) -> StoreInfo:
    """Count and measure a database with the newest schema."""
    size = connection.execute(text(SIZES[connection.dialect.name])).scalar_one()
    return StoreInfo(
        location=str(location),
        schema_version=NEWEST,
        n_records=count(connection, RecordRow),
        n_workloads=count(connection, WorkloadRow),
        n_devices=count(connection, DeviceRow),
        n_trials=count(connection, TrialRow),
        n_retractions=count(connection, RetractionRow),
        n_plans=count(connection, PlanRow),
        size_bytes=int(size),
        is_read_only=location.is_read_only,
    )


def summarize(connection: Connection) -> Statistics:
    """Count the unretracted facts of a database by driver and by transform."""
    return Statistics(
        tuple(DriverCount(*row) for row in connection.execute(DRIVERS)),
        tuple(TransformCount(*row) for row in connection.execute(TRANSFORMS)),
    )


def list_workloads(connection: Connection) -> tuple[WorkloadCount, ...]:
    """List workloads with facts or trials, by number of facts, of trials, by key."""
    n_trials = {row[0]: row[1] for row in connection.execute(TRIALS_BY_WORKLOAD)}
    counts = [
        WorkloadCount(key, text, n, n_devices, n_trials.get(key, 0), speedup)
        for key, text, n, n_devices, speedup in connection.execute(FACTS_BY_WORKLOAD)
    ]
    # Trials have no row in the table of workloads, so the join above lacks them.
    only_tried = sorted({*n_trials} - {workload.key for workload in counts})
    counts += [
        WorkloadCount(key, text, 0, 0, n_trials[key], None)
        for key, text in _texts_of_trials(connection, only_tried)
    ]
    counts.sort(key=lambda count: (-count.n_records, -count.n_trials, count.key))
    return tuple(counts)


def _texts_of_trials(
    connection: Connection, keys: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the einsums of workloads of which there are only trials."""
    # A trial has no row in workloads: its text is in one of the documents.
    key, document = TrialRow.workload_key, func.min(TrialRow.document)
    documents = select(key, document).group_by(key)
    for first in range(0, len(keys), MAX_IDS):
        chosen = documents.where(key.in_(keys[first : first + MAX_IDS]))
        for workload, text_of_trial in connection.execute(chosen):
            yield workload, json.loads(text_of_trial).get("workload_text", "")
