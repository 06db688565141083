"""Rewriting kernels that programs wrote as loops into kernels that raising reads."""

from feinsum.raising.normal.normalize import is_no_op, normalized, without_no_ops

__all__ = ["is_no_op", "normalized", "without_no_ops"]
