"""Choose among several ways to compute the same result, by their times.

The criterion is the ratio of two times of one round: other load affects both alike. The
interval of the median ratio is that of the sign test, which assumes nothing about how
times are distributed: of n ratios, each is above the median with probability 1/2. For a
kernel that takes half the time, nine rounds give

>>> compute_time_ratio([2.0] * 9, [1.0] * 9)
Ratio(median=2.0, low=2.0, high=2.0)

One disturbed round makes the result uncertain, until there are thirteen:

>>> compute_time_ratio([2.0] * 9, [1.0] * 8 + [4.0]).is_faster
False
>>> compute_time_ratio([2.0] * 13, [1.0] * 12 + [4.0]).is_faster
True

The times come from :func:`sample_in_turns`, which runs kernels for the purpose, or from
a :class:`PairedTimes`, to which runs are added whose results are needed anyway. In
turns, a baseline b and two kernels k, l run as::

    round 1   b k l        b/k = 2.0   b/l = 1.0
    round 2   k l b        b/k = 2.1   b/l = 0.9     the first one moves to the end
    round 3   l b k        b/k = 1.9   b/l = 1.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import comb
from statistics import median
from time import perf_counter
from typing import NamedTuple, TypeVar

K = TypeVar("K")

GAIN = 1.05
"""Minimum ratio of times for a kernel to replace another."""
CLEARLY = 3.0
"""A factor that noise rarely causes; it widens the interval of a few samples."""
ERROR = 5e-3
"""Probability that the median is outside of its interval. Small, because intervals are
looked at after every round."""


class Ratio(NamedTuple):
    """How many times as fast a kernel is as its baseline, with an interval."""

    median: float
    low: float
    high: float

    @property
    def is_faster(self) -> bool:
        """Whether the kernel gains enough, and is certain not to be slower.

        In a tie the baseline stays, whatever the noise.
        """
        return self.median > GAIN and self.low > 1

    @property
    def is_certain(self) -> bool:
        """Whether more samples would not change :attr:`is_faster`."""
        return self.low > GAIN or self.high < GAIN


def compute_time_ratio(baseline_s: Sequence[float], kernel_s: Sequence[float]) -> Ratio:
    """Divide the times of a baseline by those of a kernel, round by round.

    Args:
        baseline_s: seconds of the baseline. The k-th samples of both are from the k-th
            round. A kernel that takes very long may have one sample, which counts in
            all rounds.
        kernel_s: seconds of the kernel, likewise.
    """
    n = max(len(baseline_s), len(kernel_s))
    times_s = ([*s] * n if len(s) == 1 else s for s in (baseline_s, kernel_s))
    # Clocks may read 0 for an empty kernel; no ratio is to be infinite.
    ratios = sorted(slow / max(fast, 1e-9) for slow, fast in zip(*times_s, strict=True))
    k = _find_rank(n)
    if k is None:
        # Too few samples for the sign test: only a clear difference is certain.
        return Ratio(median(ratios), ratios[0] / CLEARLY, ratios[-1] * CLEARLY)
    return Ratio(median(ratios), ratios[k], ratios[-1 - k])


def compute_paired_ratio(
    samples_s: Sequence[float], baseline_s: Sequence[float]
) -> float:
    """Return the median ratio of samples of the same rounds; below 1 is faster.

    Load that slows a round slows both kernels, and cancels out:

    >>> compute_paired_ratio([1.0, 4.0, 1.1], [2.0, 8.0, 2.2])
    0.5
    """
    return median(a / b for a, b in zip(samples_s, baseline_s, strict=False))


def rank_by_ratio(samples_s: Mapping[K, Sequence[float]]) -> list[tuple[K, float]]:
    """Rank kernels of one run by their time relative to the first of them.

    All have samples of the same rounds. No gain is required, since a ranking for a
    record need not decide ties.

    >>> rank_by_ratio({"a": [2.0, 4.0], "b": [1.0, 2.0]})
    [('b', 0.5), ('a', 1.0)]
    """
    if not samples_s:
        return []
    first_s = next(iter(samples_s.values()))
    ratios = {k: compute_paired_ratio(times, first_s) for k, times in samples_s.items()}
    return sorted(ratios.items(), key=lambda item: item[1])


@cache
def _find_rank(n: int) -> int | None:
    """Return the rank k of the order statistics that bound the median.

    The median lies outside the k-th smallest to the k-th largest of n samples with a
    probability below :data:`ERROR`. None if n is too small.
    """
    below, rank = 0, None
    for k in range(n // 2):
        below += comb(n, k)  # of 2**n: at most k samples are below the median
        if 2 * below > ERROR * 2**n:
            break
        rank = k
    return rank


MIN_SAMPLES = 3
"""Minimum samples of a kernel, however slow it is."""
FEW_SAMPLES = 5
"""Samples that suffice for a clear difference; load may disturb three in a row."""
MAX_SAMPLES = 200
BUDGET_S = 0.4
"""Seconds to run kernels of about the same speed in turns."""
ENOUGH_SAMPLES = 24
"""Samples to take even beyond the budget, unless the faster kernel is certain."""
MAX_SAMPLING_S = 3.0
"""Seconds after which sampling ends, even with fewer samples."""


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

    A run that exceeded the budget is not repeated if others are clearly faster.

    Args:
        runs: each runs a kernel once, and returns its seconds.
        first_s: the time of an earlier run of each, which warmed it up.
        pairs: the numbers of a baseline and of a kernel that is compared with it.
        budget_s: seconds after which sampling ends, if there are ``n_enough`` rounds.
        n_enough: number of rounds to complete even beyond the budget.
        clock: returns the time in seconds.

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
        # Rotate, so that no kernel always follows the same one and finds its data
        # cached.
        order.append(order.pop(0))
        spent_s = clock() - start_s
        is_over = spent_s > (MAX_SAMPLING_S if n < n_enough else budget_s)
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
    return all(compute_time_ratio(samples[b], samples[k]).is_certain for b, k in pairs)


def find_fastest(runs: Sequence[Callable[[], float]]) -> int:
    """Find the run that is certainly faster than the first one; else return 0.

    Each run returns its seconds.
    """
    if len(runs) < 2:
        return 0
    # The first runs warm up: pages are touched, threads started.
    first_s = [run() for run in runs]
    samples = sample_in_turns(runs, first_s, [(0, k) for k in range(1, len(runs))])
    ratios = [compute_time_ratio(samples[0], times) for times in samples]
    faster = [k for k, ratio in enumerate(ratios) if ratio.is_faster]
    return max(faster, key=lambda k: ratios[k].median, default=0)


MAX_ROUNDS = 18
"""Maximum runs of each; with so many, two disturbed ones do not move the interval."""


@dataclass(eq=False)
class PairedTimes:
    """Times of a kernel and of its baseline, until it is certain which is faster.

    >>> trial = PairedTimes()
    >>> while not trial.is_over:
    ...     trial.add(1.0 if trial.is_kernels_turn else 2.0)
    >>> trial.is_faster
    True

    Attributes:
        baseline_s, kernel_s: the times, in seconds; rounds begin with the baseline.
        n_warmups: the first rounds, which do not count: the first run of a kernel
            starts its threads.
        has_failed: whether the kernel failed, which ends the trial.
    """

    baseline_s: list[float] = field(default_factory=list)
    kernel_s: list[float] = field(default_factory=list)
    n_warmups: int = 1
    has_failed: bool = False

    @property
    def is_kernels_turn(self) -> bool:
        """Whether the next time is to be one of the kernel."""
        return len(self.kernel_s) < len(self.baseline_s)

    def add(self, seconds: float) -> None:
        """Record the time of the run whose turn it was."""
        (self.kernel_s if self.is_kernels_turn else self.baseline_s).append(seconds)

    @property
    def is_over(self) -> bool:
        """Whether more rounds would change nothing, or there were enough."""
        n_counted = len(self.kernel_s) - self.n_warmups
        if self.has_failed or len(self.kernel_s) >= MAX_ROUNDS:
            return True
        # Only whole rounds are compared.
        if self.is_kernels_turn or n_counted < FEW_SAMPLES:
            return False
        return compute_time_ratio(*self._counted).is_certain

    @cached_property
    def is_faster(self) -> bool:
        """Whether the kernel certainly takes less time, once the trial is over."""
        return not self.has_failed and compute_time_ratio(*self._counted).is_faster

    @property
    def saved(self) -> float:
        """The share of the baseline's time that the kernel saves; 0 if it is slower."""
        if self.has_failed:
            return 0.0
        return max(1 - 1 / compute_time_ratio(*self._counted).median, 0.0)

    @property
    def _counted(self) -> tuple[list[float], list[float]]:
        n = len(self.kernel_s)
        return self.baseline_s[self.n_warmups : n], self.kernel_s[self.n_warmups : n]
