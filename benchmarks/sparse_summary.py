"""What the benchmark of sparse einsums says in the end: a ratio for each claim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import median

from benchmarks.sparse_rivals import TENSORA, UNFACTORIZED

OURS, SPLATT = "feinsum", "SPLATT in C"
LIBRARIES = ("scipy", "torch", "numba", "plain C", TENSORA)
CACHE_VARIABLE = "FEINSUM_CACHE_DIR"
COLD = """
from time import perf_counter
start = perf_counter()
import numpy as np, feinsum
from feinsum.sparse import random_profile
tree = random_profile((300, 200, 100), (300, 5000, 20_000), seed=0)
B, C = np.ones((200, 32)), np.ones((100, 32))
imported = perf_counter()
feinsum.call_einsum("ijk,ja,ka->ia", tree, B, C)
print(imported - start, perf_counter() - imported)
"""
"""Import and first call of MTTKRP, without kernels on disk."""


@dataclass(frozen=True)
class Timed:
    """One entry of the benchmark.

    Attributes:
        kernel: of which kind it is.
        seconds: of each contender.
        operations: of the unfactorized nest, over those of the best path.
        triad: part of the triad's bandwidth at which the arrays are read and written.
    """

    kernel: str
    seconds: Mapping[str, float]
    operations: float
    triad: float

    def over(self, *rivals: str) -> float | None:
        """How many times as fast we are as the best of some; None if none is there."""
        times = [self.seconds[name] for name in rivals if name in self.seconds]
        return min(times) / self.seconds[OURS] if times else None


def mean(values: Iterable[float | None]) -> str:
    """The geometric mean of those that are there.

    >>> mean([2.0, 8.0, None]), mean([])
    ('4.00', '-')
    """
    logs = [log(value) for value in values if value is not None]
    return f"{exp(sum(logs) / len(logs)):.2f}" if logs else "-"


def claims(entries: Iterable[Timed]) -> Iterator[str]:
    """A line for each claim of which there are entries."""
    by_kernel: dict[str, list[Timed]] = {}
    for entry in entries:
        by_kernel.setdefault(entry.kernel, []).append(entry)
    for kernel, ratios in by_kernel.items():
        yield f"{kernel}, geometric means of {len(ratios)} entries, times as fast as"
        kind = _of_networks if kernel in ("ttmc", "tttc") else _of_matrices
        yield from kind(ratios)


def _of_networks(entries: list[Timed]) -> Iterator[str]:
    ratios = [(entry.over(UNFACTORIZED) or 1.0, entry.operations) for entry in entries]
    parts = mean(times / operations for times, operations in ratios)
    yield f"- the unfactorized nest: {mean(times for times, _ in ratios)}"
    yield f"- its ratio of operations says: {parts} of that"
    yield f"- {TENSORA}: {mean(entry.over(TENSORA) for entry in entries)}"


def _of_matrices(entries: list[Timed]) -> Iterator[str]:
    for names in (LIBRARIES, ("scipy",), (SPLATT,)):
        ratio = mean(entry.over(*names) for entry in entries)
        yield f"- the best of {', '.join(names)}: {ratio}"
    part = mean(entry.triad for entry in entries)
    yield f"- the triad, in bytes of all arrays per second: {part}"


def cold_seconds(rounds: int = 3) -> tuple[float, float]:
    """Medians of the import, and of the first call: search, code, compilation, run."""
    seconds = []
    command, nothing_kept = [sys.executable, "-c", COLD], {CACHE_VARIABLE: "off"}
    for _ in range(rounds):
        completed = subprocess.run(
            command,
            env=os.environ | nothing_kept,
            capture_output=True,
            text=True,
            check=True,
        )
        imports, call = map(float, completed.stdout.split())
        seconds.append((imports, call))
    return median(x for x, _ in seconds), median(x for _, x in seconds)
