"""The library: families of recipes, each registered under a name and a version."""

from feinsum.transforms.library.element_blocked import ELEMENT_BLOCKED
from feinsum.transforms.library.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.rowwise import ROWWISE

__all__ = ["ELEMENT_BLOCKED", "PACKED_CONTRACTION", "ROWWISE"]
