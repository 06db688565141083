"""Names of the environment variables on which a call depends.

They stand apart from what they set, so that a call can look at them before Loopy and
the database are loaded, which takes longer than many a call.
"""

from __future__ import annotations

__all__ = [
    "CUDA_CACHE_VARIABLE",
    "DATABASE_VARIABLE",
    "DEVICE_VARIABLE",
    "EFFORT_VARIABLE",
    "INTERMEDIATE_VARIABLE",
]

CUDA_CACHE_VARIABLE = "FEINSUM_CUDA_CACHE"
"""Environment variable: what timed runs find in the cache of a GPU."""
DATABASE_VARIABLE = "FEINSUM_DATABASE"
"""Environment variable: the database of facts; see :mod:`feinsum.db`."""
DEVICE_VARIABLE = "FEINSUM_DEVICE"
"""Environment variable with a part of a device's name."""
EFFORT_VARIABLE = "FEINSUM_EFFORT"
"""Environment variable with the effort, where none is given."""
INTERMEDIATE_VARIABLE = "FEINSUM_INTERMEDIATE_BYTES"
"""Environment variable: what all intermediates of a kernel may take; 0 for none."""
