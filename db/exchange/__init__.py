"""Move facts between databases and files: import, export, merge, rekey, clean."""

from feinsum.db.exchange.files import (
    Bad,
    Entry,
    line_schema,
    read_file,
    read_lines,
    write_file,
    write_lines,
)
from feinsum.db.exchange.garbage import (
    Collected,
    GarbagePlan,
    Surplus,
    collect_garbage,
    find_garbage,
)
from feinsum.db.exchange.kernel_tuner import t4_document, write_t4
from feinsum.db.exchange.merging import (
    Imported,
    KindDifference,
    all_documents,
    back_up_store,
    compare,
    import_entries,
    merge,
)
from feinsum.db.exchange.rekeying import REKEYED_FROM, Rekeyed, rekey, rekeyed

__all__ = [
    "REKEYED_FROM",
    "Bad",
    "Collected",
    "Entry",
    "GarbagePlan",
    "Imported",
    "KindDifference",
    "Rekeyed",
    "Surplus",
    "all_documents",
    "back_up_store",
    "collect_garbage",
    "compare",
    "find_garbage",
    "import_entries",
    "line_schema",
    "merge",
    "read_file",
    "read_lines",
    "rekey",
    "rekeyed",
    "t4_document",
    "write_file",
    "write_lines",
    "write_t4",
]
