"""The database behind the service: trust, demand, API keys, lists for its pages."""

from feinsum.db.server.api_keys import ApiKey, Scope
from feinsum.db.server.overview import DriverOf, Overview
from feinsum.db.server.pages import ListedDevice, ListedFact, ListedWorkload
from feinsum.db.server.reader import Reader, StoredFact
from feinsum.db.server.reputation import Judged, Reputation
from feinsum.db.server.serving import ServingStore, open_serving_store
from feinsum.db.server.trust import Trust

__all__ = [
    "ApiKey",
    "DriverOf",
    "Judged",
    "ListedDevice",
    "ListedFact",
    "ListedWorkload",
    "Overview",
    "Reader",
    "Reputation",
    "Scope",
    "ServingStore",
    "StoredFact",
    "Trust",
    "open_serving_store",
]
