"""Loop nests for a sparse tensor and a network of dense ones, and their search."""

from feinsum.nests.cost import (
    Cost,
    IndependentLoops,
    Lexicographic,
    Operations,
    Part,
    evaluate,
)
from feinsum.nests.estimate import EstimatedTime, Machine
from feinsum.nests.forest import Forest, Loop, fuse
from feinsum.nests.form import NestForm, choose_form, lane_indices
from feinsum.nests.nest import Buffer, Nest, unfactorized
from feinsum.nests.network import Network, Sizes, network, network_of, sizes_at
from feinsum.nests.operands import sizes_of
from feinsum.nests.orders import Orders, Rule
from feinsum.nests.paths import (
    Path,
    Tensor,
    Term,
    consumers,
    path_from_pairs,
    postorders,
)
from feinsum.nests.search import (
    Found,
    best_levels,
    best_nest,
    best_orders,
    by_depth,
    level_orders,
)
from feinsum.nests.steps import Multiply, Repeat, Reset, Step, lower
from feinsum.nests.text import nest_from_text, nest_to_text, translated

__all__ = [
    "Buffer",
    "Cost",
    "EstimatedTime",
    "Forest",
    "Found",
    "IndependentLoops",
    "Lexicographic",
    "Loop",
    "Machine",
    "Multiply",
    "Nest",
    "NestForm",
    "Network",
    "Operations",
    "Orders",
    "Part",
    "Path",
    "Repeat",
    "Reset",
    "Rule",
    "Sizes",
    "Step",
    "Tensor",
    "Term",
    "best_levels",
    "best_nest",
    "best_orders",
    "by_depth",
    "choose_form",
    "consumers",
    "evaluate",
    "fuse",
    "lane_indices",
    "level_orders",
    "lower",
    "nest_from_text",
    "nest_to_text",
    "network",
    "network_of",
    "path_from_pairs",
    "postorders",
    "sizes_at",
    "sizes_of",
    "translated",
    "unfactorized",
]
