"""Storage of tuning records: SQL tables, migrations, stores."""

if __name__ != "feinsum.db":
    raise ImportError("import it as feinsum.db; the folder is not a package")

from feinsum.db.api_keys import ApiKey, Scope
from feinsum.db.backup import back_up_store
from feinsum.db.demand import Demand, Miss, is_text_of
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
from feinsum.db.health import DatabaseHealth, examine
from feinsum.db.info import StoreInfo
from feinsum.db.kernel_tuner import t4_document, write_t4
from feinsum.db.layers import LayeredStore, UnavailableStore
from feinsum.db.lines import Bad, Entry, line_schema, read_lines, write_lines
from feinsum.db.location import default_location
from feinsum.db.opened import (
    LAYERS_VARIABLE,
    OPENERS,
    REMOTE,
    SITE_VARIABLE,
    USER,
    Database,
    LayerKind,
    LayerState,
    layer_names,
    looked_up_store,
    opened_documents,
    opened_layers,
    opened_store,
    process_facts,
    states_of,
)
from feinsum.db.overview import DriverOf, Overview
from feinsum.db.pages import ListedDevice, ListedFact, ListedWorkload
from feinsum.db.reader import Reader, StoredFact
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
from feinsum.db.remote import (
    BUDGET_VARIABLE,
    KEY_VARIABLE,
    REMOTE_VARIABLE,
    HttpStore,
    ServiceHealth,
    examine_service,
    is_service,
    remote_url,
)
from feinsum.db.serving import ServingStore, open_serving_store
from feinsum.db.shipped import ShippedStore, shipped_facts, write_facts
from feinsum.db.statistics import DriverCount, Statistics, TransformCount
from feinsum.db.store import SqlStore, open_store

__all__ = [
    "BUDGET_VARIABLE",
    "KEY_VARIABLE",
    "LAYERS_VARIABLE",
    "OPENERS",
    "REKEYED_FROM",
    "REMOTE",
    "REMOTE_VARIABLE",
    "SITE_VARIABLE",
    "USER",
    "ApiKey",
    "Bad",
    "Collected",
    "Database",
    "DatabaseHealth",
    "Demand",
    "Difference",
    "DriverCount",
    "DriverOf",
    "Entry",
    "GarbagePlan",
    "HttpStore",
    "Imported",
    "Kind",
    "LayerKind",
    "LayerState",
    "LayeredStore",
    "ListedDevice",
    "ListedFact",
    "ListedWorkload",
    "Miss",
    "OnProgress",
    "Overview",
    "Reader",
    "RekeyPlan",
    "Scope",
    "ServiceHealth",
    "ServingStore",
    "ShippedStore",
    "SqlStore",
    "Statistics",
    "StoreInfo",
    "StoredFact",
    "Surplus",
    "TransformCount",
    "UnavailableStore",
    "Unreadable",
    "all_documents",
    "back_up_store",
    "collect_garbage",
    "compare",
    "default_location",
    "examine",
    "examine_service",
    "find_garbage",
    "is_service",
    "is_text_of",
    "layer_names",
    "line_schema",
    "looked_up_store",
    "merge",
    "open_serving_store",
    "open_store",
    "opened_documents",
    "opened_layers",
    "opened_store",
    "plan_rekey",
    "process_facts",
    "read_file",
    "read_lines",
    "rekey",
    "rekeyed",
    "remote_url",
    "shipped_facts",
    "states_of",
    "t4_document",
    "take_in",
    "write_facts",
    "write_file",
    "write_lines",
    "write_t4",
]
