"""The library: families of recipes, each registered under a name and a version."""

from feinsum.transforms.library.contraction_path import CONTRACTION_PATH
from feinsum.transforms.library.element_blocked import ELEMENT_BLOCKED
from feinsum.transforms.library.generic import GENERIC
from feinsum.transforms.library.library_contraction import LIBRARY_CONTRACTION
from feinsum.transforms.library.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.rowwise import ROWWISE
from feinsum.transforms.library.transposed import TRANSPOSED
from feinsum.transforms.library.turned import TURNED

__all__ = [
    "CONTRACTION_PATH",
    "ELEMENT_BLOCKED",
    "GENERIC",
    "LIBRARY_CONTRACTION",
    "PACKED_CONTRACTION",
    "ROWWISE",
    "TRANSPOSED",
    "TURNED",
]
