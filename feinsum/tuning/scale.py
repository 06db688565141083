"""The scale on which trials are ranked: time over the untransformed kernel's.

A trial is timed in turns with a *reference*, the best verified kernel so far. Both see
the same machine in every round, so a trial is judged by the median of the ratios within
rounds, which does not depend on the load of the machine::

    r(spec) = median over rounds k of  t(spec, k) / t(reference, k)

The reference was itself the candidate of a trial, so the chain leads back to the
untransformed kernel, whose cost is 1::

    cost(spec) = r(spec) * cost(reference)

The first reference is the untransformed kernel, with ``cost = r``. If it is too slow to
run in every round, the cost is the candidate's median time over that of the
untransformed kernel, timed when the trials were set up. An error in a link affects all
later costs equally, and so not the order of recipes timed against one reference; the
finalists are timed again in one run, without a chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median

from feinsum.records import Measurement, TransformSpec
from feinsum.select import MIN_SAMPLES

__all__ = ["N_RECORDED", "by_ratio", "paired_ratio", "rounds_between"]

N_RECORDED = 3
"""How many of the finalists are recorded."""


def by_ratio(
    measured: Mapping[TransformSpec, Measurement],
) -> list[tuple[TransformSpec, float]]:
    """Recipes of one run, by time relative to the first; fastest first."""
    if not measured:
        return []
    first = next(iter(measured.values())).samples_s
    ratios = {s: paired_ratio(m.samples_s, first) for s, m in measured.items()}
    return sorted(ratios.items(), key=lambda item: item[1])


def paired_ratio(samples_s: Sequence[float], reference_s: Sequence[float]) -> float:
    """The median of the ratios of samples from the same rounds.

    Load that slows a round slows both kernels, and cancels out:

    >>> paired_ratio([1.0, 4.0, 1.1], [2.0, 8.0, 2.2])
    0.5
    """
    return median(a / b for a, b in zip(samples_s, reference_s, strict=False))


def rounds_between(seconds: float, rounds: int, max_total_s: float) -> int:
    """How often to run a slow kernel: in every round whose number this divides.

    As often as fits into ``max_total_s``, but at least three times.

    >>> [rounds_between(s, rounds=20, max_total_s=3.0) for s in (0.01, 0.3, 60.0)]
    [1, 2, 7]
    """
    n_runs = min(max(int(max_total_s / seconds), MIN_SAMPLES), rounds)
    return ceil(rounds / n_runs)
