"""Sparse arrays: formats, conversions, files, random patterns. Needs only numpy."""

from feinsum.sparse.convert import (
    compressed_from_object,
    from_dense,
    from_object,
    is_sparse,
    to_coo,
    to_csc,
    to_csf,
    to_csr,
    to_dense,
    to_pydata,
    to_scipy,
)
from feinsum.sparse.formats import COO, CSC, CSF, CSR, SparseArray, require_finite
from feinsum.sparse.generate import (
    count_nodes,
    node_counts,
    pattern_digest,
    random_profile,
    random_uniform,
    require_pattern,
)
from feinsum.sparse.reading import iterate_tns, read_tns, write_tns

__all__ = [
    "COO",
    "CSC",
    "CSF",
    "CSR",
    "SparseArray",
    "compressed_from_object",
    "count_nodes",
    "from_dense",
    "from_object",
    "is_sparse",
    "iterate_tns",
    "node_counts",
    "pattern_digest",
    "random_profile",
    "random_uniform",
    "read_tns",
    "require_finite",
    "require_pattern",
    "to_coo",
    "to_csc",
    "to_csf",
    "to_csr",
    "to_dense",
    "to_pydata",
    "to_scipy",
    "write_tns",
]
