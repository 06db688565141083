"""Nests as statements, including where buffers are zeroed.

A buffer is zeroed where the paths to its producer and its consumer split: within the
innermost loop around both, before the producer's own loops. If the producer has no loop
of its own there, its product is assigned.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 3.2 and algorithm 2, which is
silent about the second case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from feinsum.nests.forest import Forest, Loop, Node
from feinsum.nests.nest import Nest
from feinsum.nests.paths import consumers

__all__ = ["Multiply", "Repeat", "Reset", "Step", "lower"]


@dataclass(frozen=True)
class Reset:
    """Zero the buffer that a term fills."""

    term: int


@dataclass(frozen=True)
class Multiply:
    """The product of a term's operands: assigned to its result, or added to it."""

    term: int
    is_assigned: bool


@dataclass(frozen=True)
class Repeat:
    """A loop.

    Attributes:
        index: its index.
        level: of the tree, if the loop runs over the children of the node of the level
            above; None if it runs over the extent.
        body: the repeated statements.
    """

    index: str
    level: int | None
    body: tuple[Step, ...]


Step: TypeAlias = Reset | Multiply | Repeat


def lower(nest: Nest) -> tuple[Step, ...]:
    """The statements of a nest.

    A loop runs over nodes of the tree if the loops of all levels above are around it.
    That is so even if the loop does not contain the sparse operand: its results are
    multiplied by it, before or after, so only these nodes count.

    >>> from feinsum.nests.network import network
    >>> from feinsum.nests.paths import path_from_pairs
    >>> sums = network("ij,j,j->i")
    >>> nest = Nest(sums, path_from_pairs(sums, [(0, 1), (3, 2)]), (("i", "j"),) * 2)
    >>> lower(nest)[0].body[0].body
    (Multiply(term=0, is_assigned=True), Multiply(term=1, is_assigned=False))
    """
    taken = {k: c for k, c in enumerate(consumers(nest.path)) if c is not None}
    return tuple(_lowered(nest, taken, nest.forest, frozenset()))


def _lowered(
    nest: Nest, taken: Mapping[int, int], forest: Forest, around: frozenset[str]
) -> Iterator[Step]:
    for node in forest:
        terms = _terms(node)
        leaving = [t for t in terms if t in taken and taken[t] not in terms]
        here = [t for t in leaving if any(taken[t] in _terms(n) for n in forest)]
        if isinstance(node, int):
            yield Multiply(node, is_assigned=bool(here))
            continue
        yield from map(Reset, here)
        level = nest.network.level_within(around, node.index)
        body = _lowered(nest, taken, node.body, around | {node.index})
        yield Repeat(node.index, level, tuple(body))


def _terms(node: Node) -> tuple[int, ...]:
    if isinstance(node, Loop):
        return tuple(t for inner in node.body for t in _terms(inner))
    return (node,)
