"""Names of the environment variables on which a call depends.

They stand apart from what they set, so that a call can look at them before Loopy and
the database are loaded, which takes longer than many a call.
"""

from __future__ import annotations

import os

from feinsum.errors import MeasurementError

__all__ = [
    "CUDA_CACHE_VARIABLE",
    "DATABASE_VARIABLE",
    "DEVICE_VARIABLE",
    "EFFORT_VARIABLE",
    "INTERMEDIATE_VARIABLE",
    "named_intermediate_bytes",
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


def named_intermediate_bytes() -> int | None:
    """The limit of intermediates that is set; None if there is none.

    Raises:
        MeasurementError: if it is not a number.
    """
    named = os.environ.get(INTERMEDIATE_VARIABLE, "").strip()
    if named and not named.isdecimal():
        raise MeasurementError(
            f"{INTERMEDIATE_VARIABLE} is {named!r}; expected a number of bytes, or 0"
        )
    return int(named) if named else None
