"""Summarize the benchmark of sparse einsums by one ratio for each claim."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import geometric_mean, median

from benchmarks.processes import run_command
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
"""Import and first call of MTTKRP, without cached kernels."""


@dataclass(frozen=True)
class Timed:
    """The measurements of one entry of the benchmark.

    Attributes:
        kernel: the kind of einsum.
        seconds: median time of each contender.
        operations: number for the unfactorized nest over that for the best path.
        triad: effective bandwidth over that of the triad.
    """

    kernel: str
    seconds: Mapping[str, float]
    operations: float
    triad: float

    def compute_speedup(self, *rivals: str) -> float | None:
        """Return the speed-up over the best of some rivals; None without times."""
        times = [self.seconds[name] for name in rivals if name in self.seconds]
        return min(times) / self.seconds[OURS] if times else None


def format_mean(values: Iterable[float | None]) -> str:
    """Format the geometric mean of ratios.

    >>> format_mean([2.0, 8.0, None]), format_mean([])
    ('4.00', '-')
    """
    numbers = [value for value in values if value is not None]
    return f"{geometric_mean(numbers):.2f}" if numbers else "-"


def list_claims(entries: Iterable[Timed]) -> Iterator[str]:
    """Yield a line for each claim with entries."""
    by_kernel: dict[str, list[Timed]] = {}
    for entry in entries:
        by_kernel.setdefault(entry.kernel, []).append(entry)
    for kernel, ratios in by_kernel.items():
        yield f"{kernel}, geometric means of {len(ratios)} entries, times as fast as"
        summarize = (
            _summarize_networks if kernel in ("ttmc", "tttc") else _summarize_matrices
        )
        yield from summarize(ratios)


def _summarize_networks(entries: list[Timed]) -> Iterator[str]:
    ratios = [
        (entry.compute_speedup(UNFACTORIZED) or 1.0, entry.operations)
        for entry in entries
    ]
    parts = format_mean(times / operations for times, operations in ratios)
    yield f"- the unfactorized nest: {format_mean(times for times, _ in ratios)}"
    yield f"- its ratio of operations says: {parts} of that"
    speedups = (entry.compute_speedup(TENSORA) for entry in entries)
    yield f"- {TENSORA}: {format_mean(speedups)}"


def _summarize_matrices(entries: list[Timed]) -> Iterator[str]:
    for names in (LIBRARIES, ("scipy",), (SPLATT,)):
        ratio = format_mean(entry.compute_speedup(*names) for entry in entries)
        yield f"- the best of {', '.join(names)}: {ratio}"
    part = format_mean(entry.triad for entry in entries)
    yield f"- the triad, in bytes of all arrays per second: {part}"


def time_first_calls(rounds: int = 3) -> tuple[float, float]:
    """Return the median times of the import, and of the first call."""
    environment = os.environ | {CACHE_VARIABLE: "off"}
    outputs = [
        run_command([sys.executable, "-c", COLD], environment) for _ in range(rounds)
    ]
    imports, calls = zip(*(map(float, text.split()) for text in outputs), strict=True)
    return median(imports), median(calls)
