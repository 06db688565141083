"""Batched einsums as data: constructors, checker, text form, reference evaluator."""

from feinsum.ir.build import array, batched_einsum, einsum, sparse_array
from feinsum.ir.check import RULES, violations
from feinsum.ir.einsum import BatchedEinsum, require_dense, require_einsum
from feinsum.ir.evaluate import bind_sizes, evaluate
from feinsum.ir.functional import (
    FunctionalBatchedEinsum,
    OperandFunction,
    body_value,
)
from feinsum.ir.functions import FUNCTIONS, UFUNCS
from feinsum.ir.generalize import (
    LONG_EXTENT,
    generalize,
    generalize_each,
    with_extents,
)
from feinsum.ir.in_place import body_into
from feinsum.ir.operand import Extent, Operand, SizeParam, shape_at, stored
from feinsum.ir.precision import precise_first
from feinsum.ir.profile import (
    PROFILE,
    check_profile,
    nodes_of,
    profile_names,
    size_names,
)
from feinsum.ir.text import from_text, to_text
from feinsum.ir.violation import Violation
from feinsum.ir.workload import Workload, WorkloadLike, workload_of
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
    "stored",
    "subscripts_of_words",
    "to_text",
    "violations",
    "with_extents",
    "workload_of",
    "write_subscripts",
]
