"""Lower bounds on the bytes that an einsum moves, and on its time.

Bounds follow from subscripts, sizes and limits of a device; nothing is generated or
run. Exponents prove a bound, and exact arithmetic checks the proof.
"""

from feinsum.bounds.asymptotic import (
    Cover,
    Intensity,
    compute_intensity,
    find_least_cover,
)
from feinsum.bounds.bound import (
    Bound,
    LevelBound,
    bound_record,
    compute_bound,
    compute_least_bytes,
    compute_least_s,
    compute_shares,
)
from feinsum.bounds.finite import Certificate, FastMemory, certify
from feinsum.bounds.levels import MemoryLevel, find_roofline_s, list_levels
from feinsum.bounds.paths import BoundedProduct, PathBound
from feinsum.bounds.soap import SoapAccess, SoapStatement, make_statement

__all__ = [
    "Bound",
    "BoundedProduct",
    "Certificate",
    "Cover",
    "FastMemory",
    "Intensity",
    "LevelBound",
    "MemoryLevel",
    "PathBound",
    "SoapAccess",
    "SoapStatement",
    "bound_record",
    "certify",
    "compute_bound",
    "compute_intensity",
    "compute_least_bytes",
    "compute_least_s",
    "compute_shares",
    "find_least_cover",
    "find_roofline_s",
    "list_levels",
    "make_statement",
]
