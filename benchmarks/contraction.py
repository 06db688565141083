"""What calls without a kernel of their own take, against numpy.

``python benchmarks/contraction.py`` prints two tables: the rate of products of square
matrices by :mod:`feinsum.contraction` and by numpy's BLAS, on one core; and the time of
whole calls whose like was made before, with a new size, and with new subscripts, as the
median of many. ``OPENBLAS_CORETYPE`` chooses numpy's vectors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ |= dict.fromkeys(("FEINSUM_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import feinsum
from feinsum.contraction import IS_BUILT, VECTOR_BYTES, contract_pair
from feinsum.contraction.pairwise import encode_indices
from feinsum.targets.processor import describe_host_processor

SIZES = 10, 20, 50, 100, 200, 500, 1000
REPEATED = {
    "i,i->": ((30,), (30,)),
    "ij,jk->ik": ((30, 40), (40, 50)),
    "ab,bc,cd,de,ef->af": ((20, 20),) * 5,
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
            kernel, blas = rates(n, dtype)
            print(f"{dtype} {n:>6}                        {kernel:8.1f} {blas:8.1f}")
    print("\nus of calls                        feinsum   numpy, best of both ways")
    for subscripts, shapes in REPEATED.items():
        print_row(subscripts, [(subscripts, *map(np.ones, shapes))], fastest)
    print_row("new sizes", new_sizes(), seconds)
    print_row("new subscripts", new_subscripts(), seconds)


def print_row(
    name: str, calls: list[tuple[Any, ...]], measure: Callable[..., float]
) -> None:
    """The median over calls; numpy's plain way where it is the faster one."""
    ours = median(measure(feinsum.einsum, *call) for call in calls)
    ways = (partial(np.einsum, optimize=True), np.einsum)
    # without a path, many operands take for ever
    usable = ways if len(calls[0]) < 4 else ways[:1]
    theirs = min(median(measure(way, *call) for call in calls) for way in usable)
    print(f"{name:32} {ours * 1e6:9.1f} {theirs * 1e6:7.1f}")


def rates(n: int, dtype: str) -> tuple[float, float]:
    a, b = np.ones((n, n), dtype), np.ones((n, n), dtype)
    out, indices = np.empty_like(a), encode_indices("ij", "jk", "ik")
    kernel_s = fastest(lambda: contract_pair(indices, a, b, out))
    return 2e-9 * n**3 / kernel_s, 2e-9 * n**3 / fastest(lambda: np.matmul(a, b))


def fastest(call: Callable[..., object], *arguments: object) -> float:
    """The shortest of runs that take a fifth of a second in all."""
    call(*arguments)
    best, end = float("inf"), perf_counter() + 0.2
    while perf_counter() < end:
        best = min(best, seconds(call, *arguments))
    return best


def seconds(call: Callable[..., object], *arguments: object) -> float:
    start = perf_counter()
    call(*arguments)
    return perf_counter() - start


def new_sizes() -> list[tuple[Any, ...]]:
    weights = np.ones((32, 64))
    return [("bi,oi->bo", np.ones((n, 64)), weights) for n in range(1, 301)]


def new_subscripts() -> list[tuple[Any, ...]]:
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
