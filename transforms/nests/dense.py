"""What the loop nest search proposes for dense operands: a path, and a shared loop.

Without a sparse operand, the search weighs the same things: vector products, fetched
rows, and buffers that fit into registers or not. If the cheapest nest has one loop
around all products, that loop is the one to fuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum
from feinsum.nests import (
    BestNest,
    EstimatedTime,
    Loop,
    Network,
    Sizes,
    best_orders,
    path_from_pairs,
)
from feinsum.nests.network import MAX_OPERANDS

Pairs = Sequence[tuple[int, int]]


def cheapest_path(
    einsum: BatchedEinsum, paths: Sequence[Pairs], extents: Mapping[str, int]
) -> tuple[int, str] | None:
    """The number of the path with the estimated fastest nest, and its loop.

    Args:
        einsum: an einsum of dense operands; for a batch, only the subscripts matter.
        paths: pairs of positions; the product is appended.
        extents: extents of all indices.

    Returns:
        The number, and the index of the loop around all products, empty if there is
        none. None if the search does not apply to such einsums.

    >>> from feinsum.ir import array, einsum
    >>> chains = einsum("bij,bjk,bkl->bil", *[array(n, (900, 9, 9)) for n in "ABC"])
    >>> extents = {"b": 900, "i": 9, "j": 9, "k": 9, "l": 9}
    >>> cheapest_path(chains, [[(0, 1), (0, 1)]], extents)
    (0, 'b')
    """
    try:
        network = Network(einsum.inputs, einsum.output)
    except InvalidEinsumError:
        return None
    itemsize = einsum.output_dtypes[0].itemsize
    cost = EstimatedTime(network, Sizes(extents), item_bytes=itemsize)
    found: list[tuple[float, int, BestNest]] = []
    for k, pairs in enumerate(paths):
        if len(pairs) == len(network.inputs) - 1 <= MAX_OPERANDS - 1:
            path = path_from_pairs(network, _numbered(pairs, len(network.inputs)))
            if best := best_orders(network, path, cost):
                found.append((best.cost, k, best))
    if not found:
        return None
    _, k, best = min(found, key=lambda one: one[:2])
    forest = best.nest.forest
    root = forest[0]
    return k, root.index if len(forest) == 1 and isinstance(root, Loop) else ""


def _numbered(pairs: Pairs, n: int) -> list[tuple[int, int]]:
    """Pairs of positions among what is left, as numbers of operands and products."""
    left, made = list(range(n)), []
    for first, second in pairs:
        made.append((left[first], left[second]))
        for place in sorted((first, second), reverse=True):
            del left[place]
        left.append(n + len(made) - 1)
    return made
