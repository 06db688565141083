"""The library: families of recipes, each registered under a name and a version."""

from feinsum.transforms.library.element_blocked import ELEMENT_BLOCKED
from feinsum.transforms.library.packed import PACKED_CONTRACTION
from feinsum.transforms.library.paths import (
    CONTRACTION_PATH,
    SPLIT_SUM,
)
from feinsum.transforms.library.rowwise import ROWWISE, ROWWISE_ON_CPUS
from feinsum.transforms.library.streamed import (
    GENERIC,
    GENERIC_ON_CPUS,
    UNROLL_AND_JAM,
)
from feinsum.transforms.library.turned import TURNED

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
