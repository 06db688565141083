"""Compare calls without a compiled kernel with numpy.

``python benchmarks/contraction.py`` prints two tables: the rate of square matrix
products by :mod:`feinsum.contraction` and by numpy's BLAS, on one core; and median
times of whole calls that are repeated, have new sizes or new subscripts, or have large
operands whose neighbours lie across those of the result.
``OPENBLAS_CORETYPE`` selects numpy's vectors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

os.environ |= dict.fromkeys(("FEINSUM_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import numpy as np

import feinsum
from benchmarks.timing import time_call
from feinsum.contraction import IS_BUILT, VECTOR_BYTES, contract_pair
from feinsum.contraction.pairwise import encode_indices
from feinsum.targets.processor import describe_host_processor

SIZES = 10, 20, 50, 100, 200, 500, 1000
REPEATED = {
    "i,i->": ((30,), (30,)),
    "ij,jk->ik": ((30, 40), (40, 50)),
    "ab,bc,cd,de,ef->af": ((20, 20),) * 5,
}
ACROSS = {
    "bda,dc->abc": ((312, 312, 312), (312, 24)),
    "deca,be->abcd": ((72, 72, 72, 72), (24, 72)),
    "ecbfa,fd->abcde": ((40, 24, 24, 40, 40), (40, 16)),
    "cad,dcb->ab": ((208, 208, 208), (208, 208, 200)),
}


def main() -> None:
    if not IS_BUILT:
        raise SystemExit(
            "the kernel of contractions is not built; see 'feinsum doctor'"
        )
    print(
        f"{describe_host_processor()}; numpy {np.__version__}; {VECTOR_BYTES} "
        "bytes a vector"
    )
    print("\nGFLOP/s of products of matrices     kernel    BLAS")
    for dtype in ("f8", "f4"):
        for n in SIZES:
            kernel, blas = measure_rates(n, dtype)
            print(f"{dtype} {n:>6}                        {kernel:8.1f} {blas:8.1f}")
    print("\nus of calls                        feinsum   numpy, faster variant")
    for subscripts, shapes in REPEATED.items():
        print_row(subscripts, [(subscripts, *map(np.ones, shapes))], time_least)
    print_row("new sizes", list_new_sizes(), time_call)
    print_row("new subscripts", list_new_subscripts(), time_call)
    # last: after long calls, Python chooses among kernels for new sizes
    for subscripts, shapes in ACROSS.items():
        print_row(subscripts, [(subscripts, *map(np.ones, shapes))], time_least)


def print_row(
    name: str, calls: list[tuple[Any, ...]], measure: Callable[..., float]
) -> None:
    """Print the median over calls; numpy's is that of its faster variant."""
    ours_s = median(measure(feinsum.einsum, *call) for call in calls)
    variants = (partial(np.einsum, optimize=True), np.einsum)
    # without a path, many operands take too long
    usable = variants if len(calls[0]) < 4 else variants[:1]
    numpy_s = min(
        median(measure(variant, *call) for call in calls) for variant in usable
    )
    print(f"{name:32} {ours_s * 1e6:9.1f} {numpy_s * 1e6:7.1f}")


def measure_rates(n: int, dtype: str) -> tuple[float, float]:
    a, b = np.ones((n, n), dtype), np.ones((n, n), dtype)
    out, indices = np.empty_like(a), encode_indices("ij", "jk", "ik")
    kernel_s = time_least(lambda: contract_pair(indices, a, b, out))
    return 2e-9 * n**3 / kernel_s, 2e-9 * n**3 / time_least(lambda: np.matmul(a, b))


def time_least(call: Callable[..., object], *arguments: object) -> float:
    """Return the least time of runs within a fifth of a second."""
    call(*arguments)
    best, end = float("inf"), perf_counter() + 0.2
    while perf_counter() < end:
        best = min(best, time_call(call, *arguments))
    return best


def list_new_sizes() -> list[tuple[Any, ...]]:
    weights = np.ones((32, 64))
    return [("bi,oi->bo", np.ones((n, 64)), weights) for n in range(1, 301)]


def list_new_subscripts() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    calls: list[tuple[Any, ...]] = []
    for _ in range(300):
        letters = rng.permutation([*"abcdefgh"])
        first, second = "".join(letters[:3]), "".join(letters[2:5])
        operands = np.ones(rng.integers(1, 6, 3)), np.ones((1, *rng.integers(1, 6, 2)))
        calls.append((f"{first},{second}->{first[0]}{second[2]}", *operands))
    return calls


if __name__ == "__main__":
    main()
