"""Messages of a plan, grouped as engines send them: collectives and phases.

MPI replaces the messages of one move by a collective if they match one of four
patterns::

    allgather         bcast            reduce-scatter      reduce
    0: a -> 1, 2      0: a -> 1, 2     0: b -> 1, c -> 2   1: a -> 0
    1: b -> 0, 2                       1: a -> 0, c -> 2   2: a -> 0
    2: c -> 0, 1                       2: a -> 0, b -> 1

Anything else stays point to point: rotations, and most redistributions.

Dask runs tasks that receive messages when they begin and send them when they end. The
steps of a rank become phases, one task each, with the same numbers on all ranks. A
message is sent from the buffers before a phase, and received at its beginning::

    rank 0   (begin) send A ---.      phase 1: receive B, compute
    rank 1   (begin) send B    '-->   phase 1: receive A, compute
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feinsum.distributed.boxes import Box, count_entries
from feinsum.distributed.steps import (
    Allocation,
    Event,
    Free,
    Make,
    Move,
    Release,
    Step,
    Transfer,
    list_steps,
)

Pieces: TypeAlias = tuple[tuple[str, Box], ...]
"""Boxes of buffers, in the order in which they are sent."""

Kind: TypeAlias = Literal["allgather", "bcast", "reduce-scatter", "reduce"]

MIN_RANKS = 3
"""Minimum number of ranks of a collective: two ranks exchange plain messages."""


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

    kind: Kind
    tag: int
    ranks: tuple[int, ...]
    pieces: tuple[Pieces, ...]

    @property
    def is_reduction(self) -> bool:
        return self.kind in ("reduce-scatter", "reduce")

    @property
    def sizes(self) -> list[int]:
        """The number of elements of the pieces of each rank."""
        return [sum(count_entries(box) for _, box in row) for row in self.pieces]

    @property
    def root(self) -> int:
        """The position, among the ranks, of the only one that has pieces."""
        return next(k for k, pieces in enumerate(self.pieces) if pieces)


def find_collectives(events: Iterable[Event]) -> tuple[Collective, ...]:
    """Return the collectives of all ranks, in execution order.

    >>> import feinsum
    >>> A, x = feinsum.array("A", (9, 6)), feinsum.array("x", 6)
    >>> plan = feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=3)
    >>> [(c.kind, c.ranks) for c in find_collectives(plan.events())]
    [('allgather', (0, 1, 2))]
    """
    collectives = []
    for event in events:
        if not isinstance(event, Move):
            continue
        messages: dict[tuple[int, int], Pieces] = defaultdict(tuple)
        for source, target, box in event.overlap.boxes():
            if source != target:
                messages[source, target] += ((event.source, box),)
        for ranks in _find_connected_ranks(messages):
            collective = _match_pattern(event, ranks, messages)
            if collective is not None:
                collectives.append(collective)
    return tuple(collectives)


def _find_connected_ranks(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the connected components of the graph of messages, as sorted ranks."""
    component: dict[int, set[int]] = {}
    for source, target in pairs:
        merged = component.get(source, {source}) | component.get(target, {target})
        for rank in merged:
            component[rank] = merged
    return sorted({tuple(sorted(ranks)) for ranks in component.values()})


def _match_pattern(
    move: Move, ranks: tuple[int, ...], messages: Mapping[tuple[int, int], Pieces]
) -> Collective | None:
    """Return the collective of some ranks; None if their messages form none."""
    if len(ranks) < MIN_RANKS:
        return None
    pieces = []
    for rank in ranks:
        other_ranks = [peer for peer in ranks if peer != rank]
        pairs = [
            (peer, rank) if move.is_added else (rank, peer) for peer in other_ranks
        ]
        # a collective sends all others the same, in the same order
        distinct = {messages.get(pair, ()) for pair in pairs}
        if len(distinct) > 1:
            return None
        pieces.append(distinct.pop())
    # only one rank sends, or receives
    has_root = sum(map(bool, pieces)) == 1
    kind: Kind
    if move.is_added:
        kind = "reduce" if has_root else "reduce-scatter"
    else:
        kind = "bcast" if has_root else "allgather"
    return Collective(kind, move.tag, ranks, tuple(pieces))


@dataclass(frozen=True)
class Parcel:
    """Boxes of a rank's buffers before a phase; receivers of equal boxes share it."""

    rank: int
    pieces: Pieces


Origin: TypeAlias = tuple[int, int]
"""The number of a parcel among those that arrive in a phase, and of a piece in it."""


@dataclass(frozen=True)
class Phase:
    """Steps of a rank, in order; parcels take the place of sends.

    Attributes:
        steps: each step with the origin of its value, if another rank sent it.
        arriving: the parcels that the steps need.
    """

    steps: tuple[tuple[Step, Origin | None], ...]
    arriving: tuple[Parcel, ...]


def build_phases(events: Iterable[Event]) -> tuple[Mapping[int, Phase], ...]:
    """Return the phases in order, each by the ranks that have steps in it.

    A move belongs to the first phase after the one in which its source was written, but
    never to a phase before that of an earlier move: moves of resident tensors share a
    phase.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> phases = build_phases(plan.events())  # fetch and compute; reduce
    >>> [sorted({type(s).__name__ for s, _ in of[0].steps}) for of in phases if of]
    [['Free', 'Leaf', 'Make', 'Transfer'], ['Free', 'Transfer']]
    """
    now, written = 0, defaultdict[str, int](int)
    rounds: list[dict[int, _PhaseBuilder]] = [{}]
    waiting: dict[int, list[Make | Free]] = defaultdict(list)
    for event in events:
        if isinstance(event, Move):
            now = max(now, written[event.source] + 1)
            rounds += [{} for _ in range(now + 1 - len(rounds))]
            written[event.target] = now
        elif not isinstance(event, Release):
            name = event.buffer if isinstance(event, Allocation) else event.target
            written[name] = now
        for rank, step in list_steps(event):
            if isinstance(step, Transfer) and rank != step.receiver:
                continue
            if isinstance(step, Make | Free) and rank not in rounds[now]:
                # not worth a task: runs before the next steps of this rank
                waiting[rank].append(step)
                continue
            if rank not in rounds[now]:
                rounds[now][rank] = _PhaseBuilder(waiting.pop(rank, ()))
            rounds[now][rank].add(step)
    for rank, steps in waiting.items():
        # an output may be a buffer that no step writes to
        if any(isinstance(step, Make) for step in steps):
            rounds[now][rank] = _PhaseBuilder(steps)
    return tuple(
        {rank: builder.build() for rank, builder in sorted(of_ranks.items())}
        for of_ranks in rounds
    )


class _PhaseBuilder:
    """Collects the steps of a phase, and one parcel from each sender."""

    def __init__(self, waiting: Iterable[Make | Free]) -> None:
        self.steps: list[tuple[Step, Origin | None]] = [
            (step, None) for step in waiting
        ]
        self.parcels: dict[int, dict[tuple[str, Box], int]] = defaultdict(dict)

    def add(self, step: Step) -> None:
        if not (isinstance(step, Transfer) and step.is_message):
            self.steps.append((step, None))
            return
        parcel = self.parcels[step.sender]
        # one piece serves several steps
        piece_number = parcel.setdefault((step.source, step.box), len(parcel))
        parcel_number = [*self.parcels].index(step.sender)
        self.steps.append((step, (parcel_number, piece_number)))

    def build(self) -> Phase:
        parcels = (Parcel(rank, tuple(parcel)) for rank, parcel in self.parcels.items())
        return Phase(tuple(self.steps), tuple(parcels))
