"""A service as a store of facts: bounded waiting for look-ups, retries for commands."""

from feinsum.db.remote.layer import (
    BUDGET_MS,
    BUDGET_VARIABLE,
    RemoteLayer,
    ServiceHealth,
    examine_service,
    open_remote,
)
from feinsum.db.remote.store import HttpStore

__all__ = [
    "BUDGET_MS",
    "BUDGET_VARIABLE",
    "HttpStore",
    "RemoteLayer",
    "ServiceHealth",
    "examine_service",
    "open_remote",
]
