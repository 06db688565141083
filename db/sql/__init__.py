"""An SQL database of facts: SQLite by default, PostgreSQL for teams."""

from feinsum.db.sql.health import DatabaseHealth, examine
from feinsum.db.sql.location import default_location
from feinsum.db.sql.retracting import Retracted, Suspect, SuspectPeaks, SuspectPlan
from feinsum.db.sql.statistics import (
    DriverCount,
    Statistics,
    StoreInfo,
    TransformCount,
    WorkloadCount,
)
from feinsum.db.sql.store import Migration, SqlStore, migrate, open_store

__all__ = [
    "DatabaseHealth",
    "DriverCount",
    "Migration",
    "Retracted",
    "SqlStore",
    "Statistics",
    "StoreInfo",
    "Suspect",
    "SuspectPeaks",
    "SuspectPlan",
    "TransformCount",
    "WorkloadCount",
    "default_location",
    "examine",
    "migrate",
    "open_store",
]
