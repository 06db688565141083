"""Lower bounds on the bytes that an einsum moves, and on its time.

Bounds follow from subscripts, sizes and limits of a device; nothing is generated or
run. Exponents prove a bound, and exact arithmetic checks the proof.
"""

from feinsum.bounds.asymptotic import Cover, Intensity, intensity_of, least_cover
from feinsum.bounds.bound import (
    Bound,
    LevelBound,
    bound_at,
    bound_of_record,
    least_bytes,
    least_possible_s,
    shares,
)
from feinsum.bounds.finite import Certificate, FastMemory, certify
from feinsum.bounds.levels import MemoryLevel, levels_of
from feinsum.bounds.paths import BoundedProduct, PathBound
from feinsum.bounds.soap import SoapAccess, SoapStatement, statement

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
    "bound_at",
    "bound_of_record",
    "certify",
    "intensity_of",
    "least_bytes",
    "least_cover",
    "least_possible_s",
    "levels_of",
    "shares",
    "statement",
]
