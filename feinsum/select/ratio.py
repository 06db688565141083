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

from collections.abc import Sequence
from functools import cache
from math import comb
from statistics import median
from typing import NamedTuple

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
    """The ratio of the times of a baseline to those of a kernel, round by round.

    Args:
        baseline_s, kernel_s: the k-th sample of both is of the k-th round. A kernel
            that takes very long may have one sample, which counts in all rounds.
    """
    n = max(len(baseline_s), len(kernel_s))
    both = ([*s] * n if len(s) == 1 else s for s in (baseline_s, kernel_s))
    ratios = sorted(slow / max(fast, 1e-9) for slow, fast in zip(*both, strict=True))
    k = _rank(n)
    if k is None:
        return Ratio(median(ratios), ratios[0] / CLEARLY, ratios[-1] * CLEARLY)
    return Ratio(median(ratios), ratios[k], ratios[-1 - k])


@cache
def _rank(n: int) -> int | None:
    """The k for which the median is outside of the k-th smallest to the k-th largest of
    n samples with a probability below :data:`ERROR`; None if n is too small.
    """
    below, found = 0, None
    for k in range(n // 2):
        below += comb(n, k)  # of 2**n: at most k samples are below the median
        if 2 * below > ERROR * 2**n:
            break
        found = k
    return found
