"""Contractions by the compiled kernel of feinsum, on the caller's arrays."""

from feinsum.transforms.host.library_contraction import (
    LIBRARY_CONTRACTION,
    fuses_affine_operands,
)

__all__ = ["LIBRARY_CONTRACTION", "fuses_affine_operands"]
