"""Loop nests over a sparse operand, which are generated and not rewritten."""

from feinsum.transforms.nests.family import (
    SPARSE_NEST,
    NestRecipe,
    nests_at,
    parameters_of,
    recipe_of,
    usual_sizes,
)

__all__ = [
    "SPARSE_NEST",
    "NestRecipe",
    "nests_at",
    "parameters_of",
    "recipe_of",
    "usual_sizes",
]
