"""Kernels that run in turns, until it is certain which of them is faster.

One run of each per round, so that other load affects all of them alike. Rounds go on
until the median ratio of each pair is certainly above or below
:data:`feinsum.select.ratio.GAIN`, or until the time is over. A baseline b and two
kernels k, l run as::

    round 1   b k l        b/k = 2.0   b/l = 1.0
    round 2   k l b        b/k = 2.1   b/l = 0.9     the first one moves to the end
    round 3   l b k        b/k = 1.9   b/l = 1.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from feinsum.select.ratio import time_ratio

MIN_SAMPLES = 3
"""No kernel has fewer samples, however slow it is."""
FEW_SAMPLES = 5
"""So many suffice if the difference is clear. Other load disturbs three in a row."""
MAX_SAMPLES = 200
BUDGET_S = 0.4
"""How long kernels run in turns that are about as fast."""
ENOUGH_SAMPLES = 24
"""So many are taken in any case, if it is not certain before who is faster ..."""
PATIENCE_S = 3.0
"""... and if they do not take longer than this."""


def sample_in_turns(
    runs: Sequence[Callable[[], float]],
    first_s: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    *,
    budget_s: float = BUDGET_S,
    n_enough: int = ENOUGH_SAMPLES,
    clock: Callable[[], float] = perf_counter,
) -> list[list[float]]:
    """Time runs in turns, until it is certain which of each pair is faster.

    A run that took more than the whole budget is not repeated, if others are clearly
    faster.

    Args:
        runs: each runs a kernel once, and returns its seconds.
        first_s: the time of a run of each before, which warmed it up.
        pairs: the numbers of a baseline and of a kernel that is compared with it.
        budget_s: after which rounds end, if there are ``n_enough``.

    Returns:
        For each, its samples in the order of the rounds, at least one.
    """
    samples: list[list[float]] = [[] for _ in runs]
    is_long = [first > budget_s for first in first_s]
    # A naive kernel may take seconds where the others take milliseconds: its first run
    # is compared with five of theirs, which decides unless they are close.
    if any(is_long) and not all(is_long):
        for _ in range(FEW_SAMPLES):
            _run_round(runs, samples, [k for k, long in enumerate(is_long) if not long])
        short = [s or [first] for s, first in zip(samples, first_s, strict=True)]
        if _are_certain(short, pairs):
            return short
        samples = [[] for _ in runs]
    order = [*range(len(runs))]
    start_s = clock()
    for n in range(1, MAX_SAMPLES + 1):
        _run_round(runs, samples, order)
        # No kernel always follows the same one, and finds its data in the caches.
        order.append(order.pop(0))
        spent_s = clock() - start_s
        is_over = spent_s > (PATIENCE_S if n < n_enough else budget_s)
        is_certain = n >= FEW_SAMPLES and _are_certain(samples, pairs)
        if is_certain or (is_over and n >= MIN_SAMPLES):
            break
    return samples


def _run_round(
    runs: Sequence[Callable[[], float]],
    samples: list[list[float]],
    order: Sequence[int],
) -> None:
    for k in order:
        samples[k].append(runs[k]())


def _are_certain(
    samples: Sequence[Sequence[float]], pairs: Sequence[tuple[int, int]]
) -> bool:
    return all(time_ratio(samples[b], samples[k]).is_certain for b, k in pairs)


def find_fastest(runs: Sequence[Callable[[], float]]) -> int:
    """Find the run that is certainly faster than the first one; else return 0.

    Args:
        runs: each runs a kernel once, and returns its seconds.
    """
    if len(runs) < 2:
        return 0
    # The first runs warm up: pages are touched, threads started.
    first_s = [run() for run in runs]
    samples = sample_in_turns(runs, first_s, [(0, k) for k in range(1, len(runs))])
    ratios = [time_ratio(samples[0], times) for times in samples]
    faster = [k for k, ratio in enumerate(ratios) if ratio.is_faster]
    return max(faster, key=lambda k: ratios[k].median, default=0)
