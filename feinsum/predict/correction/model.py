"""A correction: by what factor the analytic costs of recipes are wrong.

With the numbers ``r`` of a recipe, as deviations from the mean of those that it is
compared with, and the numbers ``w`` of the workload and the machine, both on the scale
of the trials that were learnt from::

    factor = exp(r . C . w),  but within 1/3 and 3

So what a property of a recipe counts is a linear function of what is computed where. A
correction is data, in files. The worst that one can do is to put recipes into a bad
order.

Source: Hoerl and Kennard 1970 (ridge regression), by which ``C`` is found.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Ge, Gt, Le

from feinsum.errors import InvalidRecordError, ModelError
from feinsum.ir import BatchedEinsum
from feinsum.memory import remembered
from feinsum.predict.correction.features import (
    CONTEXT_FEATURES,
    RECIPE_FEATURES,
    Values,
    context_features,
    recipe_features,
)
from feinsum.records import from_json, to_json
from feinsum.records.document import STRICT, Document
from feinsum.transforms.cost import Machine
from feinsum.transforms.ranking import Costed

MODEL_VERSION = 1
"""Version of the form of a correction and of the meaning of its features."""

LIMIT = 3.0
"""The largest factor; the smallest is its reciprocal."""

FAR = 3.0
"""Clipping of features, in scales: a model knows nothing beyond."""

Coefficient: TypeAlias = Annotated[float, Ge(-1e3), Le(1e3)]


@dataclass(frozen=True)
class Feature:
    """A number that is looked at, and how it spread in the trials.

    Attributes:
        centre: zero for a number of recipes, which are compared with each other.
    """

    __pydantic_config__ = STRICT

    name: str
    centre: Annotated[float, Ge(-1e6), Le(1e6)]
    scale: Annotated[float, Gt(1e-6), Le(1e6)]


@dataclass(frozen=True)
class Correction(Document):
    """A correction learnt from trials.

    Attributes:
        version: see :data:`MODEL_VERSION`.
        recipe, context: the features, as this version has them; none at all in
            :data:`ANALYTIC`.
        coefficients: for each feature of a recipe one for each of the context.
        n_trials, n_workloads, n_devices: of what it was learnt.
        fitted_at: UTC, ISO 8601; empty if it is of no interest.

    Raises:
        ModelError: for another version, or if the features are others.
    """

    version: int
    recipe: tuple[Feature, ...]
    context: tuple[Feature, ...]
    coefficients: tuple[tuple[Coefficient, ...], ...]
    n_trials: int = 0
    n_workloads: int = 0
    n_devices: int = 0
    fitted_at: str = ""

    def __post_init__(self) -> None:
        if self.version != MODEL_VERSION:
            raise ModelError(
                f"a model of version {self.version} was given; expected "
                f"{MODEL_VERSION}: fit it again with 'feinsum model fit'"
            )
        names = _names(self.recipe), _names(self.context)
        if self.is_analytic and not self.coefficients:
            return
        if names != (RECIPE_FEATURES, CONTEXT_FEATURES):
            raise ModelError(
                "a model was given whose features are not those of this installation: "
                "fit it again with 'feinsum model fit'"
            )
        shape = {len(row) for row in self.coefficients}
        if len(self.coefficients) != len(self.recipe) or shape != {len(self.context)}:
            raise ModelError(
                f"a model with coefficients for {len(self.coefficients)} features was "
                f"given; expected {len(self.recipe)} rows of {len(self.context)} each"
            )

    @property
    def is_analytic(self) -> bool:
        """Whether the correction leaves all costs as they are."""
        return not (self.recipe or self.context)

    def factors(self, recipe: Values, context: Values) -> Values:
        """Return factors for the costs of the compared recipes.

        Args:
            recipe: a row of features for each; see :func:`recipe_features`.
            context: see :func:`context_features`.
        """
        if self.is_analytic or not len(recipe):
            return np.ones(len(recipe))
        # what all compared recipes share cancels in the ranking
        deviations, scaled_context = self.standardized(recipe, context)
        logarithms = deviations @ (self._matrix @ scaled_context)
        return np.exp(np.clip(logarithms, -log(LIMIT), log(LIMIT)))

    def standardized(self, recipe: Values, context: Values) -> tuple[Values, Values]:
        """Return features as deviations, on the scales of the trials.

        Args:
            recipe, context: see :meth:`factors`.
        """
        scales, centres, spreads = self._scales
        deviations = (recipe - recipe.mean(axis=0)) / scales
        return _limited(deviations), _limited((context - centres) / spreads)

    @cached_property
    def _matrix(self) -> Values:
        return np.array(self.coefficients)

    @cached_property
    def _scales(self) -> tuple[Values, Values, Values]:
        return (
            np.array([feature.scale for feature in self.recipe]),
            np.array([feature.centre for feature in self.context]),
            np.array([feature.scale for feature in self.context]),
        )


def corrected(
    correction: Correction,
    einsum: BatchedEinsum,
    recipes: Sequence[Costed],
    machine: Machine,
) -> list[float]:
    """Return the costs of recipes in seconds, corrected.

    Args:
        einsum: with numbers for all extents.
        recipes: all that are compared, with their analytic costs.
    """
    costs = [recipe.seconds for recipe in recipes]
    if correction.is_analytic or not costs:
        return costs
    factors = correction.factors(
        recipe_features(einsum, recipes), context_features(einsum, machine)
    )
    return [cost * factor for cost, factor in zip(costs, factors.tolist(), strict=True)]


def _names(features: Sequence[Feature]) -> tuple[str, ...]:
    return tuple(feature.name for feature in features)


def _limited(values: Values) -> Values:
    return np.minimum(np.maximum(values, -FAR), FAR)


ANALYTIC = Correction(MODEL_VERSION, (), (), ())
"""No correction."""

logger = logging.getLogger(__name__)

MODEL_VARIABLE = "FEINSUM_MODEL"
"""Environment variable with the file of a correction, or :data:`NO_MODEL`."""

NO_MODEL = "none"
"""The value of the variable for analytic costs alone."""

SHIPPED = Path(__file__).parents[1] / "model.json"
"""The model of this installation, if any."""

MOST_BYTES = 1 << 20


def source_in_use() -> str:
    """The file that the variable names, else the one that is shipped, or ``none``."""
    named = os.environ.get(MODEL_VARIABLE, "").strip()
    return named or (str(SHIPPED) if SHIPPED.is_file() else NO_MODEL)


def correction_in_use() -> Correction:
    """Return the correction of :func:`source_in_use`, read once.

    One that cannot be read is logged, and costs stay as they are: no model file may
    break a program.
    """
    return remembered(_Read)[source_in_use()]


class _Read(dict[str, Correction]):
    """The corrections by what they were read from."""

    def __missing__(self, source: str) -> Correction:
        try:
            correction = read_correction(source)
        except ModelError as error:
            logger.warning("predicting recipes without a model: %s", error)
            correction = ANALYTIC
        return self.setdefault(source, correction)


def read_correction(source: str | Path) -> Correction:
    """Return the correction in a file; ``none`` is none.

    Raises:
        ModelError: saying what is wrong with the file.
    """
    if str(source) == NO_MODEL:
        return ANALYTIC
    try:
        return from_json(Correction, _text(Path(source)), "model")
    except (InvalidRecordError, ModelError) as error:
        raise ModelError(f"the model file {str(source)!r}: {error}") from None


def _text(path: Path) -> bytes:
    """Return the contents of a file, if not too long."""
    try:
        if not path.is_file():
            raise ModelError("there is no such file")
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelError(f"it cannot be read: {error}") from None
    if len(text) > MOST_BYTES:
        raise ModelError(f"it is longer than {MOST_BYTES} bytes")
    return text


def write_correction(correction: Correction, path: Path) -> None:
    """Write a correction, all of it or nothing; a file that exists is replaced.

    Raises:
        ModelError: if the file cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(to_json(correction) + "\n", "utf-8")
        # a rename is atomic: readers see the old file or the new one
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ModelError(
            f"the model file {str(path)!r} cannot be written: {error.strerror}"
        ) from None
