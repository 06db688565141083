"""Sparse einsums against scipy, torch, numba, and C.

``python benchmarks/sparse.py --scale 0.01`` multiplies sparse tensors by dense
matrices: SpMV, SpMM, MTTKRP and TTMc of the mode at the root of the tree, and TTTc, a
network of six tensors. All contenders of a row are checked, then run in turns, and each
waits until no thread of another one works. ``tensora``, which is TACO in Python, runs
in a process of its own, if an interpreter is named that has it.

``unfactorized`` is our kernel of the nest that multiplies all operands in one loop over
all indices, in the same form. ``operations`` says how many times as many it takes.

``plain C`` is the nest of loops that factors the product, as gcc compiles it with ``-O3
-march=native``; ``SPLATT in C`` is the same with its sums in vectors, by hand, after
Smith et al. 2015, *SPLATT: Efficient and parallel sparse tensor-matrix multiplication*.
Both run on as many threads as we do, over parts of about equally many entries.

Extents and numbers of entries are those of `FROSTT <http://frostt.io/>`_; how many
nodes lie between is assumed. ``--scale`` multiplies numbers of nodes, and its square
root extents, so that fibers keep their lengths and have room.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bandwidth import make_triad
from benchmarks.experiments.contest import Watched
from benchmarks.experiments.machine import processor
from benchmarks.sparse_problems import (
    KERNELS,
    PATTERNS,
    TOLERANCE,
    Problem,
    fits,
    make_problem,
)
from benchmarks.sparse_rivals import RIVALS, TENSORA, UNFACTORIZED, ours, tensora_s
from benchmarks.sparse_summary import OURS, Timed, claims, cold_seconds
from feinsum.measure import interleave
from feinsum.targets.devices import open_device

TRIAD_ENTRIES = 10_000_000
"""Of each array, which no cache holds."""


@dataclass(frozen=True)
class Ready:
    """A contender's function of nothing."""

    call: Callable[[], Any]

    def run(self, _timer: str | None = None) -> float:
        start = perf_counter()
        self.call()
        return perf_counter() - start


def contest(problem: Problem, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of each contender that there is; all are right."""
    watched = []
    for name, make in ({OURS: ours} | dict(RIVALS)).items():
        call = make(problem)
        if call is None:
            continue
        problem.check(name, call())
        watched.append(Watched(name, Ready(call), lambda _name: None, 0.005))
    times = interleave(
        watched, rounds=options.rounds, warmup=1, min_total_s=0.0, max_total_s=30.0
    )
    medians = {w.name: median(t) for w, t in zip(watched, times, strict=True)}
    if options.tensora and options.dtype == "float64" and problem.name != "spmv":
        medians[TENSORA] = tensora_s(problem, options.tensora, min(options.rounds, 3))
    return medians


def triad_rate() -> float:
    """Bytes per second of the triad of doubles."""
    triad = make_triad(open_device("host"), TRIAD_ENTRIES)
    return 24 * TRIAD_ENTRIES / min(triad.run() for _ in range(7))


def table_of(results: Mapping[str, Timed]) -> Table:
    """Milliseconds, and how many times as fast ours is as the best of the rivals."""
    names = (OURS, *RIVALS, TENSORA)
    heads = (f"{name}, ms" for name in names)
    last = "best rival / ours", "operations"
    table = Table("entry", *heads, *last, box=box.MARKDOWN)
    for name, timed in results.items():
        cells = (
            f"{timed.seconds[one] * 1e3:.3f}" if one in timed.seconds else "-"
            for one in names
        )
        last = ratio(timed.seconds), timed.operations
        table.add_row(name, *cells, *(f"{x:.2f}" for x in last))
    return table


def ratio(seconds: Mapping[str, float]) -> float:
    """How many times as fast we are as the best rival.

    Where there is none, as for TTMc without tensora, as our unfactorized nest.
    """
    rivals = [s for n, s in seconds.items() if n not in (OURS, UNFACTORIZED)]
    return min(rivals or [seconds[UNFACTORIZED]]) / seconds[OURS]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--rank", type=int, nargs="*", default=[16, 32, 64])
    parser.add_argument("--dtype", default="float64", choices=sorted(TOLERANCE))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tensora", default="", help="a Python that has tensora")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    results: dict[str, Timed] = {}
    rate = triad_rate()
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
        tree = shape.tree(scale, options.dtype)
        for rank in chosen:
            if fits(kernel, shape, tree, rank):
                problem = make_problem(kernel, tree, rank, options.dtype)
                seconds = contest(problem, options)
                part = problem.n_bytes / seconds[OURS] / rate
                results[names[rank]] = Timed(
                    kernel, seconds, problem.operations(), part
                )
                Console(stderr=True).print(names[rank], seconds)
    console = Console(width=200)
    console.print(
        f"{processor()}, {open_device('host').device.compute_units} threads, "
        f"{options.dtype}, scale {options.scale:g}"
    )
    console.print(table_of(results))
    for line in claims(results.values()):
        console.print(line)
    imports, call = cold_seconds(min(options.rounds, 3))
    console.print(f"a first call: {imports:.2f} s of imports, {call:.2f} s of its own")
    missing = [name for name in ("scipy", "torch", "numba") if find_spec(name) is None]
    missing += [] if options.tensora else [TENSORA]
    console.print(f"not installed: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
