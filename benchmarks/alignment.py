"""What an unaligned result costs: only aligned vectors bypass the caches.

``python benchmarks/alignment.py ENTRY`` runs the recipe of an entry of the suites on
the host, with results that begin some bytes after a cache line, and prints the median
time for each. Large arrays of numpy begin 16 bytes after one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

OFFSETS = 0, 16, 32, 8
PAGE = 4096


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("entry", help="the name of an entry with one result")
    parser.add_argument("--max-gflop", type=float, default=4.0, help="scales it down")
    parser.add_argument("--rounds", type=int, default=9, help="runs for each place")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    options = parser.parse_args(arguments)
    from benchmarks.experiments.machine import processor

    seconds = seconds_by_offset(options.entry, options.max_gflop, options.rounds)
    if options.json:
        document = {"processor": processor(), "entry": options.entry}
        print(json.dumps({**document, "seconds": seconds}, indent=2))
        return
    table = Table("bytes after a line", "ms", box=box.SIMPLE, pad_edge=False)
    for offset, time_s in seconds.items():
        table.add_row(str(offset), f"{1e3 * time_s:.2f}")
    Console().print(table, f"{options.entry}; {processor()}")


def seconds_by_offset(name: str, max_gflop: float, rounds: int) -> dict[int, float]:
    """The median of the runs, which take turns over the places."""
    warnings.simplefilter("ignore")
    from benchmarks.experiments.entries import both_suites
    from benchmarks.experiments.user_kernel import user_kernel
    from feinsum import retrieve
    from feinsum.measure import open_device

    entries = both_suites(f"^{re.escape(name)}$", max_gflop=max_gflop)
    if len(entries) != 1 or len(entries[0].outputs) != 1:
        raise SystemExit(f"{name!r} is no entry of the suites with one result")
    entry, device = entries[0], open_device("host")
    kernel = retrieve(user_kernel(entry), device="host")
    built = device.build(device.prepare(kernel))
    arguments = {**entry.values(), **entry.scalars, **entry.parameters}
    results = places(entry.shape(entry.output))
    times: dict[int, list[float]] = {offset: [] for offset in OFFSETS}
    for _ in range(rounds + 1):
        for offset, result in results.items():
            run = {**arguments, entry.outputs[0]: result}
            times[offset].append(built.run(run, "wall"))
    return {offset: median(samples[1:]) for offset, samples in times.items()}


def places(shape: tuple[int, ...]) -> dict[int, np.ndarray]:
    """One array at all places, so that all runs write to the same memory."""
    n_bytes = prod(shape) * 8
    memory = np.empty(n_bytes + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return {
        offset: memory[start + offset :][:n_bytes].view(np.float64).reshape(shape)
        for offset in OFFSETS
    }


if __name__ == "__main__":
    main()
