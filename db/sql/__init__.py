"""An SQL database of facts: SQLite by default, PostgreSQL for teams."""

from feinsum.db.sql.retracting import Retracted, Suspect, SuspectPeaks, SuspectPlan
from feinsum.db.sql.statistics import (
    DriverCount,
    Statistics,
    TransformCount,
    WorkloadCount,
)
from feinsum.db.sql.store import Migration, SqlStore, migrate, open_store
from feinsum.db.sql.trust import Receipt, Trust

__all__ = [
    "DriverCount",
    "Migration",
    "Receipt",
    "Retracted",
    "SqlStore",
    "Statistics",
    "Suspect",
    "SuspectPeaks",
    "SuspectPlan",
    "TransformCount",
    "Trust",
    "WorkloadCount",
    "migrate",
    "open_store",
]
