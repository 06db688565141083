"""Facts between databases and files: import, export, merge, rekey, back up, clean."""

from feinsum.db.exchange.audit import Odd, audit
from feinsum.db.exchange.backup import back_up_store
from feinsum.db.exchange.files import read_file, write_file
from feinsum.db.exchange.garbage import (
    Collected,
    GarbagePlan,
    Surplus,
    collect_garbage,
    find_garbage,
)
from feinsum.db.exchange.kernel_tuner import t4_document, write_t4
from feinsum.db.exchange.lines import Bad, Entry, line_schema, read_lines, write_lines
from feinsum.db.exchange.merging import (
    Imported,
    KindDifference,
    all_documents,
    compare,
    import_entries,
    merge,
)
from feinsum.db.exchange.rekeying import (
    REKEYED_FROM,
    Kind,
    OnProgress,
    RekeyPlan,
    Unreadable,
    plan_rekey,
    rekey,
    rekeyed,
)
from feinsum.db.exchange.signing import Signed, sign_facts

__all__ = [
    "REKEYED_FROM",
    "Bad",
    "Collected",
    "Entry",
    "GarbagePlan",
    "Imported",
    "Kind",
    "KindDifference",
    "Odd",
    "OnProgress",
    "RekeyPlan",
    "Signed",
    "Surplus",
    "Unreadable",
    "all_documents",
    "audit",
    "back_up_store",
    "collect_garbage",
    "compare",
    "find_garbage",
    "import_entries",
    "line_schema",
    "merge",
    "plan_rekey",
    "read_file",
    "read_lines",
    "rekey",
    "rekeyed",
    "sign_facts",
    "t4_document",
    "write_file",
    "write_lines",
    "write_t4",
]
