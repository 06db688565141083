"""What believing nobody costs: the time in which recipes are verified and timed here.

``python benchmarks/verification.py`` retrieves a recipe for every entry of the suites,
of which each kernel is one nest, as somebody with an empty cache and no facts of their
own does, and compiles it: once in a process that verifies recipes and times them
against the untransformed kernel before their first use, and once in a process that
takes them as they are. What the first takes more is the cost of a nest. The compiler is
run in both: where a recipe is verified, it runs meanwhile, and not again for the first
call.

Each process begins with an einsum of its own that does not count, for which it imports
what it needs. With ``--rounds N`` both are started N times, and medians count.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.caches import empty_caches  # noqa: E402

MODES = "on", "off"
TARGETS = "host", "opencl"
WARM_UP = "^divergence_b1_Ni4$"
STDERR = Console(stderr=True)
Seconds = Mapping[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--max-gflop", type=float, default=6.0, help="scales entries")
    parser.add_argument("--target", choices=TARGETS, default="host")
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(retrieved(options)))
        return
    results = {mode: medians(options, mode) for mode in MODES}
    costs = {name: results["on"][name] - results["off"][name] for name in results["on"]}
    if not costs:
        raise SystemExit(f"no entry matches {options.only!r}")
    report(options.json, results, costs)


def medians(options: argparse.Namespace, verify: str) -> Seconds:
    """Seconds of each entry, in the median of some processes."""
    rounds = [
        in_a_process(options, verify)
        for _ in track(range(options.rounds), f"verify={verify}", console=STDERR)
    ]
    return {name: median(seconds[name] for seconds in rounds) for name in rounds[0]}


def in_a_process(options: argparse.Namespace, verify: str) -> Seconds:
    """What a process with an empty cache says."""
    command = [sys.executable, __file__, "--child", "--only", options.only]
    command += ["--max-gflop", str(options.max_gflop), "--target", options.target]
    with tempfile.TemporaryDirectory() as folder:
        variables = empty_caches(folder)
        settings = {"FEINSUM_VERIFY": verify, "FEINSUM_LAYERS": "packaged"}
        environment = os.environ | variables | settings
        answer = subprocess.check_output(command, cwd=ROOT, env=environment)
    seconds: Seconds = json.loads(answer)
    return seconds


def retrieved(options: argparse.Namespace) -> Seconds:
    """Seconds that this process needs for the recipe of each entry."""
    warnings.simplefilter("ignore")
    from benchmarks.experiments.entries import both_suites

    (first,) = both_suites(WARM_UP, max_gflop=math.inf)
    seconds_of(first, options.target)
    entries = both_suites(options.only, max_gflop=options.max_gflop)
    return {
        entry.name: seconds_of(entry, options.target)
        for entry in track(entries, "entries", console=STDERR)
        if not re.match(WARM_UP, entry.name)
    }


def seconds_of(entry, target: str) -> float:
    """Seconds until the kernel of an entry is retrieved and compiled."""
    import loopy as lp

    from benchmarks.experiments.user_kernel import user_kernel
    from feinsum.measure import open_device
    from feinsum.retrieval import look_up

    kernel, opened = user_kernel(entry), open_device(target)
    if target == "host":
        kernel = kernel.copy(target=lp.ExecutableCTarget())
    before_s = time.perf_counter()
    opened.build(look_up(kernel).t_unit)
    return time.perf_counter() - before_s


def report(as_json: bool, results: Mapping[str, Seconds], costs: Seconds) -> None:
    from benchmarks.experiments.machine import processor

    if as_json:
        entries = {
            name: {
                "verified_s": results["on"][name],
                "unverified_s": results["off"][name],
            }
            for name in costs
        }
        about = {"processor": processor(), "median_s": median(costs.values())}
        print(json.dumps({**about, "entries": entries}, indent=2))
        return
    table = Table("entry", box=box.SIMPLE, pad_edge=False)
    for heading in ("verified s", "unverified s", "cost s"):
        table.add_column(heading, justify="right")
    for name, cost in sorted(costs.items(), key=lambda item: -item[1]):
        cells = results["on"][name], results["off"][name], cost
        table.add_row(name, *(f"{cell:.2f}" for cell in cells))
    console = Console()
    console.print(table)
    middle = f"{median(costs.values()):.2f} s in the median"
    console.print(f"{len(costs)} nests, {middle}; {processor()}")


if __name__ == "__main__":
    main()
