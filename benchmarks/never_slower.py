"""Check that retrieved kernels are not slower than the given ones.

``python benchmarks/never_slower.py`` retrieves finite-element kernels and random
products of arrays, each at three sizes and with an empty cache, and times both versions
in interleaved rounds: by the executors of their targets, as users run them, and as
``feinsum.timeit`` builds them. No retrieved kernel may take more than 5 % longer. The
exit status is 1 if one significantly does.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.timing import time_call

ROOT = Path(__file__).parents[1]

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
    for name, make in list_kernels(options.kernels, options.seed):
        for size in options.sizes:
            n_slower += report(name, size, make(size))
    raise SystemExit(f"{n_slower} retrieved kernels are slower" if n_slower else 0)


def list_kernels(n: int, seed: int) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield names, and functions that make a kernel with a number of cells."""
    for name, (statement, shapes) in FORMS.items():
        yield name, lambda n, s=statement, a=shapes: make_kernel(s, a, n)
    rng = Random(seed)
    for k in range(n):
        statement, shapes = draw_statement(rng)
        yield f"random {k}", lambda n, s=statement, a=shapes: make_kernel(s, a, n)


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
"""Statements, the indices of each array, and the extents of short indices."""


def draw_statement(rng: Random) -> tuple[str, dict[str, str]]:
    """Draw a product of two to four arrays, summed over one or two short indices."""
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


def make_kernel(statement: str, shapes: dict[str, str], n: int):
    """Make a kernel for Loopy's C executor."""
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
    """Print the speed-ups of the retrieved kernel; return whether it is slower."""
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
        is_slower, ratios = False, []
        for runs in (
            make_executor_runs(kernel, retrieved),
            make_timeit_runs(kernel, retrieved),
        ):
            first_s = [run() for run in runs]
            samples = sample_in_turns(runs, first_s, [(0, 1)], budget_s=1.0)
            ratio = compute_time_ratio(*samples)
            is_slower |= ratio.median < 1 / SLOWER and ratio.high < 1
            ratios.append(f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
    verdict = "SLOWER" if is_slower else ""
    times = ", ".join(ratios)
    print(f"{name:24} n={size:<8} {times}  ({retrieval_s:.1f} s) {verdict}", flush=True)
    return is_slower


def make_executor_runs(*units: object) -> list[Callable[[], float]]:
    """Return functions that time kernels by their executors, with outputs."""
    arguments = {
        arg.name: np.random.default_rng(0).uniform(0.5, 1.5, arg.shape)
        for arg in units[0].default_entrypoint.args
    }

    def make_run(unit: object) -> Callable[[], float]:
        executor = unit.executor()

        run = partial(time_call, partial(executor, **arguments))
        run()  # compiles
        return run

    return [make_run(unit) for unit in units]


def make_timeit_runs(*units: object) -> list[Callable[[], float]]:
    """Return functions that time kernels as feinsum builds them."""
    from feinsum.measure.timing import bind_at

    first, *others = (bind_at(unit, {}) for unit in units)
    return [first.run, *(other.sharing(first).run for other in others)]


if __name__ == "__main__":
    main()
