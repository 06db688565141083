"""Recipes for a bundle, the most promising ones first."""

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
"""Random configurations to consider, at most."""
N_PREDICTED = 6
"""Recipes predicted to be the fastest."""
N_BEST = 3
"""Recipes of earlier rounds whose neighbours are tried."""


def candidates(
    problem: TuningProblem, tried: Mapping[TransformSpec, float], architecture: str
) -> Iterator[TransformSpec]:
    """Recipes to try, the most promising ones first; each once.

    Neighbours of the best that were tried; then the recipes predicted to be the fastest
    on the usual GPU of the architecture; then what the families recommend, and where
    their searches begin; then random configurations, of each family in turn.

    Args:
        architecture: such as ``sm_90``; which GPU will run the bundle is unknown.
    """
    families = [
        family
        for family in find_applicable_transforms(problem.workload, "gpu")
        if family.name.startswith("gpu_")
    ]
    found: dict[TransformSpec, None] = {}
    for spec in sorted(tried, key=tried.__getitem__)[:N_BEST]:
        found.update(dict.fromkeys(vary(spec, problem)))
    predicted = predict_recipes(
        problem.einsum, problem.sizes, get_usual_gpu(architecture)
    )
    found.update(dict.fromkeys(one.spec for one in predicted[:N_PREDICTED]))
    for family in families:
        recommended = islice(list_configurations(family, problem.workload), 1)
        starts = (family.spec(p) for p in family.starts(problem.workload))
        found.update(dict.fromkeys((*recommended, *starts)))
    yield from found
    rng = random.Random(problem.workload_text)
    for k in range(N_DRAWN):
        drawn = _drawn(families[k % len(families)], problem, rng)
        if drawn is not None and drawn not in found:
            found[drawn] = None
            yield drawn


def _drawn(
    family: Transform, problem: TuningProblem, rng: random.Random
) -> TransformSpec | None:
    space = family.get_space(problem.workload)
    if space is None:
        return None
    drawn = {name: rng.choice(values) for name, values in space.items()}
    return family.spec(drawn) if space.constraint(drawn) is None else None


def vary(spec: TransformSpec, problem: TuningProblem) -> list[TransformSpec]:
    """Recipes of the newest version of a family: the same, then with one other value.

    The order is random, and the same each time; so a few of them vary all parameters.
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
