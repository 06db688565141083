"""Loop nests over a sparse operand, which are generated anew, not rewritten."""

from feinsum.transforms.nests.sparse_nest import (
    SPARSE_NEST,
    NestRecipe,
    assume_sizes,
    find_nests,
    get_parameters,
    parse_recipe,
)

__all__ = [
    "SPARSE_NEST",
    "NestRecipe",
    "assume_sizes",
    "find_nests",
    "get_parameters",
    "parse_recipe",
]
