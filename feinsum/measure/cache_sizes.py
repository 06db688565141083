"""Cache sizes, derived from the read rates of parts of increasing size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log2

from feinsum.measure.cache_rates import read_rate
from feinsum.targets.protocol import OpenDevice

__all__ = ["cache_sizes", "edges"]

LEAST_BYTES, MOST_BYTES = 4 << 10, 64 << 20
"""Sizes of the parts that a core reads."""
STEPS = 2
"""Sizes between a power of two and the next one."""
WIDTH = 4
"""Length of vectors in double precision."""
MOST_CACHES = 3
LEAST_DROP = 0.4
"""Least drop of the base-2 logarithm of a rate; smaller ones are noise."""


def cache_sizes(
    opened: OpenDevice, most_bytes: int, min_run_s: float, repeats: int
) -> dict[str, int]:
    """Bytes of ``L1``, ``L2`` and ``L3`` available to each core while all of them read.

    For a shared cache, this is the share. A size is that of the smallest parts that are
    read at the rate of the next level, so it errs on the large side: sizes are tried in
    steps of a factor of 1.4. Caches whose rates differ by less than a quarter count as
    one. None is found on a GPU, where one work-item per core does not reach such rates,
    or without double precision.

    Args:
        most_bytes: maximum bytes that all cores together read.

    Raises:
        WrongResultError: if a sum is wrong.
    """
    if opened.device.kind == "gpu" or not opened.has_double:
        return {}
    sizes = _sizes(most_bytes // max(opened.device.compute_units, 1))
    rates = [read_rate(opened, n, WIDTH, min_run_s, repeats) for n in sizes]
    found = edges(sizes, rates)[:MOST_CACHES]
    return {f"L{k}": n_bytes for k, n_bytes in enumerate(found, start=1)}


def _sizes(most_bytes: int) -> list[int]:
    """Sizes of the parts, up to a limit.

    >>> _sizes(16 << 10)
    [4096, 5793, 8192, 11585, 16384]
    """
    most = min(MOST_BYTES, most_bytes)
    n_steps = STEPS * max(int(log2(max(most, LEAST_BYTES) / LEAST_BYTES)), 0)
    return [round(LEAST_BYTES * 2 ** (k / STEPS)) for k in range(n_steps + 1)]


def edges(sizes: Sequence[int], rates: Sequence[float]) -> list[int]:
    """The sizes from which on rates are lower, by the best fit of a few plateaus.

    Args:
        sizes: rising.
        rates: read there. A rate below a later one is a disturbance.

    Returns:
        For every plateau but the last one the first size of the next.

    >>> edges([4, 8, 16, 32, 64, 128], [9.0, 9.1, 8.9, 3.0, 3.1, 2.9])
    [32]
    >>> edges([4, 8, 16, 32], [9.0, 8.0, 9.0, 8.5])
    []
    """
    logs = [log2(max(rates[k:])) for k in range(len(rates))]
    fits: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 0): (0.0, ())}
    for end in range(1, len(logs) + 1):
        for n in range(1, MOST_CACHES + 2):
            choices = [
                (fits[start, n - 1][0] + _spread(logs[start:end]), start)
                for start in range(end)
                if (start, n - 1) in fits
            ]
            if choices:
                error, start = min(choices)
                fits[end, n] = error, (*fits[start, n - 1][1], start)
    best = min(
        # each plateau costs what noise may explain; else the most plateaus fit best
        (error + n * LEAST_DROP**2, starts)
        for (end, n), (error, starts) in fits.items()
        if end == len(logs)
    )[1]
    means = [sum(logs[a:b]) / (b - a) for a, b in pairwise([*best, len(logs)])]
    return [
        sizes[start]
        for start, (before, after) in zip(best[1:], pairwise(means), strict=True)
        if before - after >= LEAST_DROP
    ]


def _spread(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)
