"""Storage of tuning records: SQL tables, migrations, stores."""

if __name__ != "feinsum.db":
    raise ImportError("import it as feinsum.db; the folder is not a package")

from feinsum.db.backup import back_up_store
from feinsum.db.exchange import (
    Difference,
    Imported,
    all_documents,
    compare,
    merge,
    take_in,
)
from feinsum.db.files import read_file, write_file
from feinsum.db.garbage import (
    Collected,
    GarbagePlan,
    Surplus,
    collect_garbage,
    find_garbage,
)
from feinsum.db.info import StoreInfo
from feinsum.db.kernel_tuner import t4_document, write_t4
from feinsum.db.layers import LayeredStore
from feinsum.db.lines import Bad, Entry, line_schema, read_lines, write_lines
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
from feinsum.db.statistics import DriverCount, Statistics, TransformCount
from feinsum.db.store import SqlStore, open_store

__all__ = [
    "REKEYED_FROM",
    "Bad",
    "Collected",
    "Database",
    "Difference",
    "DriverCount",
    "Entry",
    "GarbagePlan",
    "Imported",
    "Kind",
    "LayeredStore",
    "OnProgress",
    "RekeyPlan",
    "ShippedStore",
    "SqlStore",
    "Statistics",
    "StoreInfo",
    "Surplus",
    "TransformCount",
    "Unreadable",
    "all_documents",
    "back_up_store",
    "collect_garbage",
    "compare",
    "default_location",
    "find_garbage",
    "line_schema",
    "merge",
    "open_store",
    "opened_store",
    "plan_rekey",
    "read_file",
    "read_lines",
    "rekey",
    "rekeyed",
    "shipped_facts",
    "t4_document",
    "take_in",
    "write_facts",
    "write_file",
    "write_lines",
    "write_t4",
]
