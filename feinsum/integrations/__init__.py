"""Retrieval inside other compilers, and for programs without Python. feinsum itself
depends on none of them.

:func:`transform_program` is the whole of it; the rest calls it from the place where
an array context transforms the kernels that it was asked for. The package
arraycontext is imported when one of its classes is needed.
"""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
from feinsum.integrations.array_context import (
    RetrievesEagerly,
    RetrievesLazily,
    eager_array_context,
    lazy_array_context,
    transform_program,
)
from feinsum.integrations.c_source import CSource, c_source

__all__ = [
    "CSource",
    "RetrievesEagerly",
    "RetrievesLazily",
    "c_source",
    "eager_array_context",
    "lazy_array_context",
    "transform_program",
]
