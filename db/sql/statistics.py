"""Facts of a database by device and driver, and by transform."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from feinsum.db.sql.statements import RETRACTED
from feinsum.db.sql.tables import DeviceRow, EnvironmentRow, RecordRow


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


N_RECORDS = func.count()
N_WORKLOADS = func.count(RecordRow.workload_key.distinct())

DRIVERS = (
    select(
        DeviceRow.id,
        DeviceRow.name,
        DeviceRow.platform,
        DeviceRow.microarchitecture,
        EnvironmentRow.driver_version,
        N_WORKLOADS,
        N_RECORDS,
        func.min(RecordRow.recorded_at),
        func.max(RecordRow.recorded_at),
    )
    .join_from(RecordRow, EnvironmentRow)
    .join(DeviceRow, DeviceRow.id == RecordRow.device_id)
    .where(~RETRACTED)
    .group_by(
        DeviceRow.id,
        DeviceRow.name,
        DeviceRow.platform,
        DeviceRow.microarchitecture,
        EnvironmentRow.driver_version,
    )
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


def summarize(connection: Connection) -> Statistics:
    """Count the unretracted facts of a database by driver and by transform."""
    return Statistics(
        tuple(DriverCount(*row) for row in connection.execute(DRIVERS)),
        tuple(TransformCount(*row) for row in connection.execute(TRANSFORMS)),
    )
