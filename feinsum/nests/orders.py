"""The loop orders of terms.

A tree is traversed from its root, so the indices of a sparse operand keep the level
order. There are two rules for that. ``relative`` is the paper's: the sparse indices of
a term are in level order. ``prefix`` is stronger: an index of a level comes after those
of all levels above, so a term that lacks one of these has no order.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 4.1.2, definition 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from math import factorial, prod
from typing import Literal, TypeAlias

from feinsum.nests.network import Network
from feinsum.nests.paths import Path, Term

__all__ = [
    "Order",
    "Orders",
    "Rule",
    "all_orders",
    "is_allowed",
    "n_orders",
    "needed_around",
]

Order: TypeAlias = tuple[str, ...]
"""The loops of one term, from the outermost."""

Orders: TypeAlias = tuple[Order, ...]
"""The loops of each term of a path."""

Rule: TypeAlias = Literal["any", "relative", "prefix"]


def is_allowed(
    network: Network, rule: Rule, term: Term, ancestors: frozenset[str], index: str
) -> bool:
    """Whether a term can have a loop over an index within these loops."""
    return needed_around(network, rule, term, index) <= ancestors


def needed_around(
    network: Network, rule: Rule, term: Term, index: str
) -> frozenset[str]:
    """The loops that have to be around a term's loop over an index."""
    level = network.level_of.get(index)
    if rule == "any" or level is None:
        return frozenset()
    above = frozenset(network.levels[:level])
    return above & term.indices if rule == "relative" else above


def term_orders(network: Network, rule: Rule, term: Term) -> Iterator[Order]:
    """Every order of the loops of one term."""
    for order in permutations(sorted(term.indices)):
        places = ((frozenset(order[:k]), index) for k, index in enumerate(order))
        if all(is_allowed(network, rule, term, *place) for place in places):
            yield order


def all_orders(network: Network, rule: Rule, path: Path) -> Iterator[Orders]:
    """Every loop nest of a path: each order of each term.

    >>> from feinsum.nests.network import network
    >>> from feinsum.nests.paths import path_from_pairs
    >>> spmv = network("ij,j->i")
    >>> list(all_orders(spmv, "relative", path_from_pairs(spmv, [(0, 1)])))
    [(('i', 'j'),)]
    """
    yield from product(*(list(term_orders(network, rule, term)) for term in path))


def n_orders(network: Network, rule: Rule, path: Path) -> int:
    """The number of loop nests of a path, without enumerating them."""
    return prod(_n_term_orders(network, rule, term) for term in path)


def _n_term_orders(network: Network, rule: Rule, term: Term) -> int:
    total = factorial(len(term.indices))
    stored = [level for level, index in enumerate(network.levels)
              if index in term.indices]  # fmt: skip
    if rule == "any":
        return total
    if rule == "prefix" and stored != list(range(len(stored))):
        return 0
    return total // factorial(len(stored))
