"""The terms of a comparison: with which memory, and how many threads.

``fresh``: freed memory of large arrays goes back to the system, as it does by default;
an operation that makes a new array pays for its pages every time. ``reused``: glibc
keeps freed memory with the process (no array is mapped on its own, the heap is never
trimmed and grows by 64 MiB) and asks for huge pages. These are settings of the
process, so that they hold for every library that allocates by ``malloc``; where there
is no glibc, both are the same. What a library reads of its own (``OMP_WAIT_POLICY``,
allocators) stays as the user has it, but for one thing: numpy's OpenBLAS takes slow
kernels on processors that are newer than itself. Where those of SKYLAKEX are faster, it
is told to take them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from feinsum.targets.processor import describe_host_processor

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
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    tunables = ":".join(f"{name}={value}" for name, value in TERMS[terms].items())
    if tunables:
        variables["GLIBC_TUNABLES"] = tunables
    return variables | dict.fromkeys(_THREADS, str(n_cores())) | openblas()


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
def openblas() -> dict[str, str]:
    """The kernels that OpenBLAS is best told to take; none if it chooses well, or the
    user has chosen.
    """
    if OPENBLAS in os.environ or "avx512f" not in describe_host_processor().features:
        return {}
    its_own, other = ({}, {OPENBLAS: "SKYLAKEX"})
    return other if _product_s(other) < 0.95 * _product_s(its_own) else {}


def _product_s(variables: Mapping[str, str]) -> float:
    """Seconds of a product of matrices, the best of some."""
    command = [sys.executable, "-c", _PRODUCT]
    environment = {**os.environ, **variables}
    return float(subprocess.check_output(command, env=environment, text=True))
