"""The database behind the service: trust, demand, API keys, lists for its pages."""

from feinsum.db.server.api_keys import ApiKey, Scope, make_key
from feinsum.db.server.demand import DemandLimits, DemandRequest
from feinsum.db.server.pages import (
    Having,
    ListedDevice,
    ListedFact,
    ListedWorkload,
    Order,
    Overview,
    is_cut,
)
from feinsum.db.server.reader import Reader, Size, StoredFact, Summary
from feinsum.db.server.serving import ServingStore, open_serving_store
from feinsum.db.sql.trust import Receipt, Trust

__all__ = [
    "ApiKey",
    "DemandLimits",
    "DemandRequest",
    "Having",
    "ListedDevice",
    "ListedFact",
    "ListedWorkload",
    "Order",
    "Overview",
    "Reader",
    "Receipt",
    "Scope",
    "ServingStore",
    "Size",
    "StoredFact",
    "Summary",
    "Trust",
    "is_cut",
    "make_key",
    "open_serving_store",
]
