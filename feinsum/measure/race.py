"""A recipe and the untransformed kernel, timed in turns on arrays of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from feinsum.errors import WrongResultError
from feinsum.measure.verification import Verifiable, verify
from feinsum.select import sample_in_turns

if TYPE_CHECKING:  # what has its kernels compiled needs no code generator
    from feinsum.targets.protocol import Timer

__all__ = ["Race", "Timeable", "common_timer", "in_turns"]

QUICK_S, QUICK_SAMPLES = 0.15, 12
"""Less than by default: a recipe is compared with others of its einsum, too."""


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
