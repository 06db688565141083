"""Where facts are stored, and which of these stores are queried.

Subpackages: :mod:`feinsum.db.sql` (a database), :mod:`feinsum.db.remote` (a service as
its clients see it), :mod:`feinsum.db.server` (a database as the service sees it),
:mod:`feinsum.db.exchange` (between databases and files).
"""

if __name__ != "feinsum.db":
    raise ImportError("import it as feinsum.db; the folder is not a package")

from feinsum.db.address import is_service
from feinsum.db.layers import LayeredStore
from feinsum.db.opened import (
    LAYERS_VARIABLE,
    OPENERS,
    REMOTE,
    SITE_VARIABLE,
    USER,
    Database,
    DatabaseHealth,
    LayerKind,
    LayerState,
    examine,
    examine_layers,
    list_layer_names,
    list_layer_states,
    looked_up_store,
    opened_documents,
    opened_store,
    process_facts,
)
from feinsum.db.remote.store import HttpStore
from feinsum.db.shipped import ShippedStore, get_shipped_facts, write_facts
from feinsum.db.sql.store import SqlStore, open_store
from feinsum.options import get_default_location

__all__ = [
    "LAYERS_VARIABLE",
    "OPENERS",
    "REMOTE",
    "SITE_VARIABLE",
    "USER",
    "Database",
    "DatabaseHealth",
    "HttpStore",
    "LayerKind",
    "LayerState",
    "LayeredStore",
    "ShippedStore",
    "SqlStore",
    "examine",
    "examine_layers",
    "get_default_location",
    "get_shipped_facts",
    "is_service",
    "list_layer_names",
    "list_layer_states",
    "looked_up_store",
    "open_store",
    "opened_documents",
    "opened_store",
    "process_facts",
    "write_facts",
]
