"""Data of the figure of a tuning, which ``tuning_figure`` draws."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from statistics import fmean, pvariance

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
"""Units of time, with their lengths in seconds."""


@dataclass(frozen=True)
class Point:
    """A trial: its time if it passed, and whether it was known before."""

    seconds: float | None
    is_known: bool = False


@dataclass(frozen=True)
class Bar:
    """A time with a name and a note; limits have another color."""

    name: str
    seconds: float
    note: str = ""
    is_limit: bool = False


@dataclass(frozen=True)
class Strip:
    """The times of the trials by the value of one parameter."""

    name: str
    values: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def share(self) -> float:
        """The share of the variance of log times between the values.

        >>> Strip("rows", (("4", (1.0, 1.0)), ("8", (2.0, 2.0)))).share
        1.0
        >>> Strip("rows", (("4", (1.0, 2.0)), ("8", (2.0, 1.0)))).share
        0.0
        """
        groups = [[log(s) for s in times] for _, times in self.values]
        everything = [x for group in groups for x in group]
        total_variance = pvariance(everything)
        means = [fmean(group) for group in groups for _ in group]
        return pvariance(means) / total_variance if total_variance else 0.0


@dataclass(frozen=True)
class Coordinates:
    """Parallel coordinates: the trials of one transform, across its parameters.

    Attributes:
        axes: each parameter, with its values in order.
        lines: for each trial, the number of its value on each axis, and its time.
    """

    name: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[tuple[tuple[int, ...], float], ...]

    def heights(self) -> tuple[tuple[float, ...], ...]:
        """Return where each line crosses each axis, from 0 to 1.

        Each value has a band of the axis, in which lines are spread by their times, the
        fastest at the bottom, so that none hides another.

        >>> Coordinates("f", (("rows", ("4",)),), (((0,), 2.0), ((0,), 1.0))).heights()
        ((0.75,), (0.25,))
        """
        ranked = sorted(range(len(self.lines)), key=lambda k: self.lines[k][1])
        rank = {k: (position + 0.5) / len(ranked) for position, k in enumerate(ranked)}
        return tuple(
            tuple(
                (value + rank[k]) / len(values)
                for value, (_, values) in zip(positions, self.axes, strict=True)
            )
            for k, (positions, _) in enumerate(self.lines)
        )


@dataclass(frozen=True)
class TuningPicture:
    """The figure; all times in seconds."""

    title: str
    points: tuple[Point, ...]
    bars: tuple[Bar, ...]
    strips: tuple[Strip, ...]
    coordinates: tuple[Coordinates, ...] = ()


def format_time(seconds: float) -> str:
    """Format a time with three digits and a unit.

    >>> (format_time(0.00123456), format_time(2.5e-6), format_time(12.0),
    ...  format_time(0.0))
    ('1.23 ms', '2.5 µs', '12 s', '0 µs')
    """
    one_s, unit = next((u for u in UNITS if seconds >= u[0] * 0.9999), UNITS[-1])
    return f"{seconds / one_s:.3g} {unit}"
