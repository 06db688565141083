"""Medians over rounds, and ratios of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.totals.contestants import OURS
from benchmarks.totals.processes import Run

__all__ = ["WHICH", "Result", "Totals", "WorstCall", "compute_medians"]

WHICH = ("first", "second", "tuned")
"""Processes with the same caches; the last one is ours only."""
ALLOWANCE_S = 200e-6
"""Overhead over numpy that a call may have."""
TINY_S = 5e-6
"""Limit of numpy's time of tiny calls, which show the overhead of a call."""
SAME = 1e-3
"""Relative tolerance of fingerprints, which are sums in single precision."""


def compute_medians(runs: Sequence[Run]) -> Run:
    """Return the medians of all measurements, call by call.

    >>> runs = [Run(t, 0.0, t, 1, 100, 1.0, (("i->i", t),), (t,)) for t in (2, 1, 9)]
    >>> compute_medians(runs).total_s, compute_medians(runs).calls
    (2, (('i->i', 2),))
    """
    calls = zip(*(run.calls for run in runs), strict=True)
    by_numpy = zip(*(run.numpy_s for run in runs), strict=True)
    return replace(
        runs[0],
        total_s=median(run.total_s for run in runs),
        import_s=median(run.import_s for run in runs),
        calls_s=median(run.calls_s for run in runs),
        peak_bytes=int(median(run.peak_bytes for run in runs)),
        calls=tuple((same[0][0], median(s for _, s in same)) for same in calls),
        numpy_s=tuple(map(median, by_numpy)),
    )


@dataclass(frozen=True)
class WorstCall:
    """The call with the largest ratio to numpy, less the allowed overhead."""

    ratio: float
    subscripts: str
    seconds: float
    numpy_s: float

    @classmethod
    def of(cls, run: Run) -> WorstCall | None:
        """Return the worst call but the first, which loads modules.

        >>> calls = (("ij->", 9.0), ("i->", 2.0002), ("i,i->i", 1.0))
        >>> WorstCall.of(Run(0, 0, 0, 3, 0, 0, calls, (1.0, 1.0, 1.0))).subscripts
        'i->'
        """
        pairs = zip(run.calls[1:], run.numpy_s[1:], strict=False)
        return max(
            (
                cls((s - ALLOWANCE_S) / numpy_s, subscripts, s, numpy_s)
                for (subscripts, s), numpy_s in pairs
            ),
            key=lambda call: call.ratio,
            default=None,
        )


def compute_overhead_us(run: Run) -> float | None:
    """Return the median overhead of tiny calls over numpy."""
    overheads = [
        1e6 * (seconds - numpy_s)
        for (_, seconds), numpy_s in zip(run.calls, run.numpy_s, strict=False)
        if numpy_s < TINY_S
    ]
    return median(overheads) if overheads else None


@dataclass(frozen=True)
class Result:
    """The medians of one program.

    Attributes:
        runs: medians of each process of :data:`WHICH`, by library.
    """

    program: str
    runs: Mapping[str, tuple[Run, ...]]

    def time_ratio(self, which: int) -> float | None:
        """Return our total over that of the best rival, whose last process counts as
        tuned.
        """
        if which >= len(self.runs.get(OURS, ())):
            return None
        return self._ratio(
            {name: x[min(which, len(x) - 1)].total_s for name, x in self.runs.items()}
        )

    @property
    def peak_ratio(self) -> float | None:
        """Return our memory in the first process over that of the rival with the
        least.
        """
        return self._ratio({name: x[0].peak_bytes for name, x in self.runs.items()})

    @staticmethod
    def _ratio(numbers: Mapping[str, float]) -> float | None:
        rivals = [x for name, x in numbers.items() if name != OURS]
        return numbers[OURS] / min(rivals) if rivals and OURS in numbers else None

    @property
    def unlike(self) -> str:
        """Return the fingerprints of all libraries, if they differ."""
        marks = {name: runs[0].fingerprint for name, runs in self.runs.items()}
        values = sorted(marks.values())
        if not values or values[-1] - values[0] <= SAME * abs(values[-1]):
            return ""
        return ", ".join(f"{name} {mark:.9g}" for name, mark in marks.items())


@dataclass(frozen=True)
class Totals:
    """All results of the benchmark.

    Attributes:
        failures: messages of failed children.
    """

    results: tuple[Result, ...]
    failures: tuple[str, ...]
