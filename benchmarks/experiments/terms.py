"""The terms of a comparison: with which memory, and how many threads.

``fresh``: freed memory of large arrays goes back to the system, as it does by default;
an operation that makes a new array pays for its pages every time. ``reused``: glibc
keeps freed memory with the process (no array is mapped on its own, the heap is never
trimmed and grows by 64 MiB) and asks for huge pages. These are settings of the
process, so that they hold for every library that allocates by ``malloc``; where there
is no glibc, both are the same. What a library reads of its own (``OMP_WAIT_POLICY``,
allocators) stays as the user has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_KEPT = {
    "glibc.malloc.mmap_max": 0,
    "glibc.malloc.trim_threshold": 1 << 46,
    "glibc.malloc.top_pad": 64 << 20,
    "glibc.malloc.hugetlb": 1,
}

TERMS: Mapping[str, Mapping[str, int]] = {"fresh": {}, "reused": _KEPT}

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TBLIS_NUM_THREADS",
    "BLIS_NUM_THREADS",
)


def n_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def environment(terms: str) -> dict[str, str]:
    """The environment of a child: the terms' allocator, one thread per core."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    tunables = ":".join(f"{name}={value}" for name, value in TERMS[terms].items())
    if tunables:
        kept["GLIBC_TUNABLES"] = tunables
    return kept | dict.fromkeys(_THREADS, str(n_cores()))
