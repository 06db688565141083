"""The library: families of recipes, each registered under a name and a version."""

from feinsum.transforms.library.contraction_path import CONTRACTION_PATH
from feinsum.transforms.library.element_blocked import ELEMENT_BLOCKED
from feinsum.transforms.library.generic import GENERIC
from feinsum.transforms.library.packed.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.rowwise import ROWWISE, ROWWISE_ON_CPUS
from feinsum.transforms.library.split_sum import SPLIT_SUM
from feinsum.transforms.library.turned import TURNED

__all__ = [
    "CONTRACTION_PATH",
    "ELEMENT_BLOCKED",
    "GENERIC",
    "PACKED_CONTRACTION",
    "ROWWISE",
    "ROWWISE_ON_CPUS",
    "SPLIT_SUM",
    "TURNED",
]
