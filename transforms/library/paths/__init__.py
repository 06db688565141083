"""Contractions of several operands in pairs, in nests of their own or fused in one."""

from feinsum.transforms.library.paths.family import CONTRACTION_PATH

__all__ = ["CONTRACTION_PATH"]
