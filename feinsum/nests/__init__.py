"""Loop nests for a sparse tensor and a network of dense ones, and their search."""

from feinsum.nests.cost import (
    BufferDimension,
    BufferSize,
    CacheMisses,
    Cost,
    IndependentLoops,
    Lexicographic,
    Operations,
    Part,
    evaluate,
)
from feinsum.nests.estimate import EstimatedTime, Machine
from feinsum.nests.forest import Forest, Loop, fuse, is_fully_fused, unfuse
from feinsum.nests.form import NestForm, choose_form, lane_indices
from feinsum.nests.interpret import Outcome, interpret, sizes_of
from feinsum.nests.nest import Buffer, Nest, unfactorized
from feinsum.nests.network import Network, Sizes, network, network_of, sizes_at
from feinsum.nests.orders import Orders, Rule, all_orders, n_orders
from feinsum.nests.paths import (
    Path,
    Tensor,
    Term,
    consumers,
    n_pair_sequences,
    n_postorders,
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
    "BufferDimension",
    "BufferSize",
    "CacheMisses",
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
    "Outcome",
    "Part",
    "Path",
    "Repeat",
    "Reset",
    "Rule",
    "Sizes",
    "Step",
    "Tensor",
    "Term",
    "all_orders",
    "best_levels",
    "best_nest",
    "best_orders",
    "by_depth",
    "choose_form",
    "consumers",
    "evaluate",
    "fuse",
    "interpret",
    "is_fully_fused",
    "lane_indices",
    "level_orders",
    "lower",
    "n_orders",
    "n_pair_sequences",
    "n_postorders",
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
    "unfuse",
]
