"""Measure the cost of verifying retrieved recipes before their first use.

``python -m benchmarks.verification`` retrieves and compiles the kernel of every entry
of the suites, each a single nest, with an empty cache and no facts of the user: in a
process that verifies recipes and times them against the untransformed kernel, and in a
process that does not. The difference is the cost of a nest. The compiler runs in both:
verification runs it concurrently, and its result is used by the first call.

Each process starts with another einsum that does not count, for imports. With
``--rounds N``, medians of N processes count.
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
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.progress import track

from benchmarks.processes import make_empty_caches, run_command
from benchmarks.tables import make_table

MODES = "on", "off"
TARGETS = "host", "opencl"
WARM_UP = "^divergence_b1_Ni4$"
STDERR = Console(stderr=True)
Seconds = Mapping[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument(
        "--max-gflop", type=float, default=6.0, help="scale larger entries down to this"
    )
    parser.add_argument("--target", choices=TARGETS, default="host")
    parser.add_argument("--rounds", type=int, default=1, help="number of samples")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(time_all(options)))
        return
    results = {mode: compute_medians(options, mode) for mode in MODES}
    costs = {name: results["on"][name] - results["off"][name] for name in results["on"]}
    if not costs:
        raise SystemExit(f"no entry matches {options.only!r}")
    report(options.json, results, costs)


def compute_medians(options: argparse.Namespace, verify: str) -> Seconds:
    """Return the median seconds of each entry over several processes."""
    rounds = [
        run_child(options, verify)
        for _ in track(range(options.rounds), f"verify={verify}", console=STDERR)
    ]
    return {name: median(seconds[name] for seconds in rounds) for name in rounds[0]}


def run_child(options: argparse.Namespace, verify: str) -> Seconds:
    """Run a child process with an empty cache, and return its seconds."""
    command = [sys.executable, __file__, "--child", "--only", options.only]
    command += ["--max-gflop", str(options.max_gflop), "--target", options.target]
    settings = {"FEINSUM_VERIFY": verify, "FEINSUM_LAYERS": "packaged"}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | make_empty_caches(folder) | settings
        seconds: Seconds = json.loads(run_command(command, environment))
    return seconds


def time_all(options: argparse.Namespace) -> Seconds:
    """Return the seconds that this process needs for each entry."""
    warnings.simplefilter("ignore")
    from benchmarks.experiments.entries import list_both_suites

    (first,) = list_both_suites(WARM_UP, max_gflop=math.inf)
    time_entry(first, options.target)
    entries = list_both_suites(options.only, max_gflop=options.max_gflop)
    return {
        entry.name: time_entry(entry, options.target)
        for entry in track(entries, "entries", console=STDERR)
        if not re.match(WARM_UP, entry.name)
    }


def time_entry(entry, target: str) -> float:
    """Time the retrieval and compilation of an entry's kernel."""
    import loopy as lp

    from benchmarks.experiments.user_kernel import make_user_kernel
    from feinsum.measure import open_device
    from feinsum.retrieval import look_up

    kernel, opened = make_user_kernel(entry), open_device(target)
    if target == "host":
        kernel = kernel.copy(target=lp.ExecutableCTarget())
    before_s = time.perf_counter()
    opened.build(look_up(kernel).t_unit)
    return time.perf_counter() - before_s


def report(as_json: bool, results: Mapping[str, Seconds], costs: Seconds) -> None:
    from benchmarks.experiments.machine import describe_processor

    if as_json:
        entries = {
            name: {
                "verified_s": results["on"][name],
                "unverified_s": results["off"][name],
            }
            for name in costs
        }
        about = {"processor": describe_processor(), "median_s": median(costs.values())}
        print(json.dumps({**about, "entries": entries}, indent=2))
        return
    rows = [
        (name, *(f"{s:.2f}" for s in (results["on"][name], results["off"][name], cost)))
        for name, cost in sorted(costs.items(), key=lambda item: -item[1])
    ]
    console = Console()
    console.print(make_table(["entry"], ("verified s", "unverified s", "cost s"), rows))
    middle = f"{median(costs.values()):.2f} s in the median"
    console.print(f"{len(costs)} nests, {middle}; {describe_processor()}")


if __name__ == "__main__":
    main()
