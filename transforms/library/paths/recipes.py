"""Recipes of the steps of a path: the cheapest, or named ones.

Which is cheapest depends on the costs, which later versions of this package may
correct. So a fact names the measured recipes, which stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.records import ParameterValue, TransformSpec
from feinsum.transforms.cost import Machine
from feinsum.transforms.ranking import ranked
from feinsum.transforms.registry import (
    REGISTRY,
    Transform,
    check_spec,
    find_transform,
)

__all__ = [
    "Families",
    "are_named",
    "cheapest",
    "cost_of",
    "misfit",
    "named",
    "specs_of",
]

Families: TypeAlias = tuple[Transform, ...]


@lru_cache(maxsize=1024)
def cheapest(
    einsum: BatchedEinsum, families: Families, machine: Machine
) -> TransformSpec:
    """The cheapest recipe of a step, among families that write new loops."""
    return ranked(einsum, {}, families, machine)[0].spec


def cost_of(spec: TransformSpec, einsum: BatchedEinsum, machine: Machine) -> float:
    """Seconds of a step; a version without a cost uses that of the newest."""
    known = find_transform(spec.name, spec.version).cost
    others = (t.cost for (name, _), t in sorted(REGISTRY.items()) if name == spec.name)
    cost = known or [cost for cost in others if cost][-1]
    return cost(einsum, spec.parameters, machine)


def named(specs: Sequence[TransformSpec]) -> tuple[str, ...]:
    """The value of a parameter that names the recipes of all steps.

    >>> named([TransformSpec("generic", 2, {"block": 8})])
    ('generic@2(block=8)',)
    """
    return tuple(map(str, specs))


def are_named(steps: ParameterValue) -> bool:
    """Whether the value names recipes rather than a way to choose them."""
    return isinstance(steps, tuple)


def specs_of(steps: ParameterValue) -> list[TransformSpec]:
    """The recipes named by a value.

    Raises:
        InvalidRecordError: if it names no recipes.
    """
    assert isinstance(steps, tuple)
    return [TransformSpec.parse(str(step)) for step in steps]


def misfit(
    steps: ParameterValue, einsums: Sequence[BatchedEinsum], families: Families
) -> str | None:
    """Why named recipes do not fit the steps; None if they do.

    Args:
        einsums: einsums of the steps.
        families: allowed families of their recipes, in any version.
    """
    try:
        specs = specs_of(steps)
        if len(specs) != len(einsums):
            return f"there are {len(einsums)} steps, and recipes of {len(specs)}"
        known = {family.name for family in families}
        for spec, einsum in zip(specs, einsums, strict=True):
            if spec.name not in known:
                return f"{spec.name} is no family of steps; those are {sorted(known)}"
            check_spec(spec, einsum)
    except FeinsumError as error:
        return f"a step is by no recipe: {error}"
    return None
