"""Timing two kernels in turns: their relative speed on this machine, now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from feinsum.errors import WrongResultError
from feinsum.measure.verification import Verifiable, verify

if TYPE_CHECKING:  # what has its kernels compiled needs no code generator
    from feinsum.targets.protocol import Timer

__all__ = ["MIN_SAMPLES", "Race", "Timeable", "common_timer", "in_turns"]

MIN_SAMPLES = 3
"""No kernel has fewer samples, however slow it is."""
QUICK_S = 0.15
"""How long both kernels run in turns; a kernel that takes longer alone runs once."""
MOST_ROUNDS = 15
CLEARLY = 3.0
"""Times as fast: more samples would not change who is faster."""
MOST_TIMES = 4
"""How often a kernel that seems slow is timed."""


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
    """The minimum times of two kernels that ran before.

    Other load makes times longer, especially those of threaded kernels. So minimum
    times count, and a kernel that seems slow gets more time. A slow baseline is not run
    again: a kernel that is faster than that is clearly faster.

    Args:
        baseline_s: the time of its first run.
    """
    timer = common_timer((kernel, baseline))
    if baseline_s > QUICK_S:
        return kernel.run(timer), baseline_s
    least_s, others_s = inf, inf
    for _ in range(MOST_TIMES):
        mine, others = _samples(kernel, baseline, timer)
        least_s, others_s = min(least_s, *mine), min(others_s, *others)
        if least_s < others_s:
            break
    return least_s, others_s


def _samples(
    kernel: Timeable, baseline: Timeable, timer: Timer
) -> tuple[list[float], list[float]]:
    mine: list[float] = []
    others: list[float] = []
    end_s = perf_counter() + QUICK_S
    while len(mine) < MIN_SAMPLES or (
        len(mine) < MOST_ROUNDS
        and perf_counter() < end_s
        and CLEARLY * min(mine) > min(others)
    ):
        mine.append(kernel.run(timer))
        others.append(baseline.run(timer))
    return mine, others
