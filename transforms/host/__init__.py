"""Contractions by libraries of the host: numpy and its BLAS, on the caller's arrays."""

from feinsum.transforms.host.library_contraction import LIBRARY_CONTRACTION

__all__ = ["LIBRARY_CONTRACTION"]
