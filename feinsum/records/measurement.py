"""Measurements: samples in seconds, counts, verification, the baseline.

A recipe and the untransformed kernel are timed in turns, so that a machine that slows
down slows both. For samples of 2.0, 2.1 and 2.0 ms and a baseline of 8.0, 8.4 and 8.0
ms, the speed-up is the ratio of the medians, 4.0; its interval is that of the median of
the recipe's samples (a notch), because all recipes of one run have the same baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from statistics import median, quantiles
from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen
from constantdict import constantdict

from feinsum.records.document import STRICT
from feinsum.words import brief, counted

NOISE = 0.2
"""Interquartile range, over the median, above which times say little."""

Seconds = Annotated[float, Gt(0)]
Count = Annotated[int, Ge(0), Le(2**63 - 1)]
Size = Annotated[int, Ge(-(2**63)), Le(2**63 - 1)]


@dataclass(frozen=True)
class Verification:
    """How a kernel was compared with the reference evaluator.

    Attributes:
        reference: name of the reference.
        tolerance: largest error allowed, relative to the largest result.
        largest_error: largest error seen, relative to the largest result.
        sizes: the values of the size parameters at which it was compared.
    """

    __pydantic_config__ = STRICT

    reference: str
    tolerance: float
    largest_error: float
    sizes: tuple[Mapping[str, Size], ...]

    def __post_init__(self) -> None:
        frozen = tuple(constantdict(sizes) for sizes in self.sizes)
        object.__setattr__(self, "sizes", frozen)


@dataclass(frozen=True)
class Measurement:
    """All samples of a kernel and of the untransformed one, from one run.

    Attributes:
        samples_s: one time per round, in seconds.
        baseline_s: the same for the untransformed kernel, interleaved.
        timer: ``opencl-profiling`` (device clock) or ``wall``.
        n_warmup: rounds before the first sample.
        sizes: the values of the size parameters.
        operations: exact number of arithmetic operations by dtype.
        footprint_bytes: bytes of all operands and results, each once.
    """

    __pydantic_config__ = STRICT

    samples_s: Annotated[tuple[Seconds, ...], MinLen(1)]
    baseline_s: Annotated[tuple[Seconds, ...], MinLen(1)]
    timer: str
    n_warmup: Count
    sizes: Mapping[str, Size]
    operations: Mapping[str, Count]
    footprint_bytes: Count
    verification: Verification

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(self.sizes))
        object.__setattr__(self, "operations", constantdict(self.operations))

    @property
    def median_s(self) -> float:
        return median(self.samples_s)

    @property
    def spread_s(self) -> float:
        """Interquartile range of the samples, in seconds."""
        low, high = quartiles(self.samples_s)
        return high - low

    @property
    def is_noisy(self) -> bool:
        """See :func:`is_noisy`."""
        return is_noisy(self.samples_s)

    @cached_property
    def speedup(self) -> float:
        """Median time of the untransformed kernel over this one's."""
        return median(self.baseline_s) / self.median_s

    @property
    def is_faster(self) -> bool:
        """Whether it is faster than the untransformed kernel, by a finite factor."""
        # infinite if a sample is denormal: no such time was measured
        return 1 < self.speedup < inf

    @cached_property
    def speedup_interval(self) -> tuple[float, float]:
        """The speed-up at the ends of the interval in which the median lies.

        See :func:`median_interval`. That of the untransformed kernel is left out: all
        that ran beside it in one run have the same.
        """
        low, high = median_interval(self.samples_s)
        baseline = median(self.baseline_s)
        return baseline / high, baseline / low

    @property
    def giga_operations_per_s(self) -> float:
        return sum(self.operations.values()) / self.median_s * 1e-9

    def __repr__(self) -> str:
        return brief(
            self,
            f"{self.median_s * 1e3:.4g} ms (IQR {self.spread_s * 1e3:.2g} ms, "
            f"{counted(len(self.samples_s), 'sample')}), {self.speedup:.3g} times "
            "as fast as "
            "untransformed",
        )


def is_noisy(samples: tuple[float, ...]) -> bool:
    """Whether the interquartile range is above a fifth of the median.

    >>> is_noisy((1.0, 1.0, 1.1)), is_noisy((1.0, 1.0, 2.0))
    (False, True)
    """
    low, high = quartiles(samples)
    return high - low > NOISE * median(samples)


def median_interval(samples: tuple[float, ...]) -> tuple[float, float]:
    """Return the notch of a box plot; if two do not overlap, their medians differ.

    That is 1.57 interquartile ranges over the square root of the number of samples on
    both sides of the median, as far as there are samples.

    Source: McGill, Tukey and Larsen 1978, Variations of box plots.

    >>> median_interval((1.0,) * 8 + (1.1,) * 8)
    (1.01075, 1.08925)
    """
    low, high = quartiles(samples)
    # 1.57: medians whose notches do not overlap differ at the level of 5 %
    half = 1.57 * (high - low) / sqrt(len(samples))
    middle = median(samples)
    return max(middle - half, min(samples)), min(middle + half, max(samples))


def quartiles(samples: tuple[float, ...]) -> tuple[float, float]:
    """Lower and upper quartile.

    >>> quartiles((1.0, 2.0, 3.0))
    (1.5, 2.5)
    """
    if len(samples) == 1:  # of a slow untransformed kernel; quantiles needs two
        return samples[0], samples[0]
    # inclusive: the samples are all there is, so no quartile lies outside of them
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high
