"""Collectives: sets of messages with one tag that an MPI function implements.

Messages with one tag are those that pass between two buffers at one time. There are
four patterns among communicating ranks: all get what each one has (all-gather), or what
one of them has (broadcast); each reduces its part of what the others have
(reduce-scatter), or one of them reduces all (reduce). Anything else stays point to
point: rotations, and most redistributions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feinsum.distributed.boxes import Box
from feinsum.distributed.steps import Reduce, Send, Steps

Pieces: TypeAlias = tuple[tuple[str, Box], ...]
"""Boxes of buffers, in the order in which they are sent."""

FEWEST_RANKS = 3
"""Two ranks send each other a message."""


@dataclass(frozen=True)
class Collective:
    """A collective among some ranks.

    Attributes:
        kind: ``allgather`` and ``bcast``, ``reduce-scatter`` and ``reduce``.
        tag: tag of the messages that it replaces.
        ranks: participating ranks, in order.
        pieces: for each rank, what it sends to all others; for reductions, what all
            others send to it.
    """

    kind: Literal["allgather", "bcast", "reduce-scatter", "reduce"]
    tag: int
    ranks: tuple[int, ...]
    pieces: tuple[Pieces, ...]

    @property
    def root(self) -> int:
        """The position, among the ranks, of the only one that has pieces."""
        return next(k for k, pieces in enumerate(self.pieces) if pieces)


def collectives_of(steps: Steps) -> tuple[Collective, ...]:
    """The collectives of all ranks, in execution order.

    >>> from feinsum.distributed.steps import Receive
    >>> box = (range(4),)
    >>> root = (Send(1, "A", box, 7), Send(2, "A", box, 7))
    >>> others = [(Receive(0, "A@0.0.0", box, 7),)] * 2
    >>> [(one.kind, one.ranks) for one in collectives_of((root, *others))]
    [('bcast', (0, 1, 2))]
    """
    sent: dict[int, dict[tuple[int, int], list[tuple[str, Box]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    reduced: set[int] = set()
    for rank, row in enumerate(steps):
        for step in row:
            if isinstance(step, Send):
                sent[step.tag][rank, step.rank].append((step.source, step.box))
            elif isinstance(step, Reduce):
                reduced.add(step.tag)
    found = []
    for tag, messages in sorted(sent.items()):
        given = {pair: tuple(pieces) for pair, pieces in messages.items()}
        for ranks in _connected(given):
            one = _pattern(tag, ranks, given, is_reduced=tag in reduced)
            if one is not None:
                found.append(one)
    return tuple(found)


def _connected(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Ranks that pass each other something, directly or by others."""
    group: dict[int, set[int]] = {}
    for one, other in pairs:
        merged = group.get(one, {one}) | group.get(other, {other})
        for rank in merged:
            group[rank] = merged
    return sorted({tuple(sorted(ranks)) for ranks in group.values()})


def _pattern(
    tag: int,
    ranks: tuple[int, ...],
    given: Mapping[tuple[int, int], Pieces],
    *,
    is_reduced: bool,
) -> Collective | None:
    if len(ranks) < FEWEST_RANKS:
        return None
    pieces = []
    for rank in ranks:
        pairs = [
            (other, rank) if is_reduced else (rank, other)
            for other in ranks
            if other != rank
        ]
        different = {given.get(pair, ()) for pair in pairs}
        if len(different) > 1:
            return None
        pieces.append(different.pop())
    is_one = sum(map(bool, pieces)) == 1
    kind: Literal["allgather", "bcast", "reduce-scatter", "reduce"]
    if is_reduced:
        kind = "reduce" if is_one else "reduce-scatter"
    else:
        kind = "bcast" if is_one else "allgather"
    return Collective(kind, tag, ranks, tuple(pieces))
