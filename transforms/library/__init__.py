"""The library: families of recipes, each registered under a name and a version."""

from feinsum.transforms.library.contraction_path import CONTRACTION_PATH
from feinsum.transforms.library.element_blocked import ELEMENT_BLOCKED
from feinsum.transforms.library.generic import GENERIC, GENERIC_ON_CPUS
from feinsum.transforms.library.packed.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.rowwise import ROWWISE, ROWWISE_ON_CPUS
from feinsum.transforms.library.split_sum import SPLIT_SUM
from feinsum.transforms.library.turned import TURNED
from feinsum.transforms.library.unroll_and_jam import UNROLL_AND_JAM

__all__ = [
    "CONTRACTION_PATH",
    "ELEMENT_BLOCKED",
    "GENERIC",
    "GENERIC_ON_CPUS",
    "PACKED_CONTRACTION",
    "ROWWISE",
    "ROWWISE_ON_CPUS",
    "SPLIT_SUM",
    "TURNED",
    "UNROLL_AND_JAM",
]
