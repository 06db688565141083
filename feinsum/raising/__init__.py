"""From a Loopy kernel to the functional batched einsums in it, or a reason why not."""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.raising.grouping import regrouped
from feinsum.raising.identify import identify_as_einsum, single_nest
from feinsum.raising.kernel import check_unit, raise_kernel
from feinsum.raising.nest import (
    PARENT,
    PLACE,
    LoopNest,
    RaisedKernel,
    RaisedNest,
    RefusedNest,
    Tree,
    names_of,
    points_of,
    value_of,
)
from feinsum.raising.row import called_kernels

__all__ = [
    "PARENT",
    "PLACE",
    "LoopNest",
    "RaisedKernel",
    "RaisedNest",
    "RefusedNest",
    "Tree",
    "called_kernels",
    "check_unit",
    "identify_as_einsum",
    "names_of",
    "points_of",
    "raise_kernel",
    "regrouped",
    "single_nest",
    "value_of",
]
