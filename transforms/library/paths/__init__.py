"""Einsums as several nests: along contraction paths, and in parts of a sum."""

from feinsum.transforms.library.paths.family import (
    CONTRACTION_PATH,
    CONTRACTION_PATH_BY_COST,
)
from feinsum.transforms.library.paths.split_sum import SPLIT_SUM, SPLIT_SUM_OF_GENERIC

__all__ = [
    "CONTRACTION_PATH",
    "CONTRACTION_PATH_BY_COST",
    "SPLIT_SUM",
    "SPLIT_SUM_OF_GENERIC",
]
