"""Compare sparse einsums with scipy, torch, numba, and C.

``python benchmarks/sparse.py --scale 0.01`` multiplies sparse tensors by dense
matrices: SpMV, SpMM, MTTKRP and TTMc of the mode at the root of the tree, and TTTc, a
network of six tensors. All contenders of a row are checked, then timed in interleaved
rounds, when all threads are idle. ``tensora``, which is TACO in Python, runs in a
separate process, if its interpreter is given.

``unfactorized`` is our kernel of the nest that multiplies all operands in one loop over
all indices, in the same form. ``operations`` is its number of operations over that of
the factorized nest.

``plain C`` is the factorized nest of loops, compiled by gcc with ``-O3 -march=native``;
``SPLATT in C`` is the same with vectorized sums, by hand, after Smith et al. 2015,
*SPLATT: Efficient and parallel sparse tensor-matrix multiplication*. Both use as many
threads as ours, over parts with similar numbers of entries.

Extents and numbers of entries are those of `FROSTT <http://frostt.io/>`_; the numbers
of nodes at inner levels are assumptions. ``--scale`` multiplies numbers of nodes, and
its square root extents, so that the lengths of fibers stay and fit.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.bandwidth import make_triad
from benchmarks.experiments.contest import IdleTimed
from benchmarks.experiments.machine import describe_processor
from benchmarks.sparse_problems import (
    KERNELS,
    PATTERNS,
    TOLERANCE,
    Problem,
    is_applicable,
    make_problem,
)
from benchmarks.sparse_rivals import (
    RIVALS,
    TENSORA,
    UNFACTORIZED,
    prepare_ours,
    time_tensora,
)
from benchmarks.sparse_summary import OURS, Timed, list_claims, time_first_calls
from benchmarks.timing import time_call
from feinsum.measure import interleave
from feinsum.targets.devices import open_device

TRIAD_ENTRIES = 10_000_000
"""Entries of each array, which exceed all caches."""


@dataclass(frozen=True)
class Ready:
    """A contender as a call without arguments."""

    call: Callable[[], Any]

    def run(self, _timer: str | None = None) -> float:
        return time_call(self.call)


def measure(problem: Problem, options: argparse.Namespace) -> dict[str, float]:
    """Check all contenders, and return their median seconds."""
    timed = []
    for name, make in ({OURS: prepare_ours} | dict(RIVALS)).items():
        call = make(problem)
        if call is None:
            continue
        problem.check(name, call())
        timed.append(IdleTimed(name, Ready(call), lambda _name: None, 0.005))
    times = interleave(
        timed, rounds=options.rounds, warmup=1, min_total_s=0.0, max_total_s=30.0
    )
    medians = {w.name: median(t) for w, t in zip(timed, times, strict=True)}
    if options.tensora and options.dtype == "float64" and problem.name != "spmv":
        medians[TENSORA] = time_tensora(
            problem, options.tensora, min(options.rounds, 3)
        )
    return medians


def measure_triad() -> float:
    """Measure the bytes per second of the triad of doubles."""
    triad = make_triad(open_device("host"), TRIAD_ENTRIES)
    return 24 * TRIAD_ENTRIES / min(triad.run() for _ in range(7))


def make_table(results: Mapping[str, Timed]) -> Table:
    """Tabulate milliseconds, and speed-ups over the best rival."""
    names = (OURS, *RIVALS, TENSORA)
    heads = (f"{name}, ms" for name in names)
    last = "best rival / ours", "operations"
    table = Table("entry", *heads, *last, box=box.MARKDOWN)
    for name, timed in results.items():
        cells = (
            f"{timed.seconds[contender] * 1e3:.3f}"
            if contender in timed.seconds
            else "-"
            for contender in names
        )
        last = compute_ratio(timed.seconds), timed.operations
        table.add_row(name, *cells, *(f"{x:.2f}" for x in last))
    return table


def compute_ratio(seconds: Mapping[str, float]) -> float:
    """Return the speed-up over the best rival.

    Without a rival, as for TTMc without tensora, it is that over the unfactorized nest.
    """
    rivals = [s for n, s in seconds.items() if n not in (OURS, UNFACTORIZED)]
    return min(rivals or [seconds[UNFACTORIZED]]) / seconds[OURS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--rank", type=int, nargs="*", default=[16, 32, 64])
    parser.add_argument("--dtype", default="float64", choices=sorted(TOLERANCE))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tensora", default="", help="Python interpreter with tensora")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Timed] = {}
    rate = measure_triad()
    for kernel, (pattern, shape) in product(KERNELS, PATTERNS.items()):
        has_rank = kernel not in ("spmv", "tttc")
        names = {
            rank: f"{kernel} {pattern}" + (f" rank {rank}" if has_rank else "")
            for rank in (options.rank if has_rank else [1])
        }
        chosen = [rank for rank in names if re.search(options.only, names[rank])]
        if not chosen:
            continue
        scale = 1.0 if kernel == "tttc" else options.scale
        tree = shape.make_tree(scale, options.dtype)
        for rank in chosen:
            if is_applicable(kernel, shape, tree, rank):
                problem = make_problem(kernel, tree, rank, options.dtype)
                seconds = measure(problem, options)
                share = problem.n_bytes / seconds[OURS] / rate
                results[names[rank]] = Timed(
                    kernel, seconds, problem.compare_operations(), share
                )
                Console(stderr=True).print(names[rank], seconds)
    console = Console(width=200)
    console.print(
        f"{describe_processor()}, {open_device('host').device.compute_units} threads, "
        f"{options.dtype}, scale {options.scale:g}"
    )
    console.print(make_table(results))
    for line in list_claims(results.values()):
        console.print(line)
    imports, call = time_first_calls(min(options.rounds, 3))
    console.print(f"a first call: {imports:.2f} s of imports, {call:.2f} s of its own")
    missing = [name for name in ("scipy", "torch", "numba") if find_spec(name) is None]
    missing += [] if options.tensora else [TENSORA]
    console.print(f"not installed: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
