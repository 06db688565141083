"""Retrieval in two fresh processes: with an empty cache, and with what the first kept.

``python benchmarks/fresh.py --only "divergence_b[136]"`` starts both for each entry of
the suites. Every entry has a folder of its own for all caches on disk: ours, those of
Loopy and pyopencl, and the compiler's. Entries without a fact get one of the first
configuration of the first transform that fits.

The first result is timed from the user's kernel on: find (retrieve), build, and the
first launch without the time of a second one, which computes the same. Imports are
apart. ``--rounds N`` repeats all of it, and medians count. The last columns are the
seconds of the processor of each process with all that it started, imports included:
these hold also where other programs run.
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
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.caches import empty_caches  # noqa: E402

TARGETS = "host", "opencl"
STAGES = ("import", "find", "build", "launch", "result", "processor")
STDERR = Console(stderr=True)
Seconds = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="_b[136]_", help="entries whose names match")
    parser.add_argument("--max-gflop", type=float, default=6.0, help="scales entries")
    parser.add_argument(
        "--target", choices=TARGETS, default="host", help="what the kernels are for"
    )
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        task = *options.child, options.max_gflop, options.target
        print(json.dumps(child(*task)))
        return
    results = {
        name: medians(
            measured(name, options.max_gflop, options.target)
            for _ in range(options.rounds)
        )
        for name in track(names(options.only), "entries", console=STDERR)
    }
    report(Console(), results)


def names(pattern: str) -> list[str]:
    from benchmarks.experiments.entries import both_suites

    return [entry.name for entry in both_suites(pattern, max_gflop=math.inf)]


def medians(rounds: Iterable[list[Seconds]]) -> list[Seconds]:
    """Stage by stage, of the first processes and of the second ones."""
    return [
        {stage: median(seconds[stage] for seconds in stages) for stage in STAGES}
        for stages in zip(*rounds, strict=True)
    ]


def measured(name: str, max_gflop: float, target: str) -> list[Seconds]:
    """The first process and the second one, which finds what the first one kept."""
    with tempfile.TemporaryDirectory() as folder:
        variables = empty_caches(folder)
        variables["FEINSUM_DATABASE"] = empty_database(f"{folder}/user.sqlite")
        command = [sys.executable, __file__, "--max-gflop", str(max_gflop)]
        command += ["--target", target, "--child", name]
        command.append(facts(name, max_gflop, f"{folder}/facts.sqlite"))
        return [started(command, os.environ | variables) for _ in range(2)]


def empty_database(path: str) -> str:
    """A database without facts of this machine; its path."""
    from feinsum.db import open_store

    open_store(path, may_create=True).close()
    return path


def started(command: list[str], environment: dict[str, str]) -> Seconds:
    """What a process says, and the seconds of the processor that it took."""
    before = sum(os.times()[2:4])
    answer = json.loads(subprocess.check_output(command, cwd=ROOT, env=environment))
    return {**answer, "processor": sum(os.times()[2:4]) - before}


def child(name: str, database: str, max_gflop: float, target: str) -> Seconds:
    """Retrieve, build and run one entry in this process."""
    warnings.simplefilter("ignore")
    clock = Clock()
    import loopy as lp

    import feinsum

    retrieve = feinsum.retrieve  # imports what it needs
    clock.stop("import")
    from benchmarks.experiments.user_kernel import user_kernel
    from feinsum.measure import compile_kernel, open_device

    entry = entry_of(name, max_gflop)
    kernel = user_kernel(entry)
    if target == "host":
        kernel = kernel.copy(target=lp.ExecutableCTarget())
    clock.start()
    unit = retrieve(kernel, database=database or None, on_miss="raise")
    clock.stop("find")
    compiled = compile_kernel(unit, open_device(target))
    clock.stop("build")
    kernel = compiled.bind({**entry.values(), **entry.parameters})
    clock.start()
    for stage in ("launch", "run"):
        kernel.run()
        clock.stop(stage)
    seconds = clock.seconds
    seconds["launch"] = max(0.0, seconds["launch"] - seconds.pop("run"))
    seconds["result"] = sum(seconds[stage] for stage in ("find", "build", "launch"))
    return seconds


def facts(name: str, max_gflop: float, path: str) -> str:
    """A database with a fact for an entry; nothing where one is shipped."""
    from feinsum import canonicalize, query
    from feinsum.db import open_store
    from feinsum.ir import generalize
    from feinsum.transforms import find_applicable_transforms, list_configurations
    from tests.retrieval.facts import fact

    entry = entry_of(name, max_gflop)
    if query(entry.einsum()).record is not None:
        return ""
    general = generalize(entry.einsum())[0]
    canonical = canonicalize(general).einsum
    transform = find_applicable_transforms(canonical)[0]
    open_store(path).add(fact(general, next(list_configurations(transform, canonical))))
    return path


def entry_of(name: str, max_gflop: float):
    from benchmarks.experiments.entries import both_suites

    (entry,) = both_suites(f"^{re.escape(name)}$", max_gflop=max_gflop)
    return entry


class Clock:
    """Seconds of the wall clock, stage by stage."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self.start()

    def start(self) -> None:
        self.before = time.perf_counter()

    def stop(self, stage: str) -> None:
        self.seconds[stage] = time.perf_counter() - self.before
        self.start()


def report(console: Console, results: dict[str, list[Seconds]]) -> None:
    for which, title in enumerate(("an empty cache", "what the first process kept")):
        rows = {name: runs[which] for name, runs in results.items()}
        if len(rows) > 1:
            (rows["median"],) = medians([one] for one in list(rows.values()))
        table = Table(
            title=f"seconds with {title}", title_justify="left", box=box.SIMPLE
        )
        table.add_column("entry", no_wrap=True)
        for stage in STAGES:
            table.add_column(stage, justify="right")
        for name, seconds in rows.items():
            table.add_row(name, *(f"{seconds[stage]:.2f}" for stage in STAGES))
        console.print(table)


if __name__ == "__main__":
    main()
