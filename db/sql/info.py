"""Properties and totals of a database."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text

from feinsum.db.sql.location import Location
from feinsum.db.sql.schema import NEWEST
from feinsum.db.sql.tables import (
    Base,
    DeviceRow,
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


def count(connection: Connection, table: type[Base]) -> int:
    """Number of rows of a table."""
    rows = select(func.count()).select_from(table)
    return connection.execute(rows).scalar_one()
