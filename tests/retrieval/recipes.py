"""A recipe for any einsum that a family fits."""

from __future__ import annotations

from feinsum.ir import BatchedEinsum
from feinsum.records import TransformSpec
from feinsum.transforms import find_applicable_transforms, list_configurations

__all__ = ["first_recipe"]


def first_recipe(einsum: BatchedEinsum) -> TransformSpec:
    """The first configuration of the first family that fits a canonical einsum."""
    (family, *_) = find_applicable_transforms(einsum)
    return next(list_configurations(family, einsum))
