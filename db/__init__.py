"""Where facts are stored, and which of these stores are queried.

Subpackages: :mod:`feinsum.db.sql` (a database), :mod:`feinsum.db.remote` (a service as
its clients see it), :mod:`feinsum.db.server` (a database as the service sees it),
:mod:`feinsum.db.exchange` (between databases and files).
"""

if __name__ != "feinsum.db":
    raise ImportError("import it as feinsum.db; the folder is not a package")

from feinsum.db.address import default_location, is_service
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
    layer_names,
    looked_up_store,
    opened_documents,
    opened_layers,
    opened_store,
    process_facts,
    states_of,
)
from feinsum.db.remote import HttpStore
from feinsum.db.shipped import ShippedStore, shipped_facts, write_facts
from feinsum.db.sql import SqlStore, open_store

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
    "default_location",
    "examine",
    "is_service",
    "layer_names",
    "looked_up_store",
    "open_store",
    "opened_documents",
    "opened_layers",
    "opened_store",
    "process_facts",
    "shipped_facts",
    "states_of",
    "write_facts",
]
