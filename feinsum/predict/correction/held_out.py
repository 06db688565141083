"""How well a ranking is: on trials of workloads that it was not fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from feinsum.predict.correction.fitting import N_FOLDS, fit
from feinsum.predict.correction.model import ANALYTIC, Correction
from feinsum.predict.correction.samples import Group

__all__ = ["FEWEST_RANKED", "N_FIRST", "Ranking", "held_out", "slowdowns"]

N_FIRST = 5

FEWEST_RANKED = 6
"""Fewest recipes of a group: of fewer, any five are the best five."""


@dataclass(frozen=True)
class Ranking:
    """How much slower what a ranking proposes is than the best that is known.

    Attributes:
        first, best: for each group, the time of the first recipe and of the best of
            the first five, over that of the best one; see :func:`slowdowns`.
    """

    first: tuple[float, ...]
    best: tuple[float, ...]

    @staticmethod
    def mean(ratios: Sequence[float]) -> float:
        """The geometric mean.

        >>> Ranking.mean([1.0, 4.0])
        2.0
        """
        return float(np.exp(np.mean(np.log(ratios))))


def held_out(groups: Sequence[Group]) -> tuple[Ranking, Ranking]:
    """Rankings by the analytic cost, and corrected by a model of other workloads.

    All workloads of a notation are left out together.
    """
    ranked = [
        (slowdowns(group, ANALYTIC), slowdowns(group, correction))
        for fitted, others in _folds(groups)
        for correction in [fit(fitted)]
        for group in others
        if len(group.recipes) >= FEWEST_RANKED
    ]
    plain, fitted = ([pair[k] for pair in ranked] for k in (0, 1))
    return _ranking(plain), _ranking(fitted)


def slowdowns(group: Group, correction: Correction) -> tuple[float, float]:
    """Slowdowns of the first recipe, and of the best of the first five."""
    costs = np.array([recipe.seconds for recipe in group.recipes])
    factors = correction.factors(group.recipe, group.context)
    order = np.argsort(costs * factors, kind="stable")
    measured = np.array(group.measured)[order]
    least = measured.min()
    return float(measured[0] / least), float(measured[:N_FIRST].min() / least)


def _folds(groups: Sequence[Group]) -> Iterator[tuple[list[Group], list[Group]]]:
    """Parts of the groups, with what is left of them, at most :data:`N_FOLDS` times."""
    notations = sorted({group.notation for group in groups})
    for k in range(min(N_FOLDS, len(notations))):
        left_out = {*notations[k::N_FOLDS]}
        yield (
            [group for group in groups if group.notation not in left_out],
            [group for group in groups if group.notation in left_out],
        )


def _ranking(pairs: Sequence[tuple[float, float]]) -> Ranking:
    return Ranking(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
