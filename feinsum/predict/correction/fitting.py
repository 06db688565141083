"""Fitting a correction to trials, and how well it ranks those it was not fitted to.

Learnt are the logarithms of what was measured over what the cost said, as deviations
from the mean of their group: what all recipes of a workload on a device have in common
orders nothing. Every group counts the same, however often it was tuned.

Ridge regression is scikit-learn's; how strong the penalty is, cross validation decides,
with all workloads of a notation left out together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from feinsum.errors import ModelError
from feinsum.extras import requiring
from feinsum.predict.correction.features import (
    CONTEXT_FEATURES,
    RECIPE_FEATURES,
    Values,
)
from feinsum.predict.correction.model import (
    ANALYTIC,
    MODEL_VERSION,
    Correction,
    Feature,
)
from feinsum.predict.correction.samples import Group, Samples
from feinsum.words import counted

FEWEST_TRIALS, FEWEST_NOTATIONS = 30, 3
"""With less, nothing can be said of workloads that were left out."""

N_FOLDS = 5

FARTHEST = log(10)
"""A time farther off counts as this: a single one that is absurd decides nothing."""

PENALTIES = tuple(10.0**k for k in range(-3, 6))

LEAST_SCALE = 0.25
"""Least scale of a feature: one that hardly varied in the trials must count little."""

MOST = 1e3

N_DIGITS = 5


def check_enough(samples: Samples) -> None:
    """Refuse too few trials.

    Raises:
        ModelError: saying how many there are, and how many are wanted.
    """
    n_notations = len(samples.notations)
    if samples.n_trials < FEWEST_TRIALS or n_notations < FEWEST_NOTATIONS:
        raise ModelError(
            f"{counted(samples.n_trials, 'trial')} of "
            f"{counted(n_notations, 'notation')} are usable; "
            f"expected at least {FEWEST_TRIALS} of {FEWEST_NOTATIONS}: tune more "
            "workloads"
        )


def fit(groups: Sequence[Group], fitted_at: str = "") -> Correction:
    """Return the correction that fits the trials best.

    Args:
        groups: of at least two notations.
        fitted_at: UTC, ISO 8601.

    Raises:
        FeinsumError: if scikit-learn is not installed.
    """
    recipe, context = _recipe_features(groups), _context_features(groups)
    # without coefficients, only to bring features on their scales
    none = ((0.0,) * len(context),) * len(recipe)
    raw = Correction(MODEL_VERSION, recipe, context, none)
    sizes = np.array([len(group.recipes) for group in groups])
    # Least squares weigh squares: each group then counts once, whatever its size.
    weights = np.sqrt(np.repeat(1 / sizes, sizes))
    products = np.concatenate([_products(group, raw) for group in groups])
    targets = np.concatenate([_targets(group) for group in groups])
    notations = np.repeat([group.notation for group in groups], sizes)
    solution = _ridge(products * weights[:, None], targets * weights, notations)
    table = solution.reshape(len(recipe), len(context)).tolist()
    return Correction(
        MODEL_VERSION,
        recipe,
        context,
        tuple(tuple(map(_rounded, row)) for row in table),
        n_trials=int(sizes.sum()),
        n_workloads=len({group.workload_text for group in groups}),
        n_devices=len({group.device_id for group in groups}),
        fitted_at=fitted_at,
    )


def _recipe_features(groups: Sequence[Group]) -> tuple[Feature, ...]:
    """Scale the recipe features by their spread in the trials."""
    deviations = [group.recipe - group.recipe.mean(axis=0) for group in groups]
    spreads = np.concatenate(deviations).std(axis=0)
    return tuple(
        Feature(name, 0.0, _scale(spread))
        for name, spread in zip(RECIPE_FEATURES, spreads.tolist(), strict=True)
    )


def _context_features(groups: Sequence[Group]) -> tuple[Feature, ...]:
    """Scale the features of workloads; the first is the constant one."""
    table = np.array([group.context for group in groups])
    centres, spreads = table.mean(axis=0), table.std(axis=0)
    # the constant feature stays 1: it is the effect of a recipe's numbers alone
    centres[0], spreads[0] = 0.0, 1.0
    numbers = zip(centres.tolist(), spreads.tolist(), strict=True)
    return tuple(
        Feature(name, _rounded(centre), _scale(spread))
        for name, (centre, spread) in zip(CONTEXT_FEATURES, numbers, strict=True)
    )


def _products(group: Group, raw: Correction) -> Values:
    """Return a row per recipe whose product with the coefficients corrects it."""
    deviations, context = raw.standardized(group.recipe, group.context)
    products = np.einsum("nr,w->nrw", deviations, context)
    return _centred(products.reshape(len(deviations), -1))


def _targets(group: Group) -> Values:
    """Return the errors of the costs, without what they have in common."""
    costs = np.log([recipe.seconds for recipe in group.recipes])
    errors = np.log(group.measured) - costs
    # what all recipes of a group have in common orders nothing
    near = np.clip(errors - np.median(errors), -FARTHEST, FARTHEST)
    return _centred(near)


def _centred(values: Values) -> Values:
    return np.asarray(values - values.mean(axis=0))


def _ridge(products: Values, targets: Values, notations: Any) -> Values:
    RidgeCV, GroupKFold = _scikit_learn()
    n_folds = min(N_FOLDS, len(set(notations.tolist())))
    folds = GroupKFold(n_folds).split(products, targets, notations)
    model = RidgeCV(
        PENALTIES,
        fit_intercept=False,
        scoring="neg_mean_squared_error",
        cv=[*folds],
    )
    return np.asarray(model.fit(products, targets).coef_)


def _scikit_learn() -> tuple[Any, Any]:
    """Return the regression and the folds; the one door to scikit-learn."""
    with requiring("scikit-learn", "model", "fitting a model"):
        from sklearn.linear_model import RidgeCV
        from sklearn.model_selection import GroupKFold
    return RidgeCV, GroupKFold


def _scale(spread: float) -> float:
    return _rounded(max(spread, LEAST_SCALE))


def _rounded(value: float) -> float:
    """Round to the significant digits, within the limits of a model."""
    return float(f"{min(max(value, -MOST), MOST):.{N_DIGITS}g}")


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
        """Return the geometric mean.

        >>> Ranking.mean([1.0, 4.0])
        2.0
        """
        return float(np.exp(np.mean(np.log(ratios))))


def held_out(groups: Sequence[Group]) -> tuple[Ranking, Ranking]:
    """Rank held-out workloads by analytic cost, and corrected by a model of others.

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
    """Return the slowdowns of the first recipe and of the best of the first five."""
    costs = np.array([recipe.seconds for recipe in group.recipes])
    factors = correction.factors(group.recipe, group.context)
    order = np.argsort(costs * factors, kind="stable")
    measured = np.array(group.measured)[order]
    least = measured.min()
    return float(measured[0] / least), float(measured[:N_FIRST].min() / least)


def _folds(groups: Sequence[Group]) -> Iterator[tuple[list[Group], list[Group]]]:
    """Split the groups for cross validation, at most :data:`N_FOLDS` times."""
    notations = sorted({group.notation for group in groups})
    for k in range(min(N_FOLDS, len(notations))):
        left_out = {*notations[k::N_FOLDS]}
        yield (
            [group for group in groups if group.notation not in left_out],
            [group for group in groups if group.notation in left_out],
        )


def _ranking(pairs: Sequence[tuple[float, float]]) -> Ranking:
    return Ranking(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
