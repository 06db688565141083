"""The terms of a comparison: settings of the allocator and the number of threads.

``fresh``: large arrays are returned to the system when they are freed, glibc's default;
an operation that allocates pays for page faults every time. ``reused``: glibc keeps
freed memory (no separate mappings, the heap is never trimmed and grows by 64 MiB) and
requests huge pages. These settings hold for every library that allocates by ``malloc``;
without glibc, both are the same. Settings of libraries (``OMP_WAIT_POLICY``,
allocators) are the user's, with one exception: numpy's OpenBLAS selects slow kernels on
processors that are newer than itself. Where those for SKYLAKEX are faster, they are
selected by a variable.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from feinsum.targets.processor import describe_host_processor

_REUSED = {
    "glibc.malloc.mmap_max": 0,
    "glibc.malloc.trim_threshold": 1 << 46,
    "glibc.malloc.top_pad": 64 << 20,
    "glibc.malloc.hugetlb": 1,
}

TERMS: Mapping[str, Mapping[str, int]] = {"fresh": {}, "reused": _REUSED}

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TBLIS_NUM_THREADS",
    "BLIS_NUM_THREADS",
)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def make_environment(terms: str) -> dict[str, str]:
    """Return the environment of a child: the terms' allocator, one thread per core."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    tunables = ":".join(f"{name}={value}" for name, value in TERMS[terms].items())
    if tunables:
        variables["GLIBC_TUNABLES"] = tunables
    return variables | dict.fromkeys(_THREADS, str(count_cores())) | choose_openblas()


OPENBLAS = "OPENBLAS_CORETYPE"
_PRODUCT = """
import numpy as np
from time import perf_counter
a, b, c = (np.full((1200, 1200), 0.5) for _ in range(3))
times = []
for _ in range(9):
    start = perf_counter()
    np.matmul(a, b, out=c)
    times.append(perf_counter() - start)
print(min(times))
"""


@cache
def choose_openblas() -> dict[str, str]:
    """Return the variable that selects faster kernels of OpenBLAS.

    It is empty if the default is as fast, or the user has set it.
    """
    if OPENBLAS in os.environ or "avx512f" not in describe_host_processor().features:
        return {}
    default, other = ({}, {OPENBLAS: "SKYLAKEX"})
    return other if _time_product(other) < 0.95 * _time_product(default) else {}


def _time_product(variables: Mapping[str, str]) -> float:
    """Return the seconds of a matrix product, the fastest of some."""
    command = [sys.executable, "-c", _PRODUCT]
    environment = {**os.environ, **variables}
    return float(subprocess.check_output(command, env=environment, text=True))
