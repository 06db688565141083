"""Which of several kernels is faster on this machine, now, and whether that is certain.

Kernels run in turns, one run of each per round, so that load of others reaches all of
them alike. What counts is the ratio of two times of one round. Rounds go on until the
median ratio is known to be above or below :data:`GAIN`, or until the time is over.

The interval of the median ratio is that of the sign test, which assumes nothing about
how times are distributed: of n ratios, each is above the median with probability 1/2.
For a kernel that takes half the time, nine rounds give

>>> time_ratio([2.0] * 9, [1.0] * 9)
Ratio(median=2.0, low=2.0, high=2.0)

One round that others disturbed makes that uncertain, until there are thirteen:

>>> time_ratio([2.0] * 9, [1.0] * 8 + [4.0]).is_faster
False
>>> time_ratio([2.0] * 13, [1.0] * 12 + [4.0]).is_faster
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from feinsum.errors import WrongResultError
from feinsum.measure.verification import Verifiable, verify

if TYPE_CHECKING:  # what has its kernels compiled needs no code generator
    from feinsum.targets.protocol import Timer

__all__ = [
    "BUDGET_S",
    "FEW_SAMPLES",
    "GAIN",
    "MAX_SAMPLES",
    "MIN_SAMPLES",
    "Race",
    "Ratio",
    "Timeable",
    "common_timer",
    "in_turns",
    "sample_in_turns",
    "time_ratio",
]

MIN_SAMPLES = 3
"""No kernel has fewer samples, however slow it is."""
FEW_SAMPLES = 5
"""So many suffice if the difference is clear. Other load disturbs three in a row."""
MAX_SAMPLES = 200
GAIN = 1.05
"""Times as fast: a kernel that gains less takes no other's place."""
CLEARLY = 3.0
"""A factor that noise rarely causes: by it the interval of a few samples is widened."""
ERROR = 5e-3
"""Probability that the median is outside of its interval. Small, because intervals are
looked at after every round."""
BUDGET_S = 0.4
"""How long kernels run in turns that are about as fast."""
ENOUGH_SAMPLES = 24
"""So many are taken in any case, if it is not certain before who is faster ..."""
PATIENCE_S = 3.0
"""... and if they do not take longer than this."""
QUICK_S, QUICK_SAMPLES = 0.15, 12
"""The same for a recipe that is only compared with others of its einsum."""


class Timeable(Protocol):
    """A timeable kernel: :class:`feinsum.measure.BoundKernel`, or a stand-in."""

    @property
    def timer(self) -> Timer: ...

    def run(self, timer: Timer | None = None) -> float: ...


class Racer(Timeable, Verifiable, Protocol):
    """Anything that can be timed and verified."""


def common_timer(kernels: Sequence[Timeable]) -> Timer:
    """The common clock of kernels to compare: ``wall`` if their clocks differ."""
    timers = {kernel.timer for kernel in kernels}
    return timers.pop() if len(timers) == 1 else "wall"


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


def sample_in_turns(
    runs: Sequence[Callable[[], float]],
    first_s: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    *,
    budget_s: float = BUDGET_S,
    n_enough: int = ENOUGH_SAMPLES,
    clock: Callable[[], float] = perf_counter,
) -> list[list[float]]:
    """The times of runs in turns, until it is certain who is faster in each pair.

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
    if any(is_long) and not all(is_long):
        for _ in range(FEW_SAMPLES):
            _run_round(runs, samples, [k for k, long in enumerate(is_long) if not long])
        known = [s or [first] for s, first in zip(samples, first_s, strict=True)]
        if _are_certain(known, pairs):
            return known
        samples = [[] for _ in runs]
    order = [*range(len(runs))]
    start_s = clock()
    for n in range(1, MAX_SAMPLES + 1):
        _run_round(runs, samples, order)
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


@dataclass(frozen=True)
class Race:
    """A recipe and the untransformed kernel, ready to run.

    Attributes:
        tolerance: tolerance for the results, which are compared first.
    """

    kernel: Racer
    baseline: Racer
    sizes: Mapping[str, int]
    tolerance: float

    def run(self) -> tuple[float, float]:
        """The times of the recipe and of the untransformed kernel, in seconds.

        Raises:
            MeasurementError: if one of them cannot run.
            WrongResultError: if they disagree.
        """
        baseline_s = self.baseline.run()
        try:
            verify(self.kernel, self.baseline.read(), tolerance=self.tolerance)
        except WrongResultError as error:
            where = f"at the sizes {dict(self.sizes)}"
            raise WrongResultError(f"{where}: {error}") from None
        return in_turns(self.kernel, self.baseline, baseline_s)


def in_turns(
    kernel: Timeable, baseline: Timeable, baseline_s: float
) -> tuple[float, float]:
    """The median times of two kernels that ran before; see :func:`sample_in_turns`.

    Few rounds: a whole kernel with a recipe is timed again, beside the user's.

    Args:
        baseline_s: the time of the baseline's first run.
    """
    timer = common_timer((kernel, baseline))
    others_s, mine_s = sample_in_turns(
        [lambda: baseline.run(timer), lambda: kernel.run(timer)],
        (baseline_s, 0.0),
        [(0, 1)],
        budget_s=QUICK_S,
        n_enough=QUICK_SAMPLES,
    )
    return median(mine_s), median(others_s)
