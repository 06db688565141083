"""Fully fused loop nests: what terms have in common at the head of their orders.

Source: Kanakagiri and Solomonik 2024 (SpTTN), definitions 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from feinsum.nests.orders import Orders

__all__ = ["Forest", "Loop", "Node", "fuse"]


@dataclass(frozen=True)
class Loop:
    """A loop and what is in it, in the order in which it is computed."""

    index: str
    body: tuple[Node, ...]


Node: TypeAlias = "Loop | int"
"""A loop, or the number of a term whose loops are all around it."""

Forest: TypeAlias = tuple[Node, ...]


def fuse(orders: Orders) -> Forest:
    """The fully fused forest of these orders, by peeling.

    >>> fuse((("i", "j", "k"), ("i", "j")))
    (Loop(index='i', body=(Loop(index='j', body=(Loop(index='k', body=(0,)), 1)),)),)
    """
    return _peeled(orders, range(len(orders)), 0)


def _peeled(orders: Orders, terms: Sequence[int], depth: int) -> Forest:
    nodes: list[Node] = []
    at = 0
    while at < len(terms):
        heads = [orders[t][depth : depth + 1] for t in terms[at:]]
        if not heads[0]:
            nodes.append(terms[at])
            at += 1
            continue
        r = next((k for k, head in enumerate(heads) if head != heads[0]), len(heads))
        body = _peeled(orders, terms[at : at + r], depth + 1)
        nodes.append(Loop(heads[0][0], body))
        at += r
    return tuple(nodes)
