"""How many times as fast a kernel is as its baseline, and whether that is certain.

What counts is the ratio of two times of one round, in which both ran: load of others
reaches them alike. The interval of the median ratio is that of the sign test, which
assumes nothing about how times are distributed: of n ratios, each is above the median
with probability 1/2. For a kernel that takes half the time, nine rounds give

>>> time_ratio([2.0] * 9, [1.0] * 9)
Ratio(median=2.0, low=2.0, high=2.0)

One round that others disturbed makes that uncertain, until there are thirteen:

>>> time_ratio([2.0] * 9, [1.0] * 8 + [4.0]).is_faster
False
>>> time_ratio([2.0] * 13, [1.0] * 12 + [4.0]).is_faster
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import comb
from statistics import median
from typing import NamedTuple, TypeVar

K = TypeVar("K")

GAIN = 1.05
"""Times as fast: a kernel that gains less takes no other's place."""
CLEARLY = 3.0
"""A factor that noise rarely causes: by it the interval of a few samples is widened."""
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

        A tie is none: then the baseline stays, whatever the noise.
        """
        return self.median > GAIN and self.low > 1

    @property
    def is_certain(self) -> bool:
        """Whether more samples would not change :attr:`is_faster`."""
        return self.low > GAIN or self.high < GAIN


def time_ratio(baseline_s: Sequence[float], kernel_s: Sequence[float]) -> Ratio:
    """Divide the times of a baseline by those of a kernel, round by round.

    Args:
        baseline_s, kernel_s: the k-th sample of both is of the k-th round. A kernel
            that takes very long may have one sample, which counts in all rounds.
    """
    n = max(len(baseline_s), len(kernel_s))
    both = ([*s] * n if len(s) == 1 else s for s in (baseline_s, kernel_s))
    # Clocks may read 0 for an empty kernel; no ratio is to be infinite.
    ratios = sorted(slow / max(fast, 1e-9) for slow, fast in zip(*both, strict=True))
    k = _find_rank(n)
    if k is None:
        # Too few samples for the sign test: only a clear difference is certain.
        return Ratio(median(ratios), ratios[0] / CLEARLY, ratios[-1] * CLEARLY)
    return Ratio(median(ratios), ratios[k], ratios[-1 - k])


def paired_ratio(samples_s: Sequence[float], baseline_s: Sequence[float]) -> float:
    """Return the median ratio of samples of the same rounds; below 1 is faster.

    Load that slows a round slows both kernels, and cancels out:

    >>> paired_ratio([1.0, 4.0, 1.1], [2.0, 8.0, 2.2])
    0.5
    """
    return median(a / b for a, b in zip(samples_s, baseline_s, strict=False))


def rank_by_ratio(samples_s: Mapping[K, Sequence[float]]) -> list[tuple[K, float]]:
    """Rank kernels of one run by their time relative to the first of them.

    All have samples of the same rounds. No gain is required: where results are ranked
    for a record, ties need no decision.

    >>> rank_by_ratio({"a": [2.0, 4.0], "b": [1.0, 2.0]})
    [('b', 0.5), ('a', 1.0)]
    """
    if not samples_s:
        return []
    first_s = next(iter(samples_s.values()))
    ratios = {k: paired_ratio(times, first_s) for k, times in samples_s.items()}
    return sorted(ratios.items(), key=lambda item: item[1])


@cache
def _find_rank(n: int) -> int | None:
    """The k for which the median is outside of the k-th smallest to the k-th largest of
    n samples with a probability below :data:`ERROR`; None if n is too small.
    """
    below, rank = 0, None
    for k in range(n // 2):
        below += comb(n, k)  # of 2**n: at most k samples are below the median
        if 2 * below > ERROR * 2**n:
            break
        rank = k
    return rank
