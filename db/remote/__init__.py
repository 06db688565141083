"""A service of facts as a store: its client, quick for look-ups, otherwise patient."""

from feinsum.db.address import (
    KEY_FILE_VARIABLE,
    KEY_OVER_HTTP_VARIABLE,
    KEY_VARIABLE,
    REMOTE_VARIABLE,
    address_of,
    is_service,
    remote_url,
)
from feinsum.db.remote.health import ServiceHealth, examine_service
from feinsum.db.remote.layer import (
    BUDGET_VARIABLE,
    RemoteLayer,
    open_remote,
    quick_layer,
)
from feinsum.db.remote.store import HttpStore

__all__ = [
    "BUDGET_VARIABLE",
    "KEY_FILE_VARIABLE",
    "KEY_OVER_HTTP_VARIABLE",
    "KEY_VARIABLE",
    "REMOTE_VARIABLE",
    "HttpStore",
    "RemoteLayer",
    "ServiceHealth",
    "address_of",
    "examine_service",
    "is_service",
    "open_remote",
    "quick_layer",
    "remote_url",
]
