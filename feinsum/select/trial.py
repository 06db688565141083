"""A kernel and its baseline in turns, in runs whose results are needed anyway."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from feinsum.select.ratio import time_ratio
from feinsum.select.turns import FEW_SAMPLES

MAX_ROUNDS = 18
"""Runs of each: with so many, two disturbed ones leave the interval as it is."""


@dataclass(eq=False)
class PairedTimes:
    """Times of a kernel and of its baseline, until it is certain which is faster.

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
        """Note the time of the run whose turn it was."""
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
        return time_ratio(*self._counted).is_certain

    @cached_property
    def is_faster(self) -> bool:
        """Whether the kernel certainly takes less time, once the trial is over."""
        return not self.has_failed and time_ratio(*self._counted).is_faster

    @property
    def saved(self) -> float:
        """The share of the baseline's time that the kernel saves; 0 if it is slower."""
        if self.has_failed:
            return 0.0
        return max(1 - 1 / time_ratio(*self._counted).median, 0.0)

    @property
    def _counted(self) -> tuple[list[float], list[float]]:
        n = len(self.kernel_s)
        return self.baseline_s[self.n_warmups : n], self.kernel_s[self.n_warmups : n]
