"""From a batched einsum, or a loop nest, to an untransformed Loopy translation unit."""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.codegen.generate import Strides, generate_loopy
from feinsum.codegen.nest_data import (
    dense_arguments,
    fresh_shapes,
    nest_arguments,
    nest_index_dtype,
    nest_result,
    root_chunks,
    tree_arguments,
)
from feinsum.codegen.nests import generate_nest
from feinsum.codegen.path import ContractionPath, contraction_path

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
