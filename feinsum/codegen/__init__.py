"""From a batched einsum, or a loop nest, to an untransformed Loopy translation unit."""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.codegen.generate import (
    ContractionPath,
    Strides,
    contraction_path,
    generate_loopy,
)
from feinsum.codegen.nests import (
    dense_arguments,
    fresh_shapes,
    generate_nest,
    nest_arguments,
    nest_index_dtype,
    nest_result,
    root_chunks,
    tree_arguments,
)

__all__ = [
    "ContractionPath",
    "Strides",
    "contraction_path",
    "dense_arguments",
    "fresh_shapes",
    "generate_loopy",
    "generate_nest",
    "nest_arguments",
    "nest_index_dtype",
    "nest_result",
    "root_chunks",
    "tree_arguments",
]
