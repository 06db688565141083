"""Einsums as several nests: along contraction paths, and in parts of a sum."""

from feinsum.transforms.library.paths.family import (
    CONTRACTION_PATH,
)
from feinsum.transforms.library.paths.split_sum import SPLIT_SUM

__all__ = [
    "CONTRACTION_PATH",
    "SPLIT_SUM",
]
