"""From a batched einsum to an untransformed Loopy translation unit."""

from feinsum.codegen.generate import Strides, generate_loopy
from feinsum.codegen.path import ContractionPath, contraction_path, intermediate_bytes

__all__ = [
    "ContractionPath",
    "Strides",
    "contraction_path",
    "generate_loopy",
    "intermediate_bytes",
]
