"""Einsums and programs as data: constructors, checkers, text forms, their meaning."""

from feinsum.ir.build import (
    array,
    batched_einsum,
    einsum,
    sparse_array,
)
from feinsum.ir.einsums import (
    RULES,
    BatchedEinsum,
    require_dense,
    require_einsum,
    violations,
)
from feinsum.ir.evaluation import bind_sizes, evaluate
from feinsum.ir.expression_values import FUNCTIONS, UFUNCS, body_into, body_value
from feinsum.ir.functional import FunctionalBatchedEinsum, OperandFunction
from feinsum.ir.operand import (
    Extent,
    Operand,
    SizeParam,
    Violation,
    precise_first,
    shape_at,
)
from feinsum.ir.text import from_text, to_text
from feinsum.ir.workload import (
    LONG_EXTENT,
    PROFILE,
    Workload,
    WorkloadLike,
    check_profile,
    generalize,
    generalize_each,
    nodes_of,
    profile_names,
    size_names,
    tied_to,
    with_extents,
    workload_of,
)
from feinsum.subscripts import (
    IndexList,
    parse_subscripts,
    subscripts_of_words,
    write_subscripts,
)

__all__ = [
    "FUNCTIONS",
    "LONG_EXTENT",
    "PROFILE",
    "RULES",
    "UFUNCS",
    "BatchedEinsum",
    "Extent",
    "FunctionalBatchedEinsum",
    "IndexList",
    "Operand",
    "OperandFunction",
    "SizeParam",
    "Violation",
    "Workload",
    "WorkloadLike",
    "array",
    "batched_einsum",
    "bind_sizes",
    "body_into",
    "body_value",
    "check_profile",
    "einsum",
    "evaluate",
    "from_text",
    "generalize",
    "generalize_each",
    "nodes_of",
    "parse_subscripts",
    "precise_first",
    "profile_names",
    "require_dense",
    "require_einsum",
    "shape_at",
    "size_names",
    "sparse_array",
    "subscripts_of_words",
    "tied_to",
    "to_text",
    "violations",
    "with_extents",
    "workload_of",
    "write_subscripts",
]
