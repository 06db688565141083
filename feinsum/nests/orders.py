"""The loop orders of terms.

A tree is traversed from its root, so the indices of a sparse operand keep the level
order. There are two rules for that. ``relative`` is the paper's: the sparse indices of
a term are in level order. ``prefix`` is stronger: an index of a level comes after those
of all levels above, so a term that lacks one of these has no order.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 4.1.2, definition 4.2.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from feinsum.nests.network import Network
from feinsum.nests.paths import Term

__all__ = [
    "Order",
    "Orders",
    "Rule",
    "is_allowed",
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
