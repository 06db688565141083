"""Loop nests over a sparse operand, which are generated anew, not rewritten."""

from feinsum.transforms.nests.sparse_nest import (
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
