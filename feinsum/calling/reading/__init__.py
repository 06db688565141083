"""What a call computes: an einsum of its arguments, and how its arrays lie."""

from feinsum.calling.reading.einsum import (
    Feed,
    Reading,
    first_uses,
    read_shapes,
    reading_of,
    terms_of,
)

__all__ = [
    "Feed",
    "Reading",
    "first_uses",
    "read_shapes",
    "reading_of",
    "terms_of",
]
