"""What the paper has, and the search does not need: all nests, and another cost.

Source: Kanakagiri and Solomonik 2024 (SpTTN), sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from math import factorial, prod

from feinsum.nests import (
    FactorProduct,
    Forest,
    NestLoop,
    Network,
    Orders,
    Path,
    Rule,
    TermGroup,
)
from feinsum.nests.cost import list_crossing_buffers
from feinsum.nests.nest import Order, is_allowed


def term_orders(network: Network, rule: Rule, term: FactorProduct) -> Iterator[Order]:
    """Every order of the loops of one term."""
    for order in permutations(sorted(term.indices)):
        places = ((frozenset(order[:k]), index) for k, index in enumerate(order))
        if all(is_allowed(network, rule, term, *place) for place in places):
            yield order


def all_orders(network: Network, rule: Rule, path: Path) -> Iterator[Orders]:
    """Every loop nest of a path: each order of each term.

    >>> from feinsum.nests.networks import parse_network
    >>> from feinsum.nests.networks import build_path
    >>> spmv = parse_network("ij,j->i")
    >>> list(all_orders(spmv, "relative", build_path(spmv, [(0, 1)])))
    [(('i', 'j'),)]
    """
    yield from product(*(list(term_orders(network, rule, term)) for term in path))


def n_orders(network: Network, path: Path) -> int:
    """The number of nests of a path that keep the order of the levels."""
    stored = {*network.levels}
    return prod(
        factorial(len(term.indices)) // factorial(len(term.indices & stored))
        for term in path
    )


def unfuse(forest: Forest) -> Orders:
    """The order of each term of a forest: the inverse of :func:`fuse`.

    >>> from feinsum.nests import fuse
    >>> unfuse(fuse((("i", "j", "k"), ("i", "j"))))
    (('i', 'j', 'k'), ('i', 'j'))
    """
    return tuple(order for _, order in sorted(_leaves(forest, ())))


def _leaves(
    nodes: Forest, around: tuple[str, ...]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    for node in nodes:
        if isinstance(node, NestLoop):
            yield from _leaves(node.body, (*around, node.index))
        else:
            yield node, around


def is_fully_fused(forest: Forest) -> bool:
    """Whether no two neighbouring loops are over one index."""
    loops = [node for node in forest if isinstance(node, NestLoop)]
    return all(is_fully_fused(loop.body) for loop in loops) and not any(
        isinstance(a, NestLoop) and isinstance(b, NestLoop) and a.index == b.index
        for a, b in pairwise(forest)
    )


class _LargestBuffer:
    """Costs that are the maximum over all buffers of a nest."""

    nothing = 0.0

    def loop(self, part: TermGroup, index: str, body: float) -> float:
        return body

    def combine(self, first: float, second: float) -> float:
        return max(first, second)

    def least(self, path: Path) -> float:
        return 0.0


@dataclass(frozen=True)
class BufferDimension(_LargestBuffer):
    """The largest number of axes of a buffer."""

    def crossing(self, part: TermGroup, split: int) -> float:
        kept = (p.result.indices for p, _ in list_crossing_buffers(part, split))
        return max((len(i - part.ancestors) for i in kept), default=0.0)
