"""Retrieval in two fresh processes: with an empty cache, and with what the first kept.

``python benchmarks/fresh.py --only "divergence_b[136]"`` starts both for each entry of
the suites. Every entry has a folder of its own for all caches on disk: ours, those of
Loopy and pyopencl, and the compiler's. Entries without a fact get one of the first
configuration of the first transform that fits.

Seconds of the wall clock, and of the processor: the latter hold also where other
programs run. Imports are left out. The first launch is without the time of a second
one, which computes the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

TARGETS = "host", "opencl"
STAGES = ("find", "build", "launch")
CLOCKS = ("wall clock", "processor")
STDERR = Console(stderr=True)
Seconds = dict[str, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="_b[136]_", help="entries whose names match")
    parser.add_argument("--max-gflop", type=float, default=6.0, help="scales entries")
    parser.add_argument(
        "--target", choices=TARGETS, default="host", help="what the kernels are for"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        given = *options.child, options.max_gflop, options.target
        print(json.dumps(child(*given)))
        return
    found = {
        name: measured(name, options.max_gflop, options.target)
        for name in track(names(options.only), "entries", console=STDERR)
    }
    report(Console(), found)


def names(pattern: str) -> list[str]:
    from benchmarks.experiments.entries import both_suites

    return [entry.name for entry in both_suites(pattern, max_gflop=math.inf)]


def measured(name: str, max_gflop: float, target: str) -> tuple[Seconds, Seconds]:
    """The first process and the second one, which finds what the first one kept."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"FEINSUM_CACHE_DIR": "feinsum", "POCL_CACHE_DIR": "pocl",
                  "XDG_CACHE_HOME": "others"}  # fmt: skip
        environment = os.environ | {k: f"{folder}/{v}" for k, v in caches.items()}
        for place in caches.values():
            (Path(folder) / place).mkdir(mode=0o700)
        command = [sys.executable, __file__, "--max-gflop", str(max_gflop)]
        command += ["--target", target, "--child", name, f"{folder}/facts.sqlite"]
        outputs = [
            subprocess.check_output(command, cwd=ROOT, env=environment)
            for _ in range(2)
        ]
        first, second = map(json.loads, outputs)
        return first, second


def child(name: str, database: str, max_gflop: float, target: str) -> Seconds:
    """Retrieve, build and run one entry in this process."""
    warnings.simplefilter("ignore")
    import loopy as lp

    import feinsum
    from benchmarks.experiments.entries import both_suites
    from benchmarks.experiments.user_kernel import user_kernel
    from feinsum.measure import compile_kernel, open_device

    (entry,) = both_suites(f"^{re.escape(name)}$", max_gflop=max_gflop)
    kernel, store = user_kernel(entry), _facts(entry, database)
    if target == "host":
        kernel = kernel.copy(target=lp.ExecutableCTarget())
    opened = open_device(target)
    retrieve = feinsum.retrieve  # imports what it needs
    clock = Clock()
    unit = retrieve(kernel, database=store, on_miss="raise")
    clock.stop("find")
    compiled = compile_kernel(unit, opened)
    clock.stop("build")
    kernel = compiled.bind({**entry.values(), **entry.parameters})
    clock.start()
    for stage in ("launch", "run"):
        kernel.run()
        clock.stop(stage)
    launch, run = clock.seconds["launch"], clock.seconds.pop("run")
    clock.seconds["launch"] = tuple(
        max(0.0, x - y) for x, y in zip(launch, run, strict=True)
    )
    return clock.seconds


def _facts(entry, path: str):
    """The facts that are shipped, or one for this entry."""
    from feinsum import canonicalize, query
    from feinsum.db import open_store
    from feinsum.ir import generalize
    from feinsum.transforms import applicable_transforms, configurations
    from tests.retrieval.facts import fact

    if query(entry.einsum()).record is not None:
        return None
    store = open_store(path)
    general = generalize(entry.einsum())[0]
    canonical = canonicalize(general).einsum
    transform = applicable_transforms(canonical)[0]
    store.add(fact(general, next(configurations(transform, canonical))))
    return store


class Clock:
    """Seconds of the wall and of the processor, stage by stage."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self.start()

    def start(self) -> None:
        self.before = time.perf_counter(), time.process_time()

    def stop(self, stage: str) -> None:
        wall, cpu = self.before
        self.seconds[stage] = time.perf_counter() - wall, time.process_time() - cpu
        self.start()


def report(console: Console, found: dict[str, tuple[Seconds, Seconds]]) -> None:
    for k, clock in enumerate(CLOCKS):
        table = Table(
            title=f"seconds of the {clock}",
            title_justify="left",
            box=box.SIMPLE,
            pad_edge=False,
            collapse_padding=True,
        )
        table.add_column("entry", no_wrap=True)
        for which in ("1st", "2nd"):
            for stage in (*STAGES, "sum"):
                table.add_column(f"{which}\n{stage}", justify="right", no_wrap=True)
        for name, runs in found.items():
            cells = []
            for run in runs:
                parts = [run[stage][k] for stage in STAGES]
                cells += [f"{seconds:.2f}" for seconds in (*parts, sum(parts))]
            table.add_row(name, *cells)
        console.print(table)


if __name__ == "__main__":
    main()
