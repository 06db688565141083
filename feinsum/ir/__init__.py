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
from feinsum.ir.expression_values import FUNCTIONS, UFUNCS, evaluate_body, evaluate_into
from feinsum.ir.functional import FunctionalBatchedEinsum, OperandFunction
from feinsum.ir.operand import (
    Extent,
    Operand,
    SizeParam,
    Violation,
    bind_shape,
    order_by_precision,
)
from feinsum.ir.text import from_text, to_text
from feinsum.ir.workload import (
    LONG_EXTENT,
    PROFILE,
    Workload,
    WorkloadLike,
    as_workload,
    check_profile,
    find_tied_indices,
    generalize,
    generalize_each,
    get_nodes,
    list_profile_names,
    list_size_names,
    with_extents,
)
from feinsum.subscripts import (
    IndexList,
    convert_words,
    parse_subscripts,
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
    "as_workload",
    "batched_einsum",
    "bind_shape",
    "bind_sizes",
    "check_profile",
    "convert_words",
    "einsum",
    "evaluate",
    "evaluate_body",
    "evaluate_into",
    "find_tied_indices",
    "from_text",
    "generalize",
    "generalize_each",
    "get_nodes",
    "list_profile_names",
    "list_size_names",
    "order_by_precision",
    "parse_subscripts",
    "require_dense",
    "require_einsum",
    "sparse_array",
    "to_text",
    "violations",
    "with_extents",
    "write_subscripts",
]
