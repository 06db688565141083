"""Time a retrieval in two fresh processes: with an empty cache, and with that of the
first.

``python -m benchmarks.fresh --only "divergence_b[136]"`` starts both for each entry of
the suites. Every entry has separate folders for all caches on disk: ours, those of
Loopy and pyopencl, and the compiler's. Entries without a fact get one with the first
configuration of the first applicable transform.

The first result is timed from the user's kernel on: find (retrieve), build, and the
overhead of the first launch over a second one. Imports are a separate column. With
``--rounds N``, medians of N runs count. The last column is processor time of the
process and its children, including imports, which other load affects little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import Console
from rich.progress import track

from benchmarks.processes import make_empty_caches, run_command
from benchmarks.tables import make_table

TARGETS = "host", "opencl"
STAGES = ("import", "find", "build", "launch", "result", "processor")
STDERR = Console(stderr=True)
Seconds = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="_b[136]_", help="entries whose names match")
    parser.add_argument(
        "--max-gflop", type=float, default=6.0, help="scale larger entries down to this"
    )
    parser.add_argument(
        "--target", choices=TARGETS, default="host", help="target of the kernels"
    )
    parser.add_argument("--rounds", type=int, default=1, help="number of samples")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        task = *options.child, options.max_gflop, options.target
        print(json.dumps(retrieve_entry(*task)))
        return
    results = {
        name: compute_medians(
            measure(name, options.max_gflop, options.target)
            for _ in range(options.rounds)
        )
        for name in track(list_names(options.only), "entries", console=STDERR)
    }
    report(Console(), results)


def list_names(pattern: str) -> list[str]:
    from benchmarks.experiments.entries import list_both_suites

    return [entry.name for entry in list_both_suites(pattern, max_gflop=math.inf)]


def compute_medians(rounds: Iterable[list[Seconds]]) -> list[Seconds]:
    """Return medians stage by stage, of first and of second processes."""
    return [
        {stage: median(seconds[stage] for seconds in stages) for stage in STAGES}
        for stages in zip(*rounds, strict=True)
    ]


def measure(name: str, max_gflop: float, target: str) -> list[Seconds]:
    """Run the first process, and the second one with its caches."""
    with tempfile.TemporaryDirectory() as folder:
        variables = make_empty_caches(folder)
        variables["FEINSUM_DATABASE"] = make_empty_database(f"{folder}/user.sqlite")
        command = [sys.executable, __file__, "--max-gflop", str(max_gflop)]
        command += ["--target", target, "--child", name]
        command.append(make_facts(name, max_gflop, f"{folder}/facts.sqlite"))
        return [run_child(command, os.environ | variables) for _ in range(2)]


def make_empty_database(path: str) -> str:
    """Create a database without facts of this machine, and return its path."""
    from feinsum.db import open_store

    open_store(path, may_create=True).close()
    return path


def run_child(command: list[str], environment: dict[str, str]) -> Seconds:
    """Run a process, and return its output and processor time."""
    before_s = sum(os.times()[2:4])
    stages = json.loads(run_command(command, environment))
    return {**stages, "processor": sum(os.times()[2:4]) - before_s}


def retrieve_entry(name: str, database: str, max_gflop: float, target: str) -> Seconds:
    """Retrieve, build and run one entry in this process."""
    warnings.simplefilter("ignore")
    clock = Clock()
    import loopy as lp

    import feinsum

    retrieve = feinsum.retrieve  # resolved lazily
    clock.stop("import")
    from benchmarks.experiments.user_kernel import make_user_kernel
    from feinsum.measure import compile_kernel, open_device

    entry = find_entry(name, max_gflop)
    kernel = make_user_kernel(entry)
    if target == "host":
        kernel = kernel.copy(target=lp.ExecutableCTarget())
    clock.start()
    unit = retrieve(kernel, database=database or None, on_miss="raise")
    clock.stop("find")
    compiled = compile_kernel(unit, open_device(target))
    clock.stop("build")
    kernel = compiled.bind({**entry.draw_values(), **entry.parameters})
    clock.start()
    for stage in ("launch", "run"):
        kernel.run()
        clock.stop(stage)
    seconds = clock.seconds
    seconds["launch"] = max(0.0, seconds["launch"] - seconds.pop("run"))
    seconds["result"] = sum(seconds[stage] for stage in ("find", "build", "launch"))
    return seconds


def make_facts(name: str, max_gflop: float, path: str) -> str:
    """Create a database with a fact for an entry; return "" if one is packaged."""
    from feinsum import canonicalize, query
    from feinsum.db import open_store
    from feinsum.ir import generalize
    from feinsum.transforms import find_applicable_transforms, list_configurations
    from tests.retrieval.facts import fact

    entry = find_entry(name, max_gflop)
    if query(entry.make_einsum()).record is not None:
        return ""
    general = generalize(entry.make_einsum())[0]
    canonical = canonicalize(general).einsum
    transform = find_applicable_transforms(canonical)[0]
    open_store(path).add(fact(general, next(list_configurations(transform, canonical))))
    return path


def find_entry(name: str, max_gflop: float):
    from benchmarks.experiments.entries import list_both_suites

    (entry,) = list_both_suites(f"^{re.escape(name)}$", max_gflop=max_gflop)
    return entry


class Clock:
    """A stopwatch of stages, by wall-clock time."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self.start()

    def start(self) -> None:
        self.before = time.perf_counter()

    def stop(self, stage: str) -> None:
        self.seconds[stage] = time.perf_counter() - self.before
        self.start()


def report(console: Console, results: dict[str, list[Seconds]]) -> None:
    for k, title in enumerate(("an empty cache", "the cache of the first process")):
        rows = {name: runs[k] for name, runs in results.items()}
        if len(rows) > 1:
            (rows["median"],) = compute_medians([run] for run in list(rows.values()))
        table = make_table(
            ["entry"],
            STAGES,
            (
                (name, *(f"{seconds[stage]:.2f}" for stage in STAGES))
                for name, seconds in rows.items()
            ),
            title=f"seconds with {title}",
            title_justify="left",
        )
        console.print(table)


if __name__ == "__main__":
    main()
