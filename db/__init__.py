"""Storage of tuning records: SQL tables, migrations, stores."""

if __name__ != "feinsum.db":
    raise ImportError("import it as feinsum.db; the folder is not a package")

from feinsum.db.info import StoreInfo
from feinsum.db.layers import LayeredStore
from feinsum.db.location import default_location
from feinsum.db.opened import Database, opened_store
from feinsum.db.rekeying import (
    REKEYED_FROM,
    Kind,
    OnProgress,
    RekeyPlan,
    Unreadable,
    plan_rekey,
    rekey,
    rekeyed,
)
from feinsum.db.shipped import ShippedStore, shipped_facts, write_facts
from feinsum.db.store import SqlStore, open_store

__all__ = [
    "REKEYED_FROM",
    "Database",
    "Kind",
    "LayeredStore",
    "OnProgress",
    "RekeyPlan",
    "ShippedStore",
    "SqlStore",
    "StoreInfo",
    "Unreadable",
    "default_location",
    "open_store",
    "opened_store",
    "plan_rekey",
    "rekey",
    "rekeyed",
    "shipped_facts",
    "write_facts",
]
