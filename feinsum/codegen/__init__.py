"""From a batched einsum, or a loop nest, to an untransformed Loopy translation unit."""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.codegen.generate import (
    ContractionPath,
    Strides,
    find_contraction_path,
    generate_loopy,
)
from feinsum.codegen.nests import (
    choose_nest_index_dtype,
    compute_output_shapes,
    extract_nest_result,
    generate_nest,
    make_dense_arguments,
    make_nest_arguments,
    make_tree_arguments,
    split_root,
)

__all__ = [
    "ContractionPath",
    "Strides",
    "choose_nest_index_dtype",
    "compute_output_shapes",
    "extract_nest_result",
    "find_contraction_path",
    "generate_loopy",
    "generate_nest",
    "make_dense_arguments",
    "make_nest_arguments",
    "make_tree_arguments",
    "split_root",
]
