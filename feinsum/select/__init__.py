"""The choice among several ways to compute the same, by their times.

Whatever times two kernels and keeps one decides by :func:`time_ratio`. The times come
from :func:`sample_in_turns`, which runs kernels for the purpose, or from a
:class:`PairedTimes`, to which runs are added whose results are needed anyway.

>>> trial = PairedTimes()
>>> while not trial.is_over:
...     trial.add(1.0 if trial.is_kernels_turn else 2.0)
>>> trial.is_faster
True
"""

from feinsum.select.ratio import (
    GAIN,
    Ratio,
    paired_ratio,
    rank_by_ratio,
    time_ratio,
)
from feinsum.select.trial import PairedTimes
from feinsum.select.turns import (
    BUDGET_S,
    FEW_SAMPLES,
    MAX_SAMPLES,
    MIN_SAMPLES,
    find_fastest,
    sample_in_turns,
)

__all__ = [
    "BUDGET_S",
    "FEW_SAMPLES",
    "GAIN",
    "MAX_SAMPLES",
    "MIN_SAMPLES",
    "PairedTimes",
    "Ratio",
    "find_fastest",
    "paired_ratio",
    "rank_by_ratio",
    "sample_in_turns",
    "time_ratio",
]
