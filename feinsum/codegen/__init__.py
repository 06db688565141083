"""From a batched einsum to an untransformed Loopy translation unit."""

from feinsum.codegen.generate import generate_loopy
from feinsum.codegen.path import ContractionPath, contraction_path

__all__ = ["ContractionPath", "contraction_path", "generate_loopy"]
