"""Kernels over trees, by one recipe of those that fit."""

from __future__ import annotations

import loopy as lp

from feinsum import raise_kernel
from feinsum.records import TransformSpec
from feinsum.transforms import apply_spec, configurations
from feinsum.transforms.nests import SPARSE_NEST

__all__ = ["find_recipe", "with_recipe"]


def find_recipe(einsum, **parameters: object) -> TransformSpec:
    """The first one with these parameters; a condition is one on its value."""

    def fits(spec: TransformSpec) -> bool:
        return all(
            wanted(spec.parameters[name])
            if callable(wanted)
            else spec.parameters[name] == wanted
            for name, wanted in parameters.items()
        )

    return next(filter(fits, configurations(SPARSE_NEST, einsum)))


def with_recipe(
    unit: lp.TranslationUnit,
    spec: TransformSpec | None = None,
    long_extent: int | None = None,
    **parameters: object,
) -> lp.TranslationUnit:
    """The kernel whose only nest is transformed.

    Args:
        parameters: those by which a recipe is found where none is given.
    """
    options = {} if long_extent is None else {"long_extent": long_extent}
    raised = raise_kernel(unit, **options)
    (nest,) = raised.raised
    spec = spec or find_recipe(nest.form.einsum, **parameters)
    kernel = raised.t_unit[raised.kernel_name]
    rules = {**kernel.substitutions, **nest.new_rules}
    alone = raised.t_unit.with_kernel(kernel.copy(substitutions=rules))
    return lp.expand_subst(apply_spec(spec, alone, nest.canonical_nest))
