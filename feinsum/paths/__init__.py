"""In which order operands are multiplied: searches, limits, costs, all orders."""

from feinsum.paths.counted import Step, contraction_steps, pairwise_path
from feinsum.paths.library import index_letter, is_path_name, search_path
from feinsum.paths.limited import check_path, entries_between, path_within
from feinsum.paths.postorders import (
    Order,
    order_of,
    path_of,
    postorders,
)
from feinsum.paths.search import (
    EXACT_UP_TO,
    MINIMIZED,
    OPTIMAL_UP_TO,
    Path,
    PathMethod,
    contract_greedily,
    find_path,
    path_outputs,
)

__all__ = [
    "EXACT_UP_TO",
    "MINIMIZED",
    "OPTIMAL_UP_TO",
    "Order",
    "Path",
    "PathMethod",
    "Step",
    "check_path",
    "contract_greedily",
    "contraction_steps",
    "entries_between",
    "find_path",
    "index_letter",
    "is_path_name",
    "order_of",
    "pairwise_path",
    "path_of",
    "path_outputs",
    "path_within",
    "postorders",
    "search_path",
]
