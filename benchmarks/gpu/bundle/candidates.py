"""The recipes of a bundle, in the order of their expected performance."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice

from feinsum.predict import get_usual_gpu, predict_recipes
from feinsum.records import TransformSpec
from feinsum.transforms import (
    REGISTRY,
    Transform,
    find_applicable_transforms,
    list_configurations,
)
from feinsum.tuning.problem import TuningProblem

N_DRAWN = 400
"""Limit of random configurations."""
N_PREDICTED = 6
"""Number of recipes with the best predictions."""
N_BEST = 3
"""Number of measured recipes whose neighbours are tried."""


def list_candidates(
    problem: TuningProblem, tried: Mapping[TransformSpec, float], architecture: str
) -> Iterator[TransformSpec]:
    """Yield recipes to try, the most promising ones first, each once.

    First come neighbours of the best measured recipes, then the best predictions for
    the usual GPU of the architecture, then recommendations and starting points of the
    families, and then random configurations, of each family in turn.

    Args:
        architecture: such as ``sm_90``; the GPU that will run the bundle is unknown.
    """
    families = [
        family
        for family in find_applicable_transforms(problem.workload, "gpu")
        if family.name.startswith("gpu_")
    ]
    specs: dict[TransformSpec, None] = {}
    for spec in sorted(tried, key=tried.__getitem__)[:N_BEST]:
        specs.update(dict.fromkeys(vary(spec, problem)))
    predicted = predict_recipes(
        problem.einsum, problem.sizes, get_usual_gpu(architecture)
    )
    specs.update(dict.fromkeys(recipe.spec for recipe in predicted[:N_PREDICTED]))
    for family in families:
        recommended = islice(list_configurations(family, problem.workload), 1)
        starts = (family.spec(p) for p in family.starts(problem.workload))
        specs.update(dict.fromkeys((*recommended, *starts)))
    yield from specs
    rng = random.Random(problem.workload_text)
    for k in range(N_DRAWN):
        recipe = _draw_recipe(families[k % len(families)], problem, rng)
        if recipe is not None and recipe not in specs:
            specs[recipe] = None
            yield recipe


def _draw_recipe(
    family: Transform, problem: TuningProblem, rng: random.Random
) -> TransformSpec | None:
    space = family.get_space(problem.workload)
    if space is None:
        return None
    parameters = {name: rng.choice(values) for name, values in space.items()}
    return family.spec(parameters) if space.constraint(parameters) is None else None


def vary(spec: TransformSpec, problem: TuningProblem) -> list[TransformSpec]:
    """Return the recipe in the newest version of its family, and those with one other
    value.

    The order is random but reproducible, so that the first few vary all parameters.
    """
    family = REGISTRY[spec.name, max(v for name, v in REGISTRY if name == spec.name)]
    space = family.get_space(problem.workload)
    if space is None:
        return []
    varied = [
        {**spec.parameters, name: value}
        for name, values in space.items()
        for value in values
        if value != spec.parameters.get(name)
    ]
    random.Random(problem.workload_text).shuffle(varied)
    return [
        newest
        for parameters in (spec.parameters, *varied)
        if (newest := family.spec(parameters)) != spec
        and {*parameters} == {*space}
        and space.constraint(parameters) is None
    ]
