"""Whether a retrieved kernel is slower than the one that was given.

``python benchmarks/never_slower.py`` retrieves kernels of finite elements and random
products of arrays, each at three sizes and in a fresh cache, and times both kernels in
turns: as their user runs them, by the executors of their targets, and as
``feinsum.timeit`` builds them. No retrieved kernel may take more than 5 % longer. The
exit status is 1 if one certainly does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

SIZES = 1_000, 20_000, 200_000
SLOWER = 1.05


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=10, help="random kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    os.environ["FEINSUM_VERIFY"] = "on"
    n_slower = 0
    for name, make in kernels(options.kernels, options.seed):
        for size in options.sizes:
            n_slower += report(name, size, make(size))
    raise SystemExit(f"{n_slower} retrieved kernels are slower" if n_slower else 0)


def kernels(n: int, seed: int) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Names, and functions that make a kernel with so many cells."""
    for name, (statement, shapes) in FORMS.items():
        yield name, lambda n, s=statement, a=shapes: made(s, a, n)
    rng = Random(seed)
    for k in range(n):
        statement, shapes = drawn(rng)
        yield f"random {k}", lambda n, s=statement, a=shapes: made(s, a, n)


FORMS = {
    "mass action, 9 nodes": (
        "y[e,i] = det[e]*sum([q,j], w[q]*phi[q,i]*phi[q,j]*u[e,j])",
        {"det": "e", "w": "q", "phi": "qi", "u": "ej", "y": "ei", "": "i9j9q9"},
    ),
    "sum factorization": (
        "v[e,l,m,p] = sum((i,j,k), B[l,i]*B[m,j]*B[p,k]*u[e,i,j,k])",
        {"B": "li", "u": "eijk", "v": "elmp", "": "i5j5k5l6m6p6"},
    ),
    "mass matrix, 3 nodes": (
        "A[e,i,j] = det[e]*sum(q, w[q]*phi[q,i]*phi[q,j]*c[e,q])",
        {"det": "e", "w": "q", "phi": "qi", "c": "eq", "A": "eij", "": "i3j3q6"},
    ),
    "P1 stiffness": (
        "A[e,i,j] = vol[e]*sum(a, G[e,a,i]*G[e,a,j])",
        {"vol": "e", "G": "eai", "A": "eij", "": "i3j3a3"},
    ),
}
"""Statements, the indices of each array, and the extents of the short ones."""


def drawn(rng: Random) -> tuple[str, dict[str, str]]:
    """A product of two to four arrays, summed over one or two short indices."""
    outer, summed = "ei"[: rng.randint(1, 2)], "qj"[: rng.randint(1, 2)]
    indices = outer + summed
    shapes: dict[str, str] = {}
    for k in range(rng.randint(2, 4)):
        rank = rng.randint(1, min(3, len(indices)))
        shapes[f"x{k}"] = "".join(sorted(rng.sample(indices, rank)))
    missing = set(indices) - set("".join(shapes.values()))
    shapes["x0"] = "".join(sorted(set(shapes["x0"]) | missing))
    factors = "*".join(f"{n}[{','.join(s)}]" for n, s in shapes.items())
    statement = f"y[{','.join(outer)}] = sum(({','.join(summed)},), {factors})"
    extents = "".join(f"{i}{rng.randint(2, 12)}" for i in indices if i != "e")
    return statement, {**shapes, "y": outer, "": extents}


def made(statement: str, shapes: dict[str, str], n: int):
    """The kernel for Loopy's C executor."""
    import loopy as lp

    text = shapes[""]
    letters = [c for c in text if c.isalpha()]
    numbers = "".join(c if c.isdigit() else " " for c in text).split()
    extents = {"e": n} | dict(zip(letters, map(int, numbers), strict=True))
    arrays = {name: indices for name, indices in shapes.items() if name}
    used = "".join(arrays.values())
    bounds = " and ".join(f"0 <= {i} < {x}" for i, x in extents.items() if i in used)
    return lp.make_kernel(
        f"{{[{','.join(i for i in extents if i in used)}]: {bounds}}}",
        statement,
        [
            lp.GlobalArg(name, np.float64, shape=tuple(extents[i] for i in indices))
            for name, indices in arrays.items()
        ],
        target=lp.ExecutableCTarget(),
        lang_version=(2018, 2),
    )


def report(name: str, size: int, kernel: object) -> bool:
    """Print how many times as fast the retrieved kernel is; whether it is slower."""
    from feinsum import retrieve
    from feinsum.memory import use_fresh_memory
    from feinsum.select import compute_time_ratio, sample_in_turns

    with tempfile.TemporaryDirectory() as folder, use_fresh_memory():
        os.environ["FEINSUM_CACHE_DIR"] = folder
        start = time.perf_counter()
        retrieved = retrieve(kernel, on_miss="return")
        retrieval_s = time.perf_counter() - start
        if retrieved is kernel:
            print(f"{name:24} n={size:<8} as given  ({retrieval_s:.1f} s)", flush=True)
            return False
        is_slower, words = False, []
        for runs in (by_executors(kernel, retrieved), by_timeit(kernel, retrieved)):
            first_s = [run() for run in runs]
            samples = sample_in_turns(runs, first_s, [(0, 1)], budget_s=1.0)
            ratio = compute_time_ratio(*samples)
            is_slower |= ratio.median < 1 / SLOWER and ratio.high < 1
            words.append(f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
    mark = "SLOWER" if is_slower else ""
    times = ", ".join(words)
    print(f"{name:24} n={size:<8} {times}  ({retrieval_s:.1f} s) {mark}", flush=True)
    return is_slower


def by_executors(*units: object) -> list[Callable[[], float]]:
    """As the user runs them, with results to write into."""
    arguments = {
        arg.name: np.random.default_rng(0).uniform(0.5, 1.5, arg.shape)
        for arg in units[0].default_entrypoint.args
    }

    def run_of(unit: object) -> Callable[[], float]:
        executor = unit.executor()

        def run() -> float:
            start = time.perf_counter()
            executor(**arguments)
            return time.perf_counter() - start

        run()  # which compiles
        return run

    return [run_of(unit) for unit in units]


def by_timeit(*units: object) -> list[Callable[[], float]]:
    """As feinsum builds them."""
    from feinsum.measure.timing import bind_at

    first, *others = (bind_at(unit, {}) for unit in units)
    return [first.run, *(other.sharing(first).run for other in others)]


if __name__ == "__main__":
    main()
