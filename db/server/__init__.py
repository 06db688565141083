"""The database behind the service: trust, demand, API keys, lists for its pages."""

from feinsum.db.server.api_keys import ApiKey, Scope
from feinsum.db.server.demand import Asked, DemandLimits
from feinsum.db.server.overview import DriverOf, Overview
from feinsum.db.server.pages import (
    Having,
    ListedDevice,
    ListedFact,
    ListedWorkload,
    is_cut,
)
from feinsum.db.server.reader import Claim, Reader, Size, StoredFact
from feinsum.db.server.serving import ServingStore, open_serving_store

__all__ = [
    "ApiKey",
    "Asked",
    "Claim",
    "DemandLimits",
    "DriverOf",
    "Having",
    "ListedDevice",
    "ListedFact",
    "ListedWorkload",
    "Overview",
    "Reader",
    "Scope",
    "ServingStore",
    "Size",
    "StoredFact",
    "is_cut",
    "open_serving_store",
]
