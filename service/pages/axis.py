"""A logarithmic axis, and what is marked along it.

::

    |<-MARGIN->|low ...... tick ........ tick ..... high|<-MARGIN->|
    0                                                              width
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

WIDTH = 320.0
"""Length of an axis, in pixels."""

MARGIN = 16.0
"""Room beside the outermost marks, for half of a label."""

MAX_TICKS = 5

STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
"""Which multiples of powers of ten have ticks, the coarsest choice first."""


@dataclass(frozen=True)
class Tick:
    """A value with a label, and where it is."""

    x: float
    label: str


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from ``low`` to ``high``, both above 0 and finite."""

    low: float
    high: float
    ticks: tuple[Tick, ...] = ()
    width: float = WIDTH

    def at(self, value: float) -> float:
        """Where a value is, in pixels; the nearest end for one that is beyond.

        >>> round(Axis(1.0, 100.0).at(10.0))
        160
        """
        return position_of(value, self.low, self.high, self.width)


def axis_of(
    values: Iterable[float], label: Callable[[float], str], width: float = WIDTH
) -> Axis:
    """An axis that shows some values; those that it cannot are left out.

    >>> axis = axis_of([0.9, 30.0], "{:g}".format)
    >>> [tick.label for tick in axis.ticks]
    ['1', '2', '5', '10', '20']
    """
    # facts of others may have any numbers; logarithms of these would fail
    shown = [value for value in values if 1e-300 < value < 1e300]
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    # a single value gets an axis, too
    low, high = min(low, high / 1.2), max(high, low * 1.2)
    ticks = tuple(
        Tick(position_of(value, low, high, width), label(value))
        for value in _round_values(low, high)
    )
    return Axis(low, high, ticks, width)


def position_of(value: float, low: float, high: float, width: float) -> float:
    """Where a value is between two others, by their logarithms; to a tenth."""
    # also for nan
    if not value > low:
        return MARGIN
    if value >= high:
        return width - MARGIN
    share = (log10(value) - log10(low)) / (log10(high) - log10(low))
    return round(MARGIN + share * (width - 2 * MARGIN), 1)


def _round_values(low: float, high: float) -> list[float]:
    """Round values between two others: as many as have room, at least one."""
    finer: list[float] = []
    for steps in STEPS:
        values = _multiples(low, high, steps)
        # the finest steps whose ticks fit; of too many coarse ones every n-th
        if len(values) > MAX_TICKS:
            return finer or values[:: -(-len(values) // MAX_TICKS)]
        finer = values
    return finer or [low]


def _multiples(low: float, high: float, steps: Iterable[float]) -> list[float]:
    first, last = floor(log10(low)), ceil(log10(high))
    # an outlier at 1e-300 would have hundreds of powers beside it
    every = max(1, (last - first) // 20)
    powers = [float(f"1e{power}") for power in range(first, last + 1, every)]
    values = (step * power for power in powers for step in steps)
    return [value for value in values if low <= value <= high]
