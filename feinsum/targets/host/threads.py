"""How many threads take part in a kernel."""

from __future__ import annotations

import os

from feinsum.errors import DeviceUnavailableError

__all__ = ["THREADS_VARIABLE", "n_threads"]

THREADS_VARIABLE = "FEINSUM_NUM_THREADS"
"""Environment variable with the number of threads of the host target."""
OPENMP_VARIABLE = "OMP_NUM_THREADS"


def n_threads() -> int:
    """``FEINSUM_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the available cores.

    Raises:
        DeviceUnavailableError: if the first variable is no positive number.
    """
    named = os.environ.get(THREADS_VARIABLE, "").strip()
    if named:
        if not named.isdecimal() or int(named) < 1:
            raise DeviceUnavailableError(
                f"{THREADS_VARIABLE} is {named!r}; expected a number of threads"
            )
        return int(named)
    # OpenMP takes a list, one number for each level of nesting
    other = os.environ.get(OPENMP_VARIABLE, "").split(",")[0].strip()
    if other.isdecimal() and int(other) >= 1:
        return int(other)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
