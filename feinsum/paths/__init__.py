"""In which order operands are multiplied: searches, limits, costs, all orders."""

from feinsum.paths.counted import Step, contraction_steps, pairwise_path
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
    check_path,
    contract_greedily,
    entries_between,
    find_path,
    index_letter,
    is_path_name,
    path_outputs,
    path_within,
    search_path,
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
