"""Move facts between databases and files: import, export, merge, rekey, clean."""

from feinsum.db.exchange.files import (
    Bad,
    Entry,
    make_line_schema,
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
from feinsum.db.exchange.kernel_tuner import make_t4_document, write_t4
from feinsum.db.exchange.merging import (
    Imported,
    KindDifference,
    back_up_store,
    compare,
    import_entries,
    list_documents,
    merge,
)
from feinsum.db.exchange.rekeying import REKEYED_FROM, Rekeyed, rekey, rekey_record

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
    "back_up_store",
    "collect_garbage",
    "compare",
    "find_garbage",
    "import_entries",
    "list_documents",
    "make_line_schema",
    "make_t4_document",
    "merge",
    "read_file",
    "read_lines",
    "rekey",
    "rekey_record",
    "write_file",
    "write_lines",
    "write_t4",
]
