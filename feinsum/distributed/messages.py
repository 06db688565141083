"""Messages of the steps, grouped as engines send them: collectives and phases.

MPI sends messages with one tag, which pass between two buffers at one time, by a
collective if all participating ranks exchange the same. There are four patterns::

    allgather         bcast            reduce-scatter      reduce
    0: a -> 1, 2      0: a -> 1, 2     0: b -> 1, c -> 2   1: a -> 0
    1: b -> 0, 2                       1: a -> 0, c -> 2   2: a -> 0
    2: c -> 0, 1                       2: a -> 0, b -> 1

Anything else stays point to point: rotations, and most redistributions.

Dask runs tasks that receive messages when they begin and send them when they end. The
steps of a rank become phases, one task each: a message is sent at the end of the phase
in which it is ready, and received at the beginning of a later one::

    rank 0   phase 0: make A@, send A  ---.      phase 1: receive, compute
    rank 1   phase 0: make A@            '-->    phase 1: receive A@, compute
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feinsum.distributed.boxes import Box
from feinsum.distributed.steps import (
    Free,
    Leaf,
    Make,
    Receive,
    Reduce,
    Send,
    Step,
    Steps,
    Take,
)

Pieces: TypeAlias = tuple[tuple[str, Box], ...]
"""Boxes of buffers, in the order in which they are sent."""

Kind: TypeAlias = Literal["allgather", "bcast", "reduce-scatter", "reduce"]

MIN_RANKS = 3
"""Ranks of a collective: two ranks send each other a message."""


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
    def root(self) -> int:
        """The position, among the ranks, of the only one that has pieces."""
        return next(k for k, pieces in enumerate(self.pieces) if pieces)


def collectives_of(steps: Steps) -> tuple[Collective, ...]:
    """Return the collectives of all ranks, in execution order.

    >>> box = (range(4),)
    >>> root = (Send(1, "A", box, 7), Send(2, "A", box, 7))
    >>> others = [(Receive(0, "A@0.0.0", box, 7),)] * 2
    >>> [(c.kind, c.ranks) for c in collectives_of((root, *others))]
    [('bcast', (0, 1, 2))]
    """
    # tag -> (source, target) -> pieces
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
    collectives = []
    # tags ascend in the order of execution, the same on all ranks
    for tag, messages in sorted(sent.items()):
        pieces = {pair: tuple(boxes) for pair, boxes in messages.items()}
        for ranks in _connected_ranks(pieces):
            collective = _match_pattern(tag, ranks, pieces, is_reduced=tag in reduced)
            if collective is not None:
                collectives.append(collective)
    return tuple(collectives)


def _connected_ranks(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return sets of ranks that exchange messages, directly or by others."""
    component: dict[int, set[int]] = {}
    for source, target in pairs:
        merged = component.get(source, {source}) | component.get(target, {target})
        for rank in merged:
            component[rank] = merged
    return sorted({tuple(sorted(ranks)) for ranks in component.values()})


def _match_pattern(
    tag: int,
    ranks: tuple[int, ...],
    messages: Mapping[tuple[int, int], Pieces],
    *,
    is_reduced: bool,
) -> Collective | None:
    """Return the collective of some ranks; None if their messages form none."""
    if len(ranks) < MIN_RANKS:
        return None
    pieces = []
    for rank in ranks:
        others = [other for other in ranks if other != rank]
        pairs = [(other, rank) if is_reduced else (rank, other) for other in others]
        # a collective sends all others the same, in the same order
        different = {messages.get(pair, ()) for pair in pairs}
        if len(different) > 1:
            return None
        pieces.append(different.pop())
    # only one rank gives, or receives
    has_root = sum(map(bool, pieces)) == 1
    kind: Kind
    if is_reduced:
        kind = "reduce" if has_root else "reduce-scatter"
    else:
        kind = "bcast" if has_root else "allgather"
    return Collective(kind, tag, ranks, tuple(pieces))


@dataclass(frozen=True)
class Parcel:
    """Boxes of a rank's buffers at the end of a phase.

    Ranks that receive the same content share a parcel.
    """

    rank: int
    phase: int
    pieces: Pieces


Origin: TypeAlias = tuple[int, int]
"""Which parcel of those that arrive in a phase, and which piece of it."""


@dataclass(frozen=True)
class Phase:
    """Steps of a rank, in order, without sends, which parcels represent.

    Attributes:
        steps: each with the source of its value, if that is another rank.
        arriving: the parcels that these need.
    """

    steps: tuple[tuple[Step, Origin | None], ...]
    arriving: tuple[Parcel, ...]


def phases_of(steps: Steps) -> tuple[tuple[Phase, ...], ...]:
    """Return the phases of every rank.

    >>> box = (range(2),)
    >>> sender = (Make("X", box, False), Send(1, "X", box, 1))
    >>> receiver = (Make("Y", box, False), Receive(0, "Y", box, 1))
    >>> [[len(phase.steps) for phase in rank] for rank in phases_of((sender, receiver))]
    [[1], [1, 1]]
    """
    ranks = [_RankPhases(number, row) for number, row in enumerate(steps)]
    sent: dict[_Message, tuple[int, str]] = {}
    waiting = deque(rank for rank in ranks if rank.left)
    n_blocked = 0
    while waiting:
        rank = waiting.popleft()
        n_blocked = 0 if rank.advance(sent) else n_blocked + 1
        if rank.left:
            waiting.append(rank)
        assert n_blocked <= len(waiting), "no rank can go on"
    return tuple(rank.finish() for rank in ranks)


_Message: TypeAlias = tuple[int, int, int, Box]
"""From whom, to whom, tag and box."""


@dataclass(frozen=True)
class _Arrival:
    """A message that a step needs: from whom, ready after which phase, and what."""

    rank: int
    phase: int
    source: str
    box: Box


class _RankPhases:
    """The steps of a rank, assigned to phases one after the other.

    Attributes:
        now: the phase of the last step.
        ready: by buffer, the phase at whose end its content is complete.
        writable: by buffer, the first phase that may write to it, because the phases
            before send what it contains.
    """

    def __init__(self, number: int, steps: Sequence[Step]) -> None:
        self.number, self.left = number, deque(steps)
        self.now = 0
        self.ready: dict[str, int] = defaultdict(int)
        self.writable: dict[str, int] = defaultdict(int)
        self.phases: dict[int, list[tuple[Step, _Arrival | None]]] = defaultdict(list)

    def advance(self, sent: dict[_Message, tuple[int, str]]) -> bool:
        """Assign steps up to a message that nobody has sent yet.

        Returns:
            Whether any step was assigned.
        """
        n_before = len(self.left)
        while self.left and self._assign(self.left[0], sent):
            self.left.popleft()
        return len(self.left) < n_before

    def _assign(self, step: Step, sent: dict[_Message, tuple[int, str]]) -> bool:
        match step:
            case Send(to, source, box, tag):
                phase = self.ready[source]
                # sends do not begin a phase: a parcel is cut when the phase has ended
                sent[self.number, to, tag, box] = (phase, source)
                self.writable[source] = max(self.writable[source], phase + 1)
            case Receive(of, target, box, tag) | Reduce(of, target, box, tag):
                if (of, self.number, tag, box) not in sent:
                    return False
                phase, source = sent.pop((of, self.number, tag, box))
                self._append(step, target, _Arrival(of, phase, source, box))
            case Make(target) | Take(_, target) | Leaf(_, _, target):
                self._append(step, target)
            case Free(buffer):
                # after the last phase that sends it, and without a phase of its own
                phase = max(self.now, self.writable[buffer])
                self.phases[phase].append((step, None))
                self.writable[buffer] = phase
            case _:
                raise AssertionError(step)
        return True

    def _append(self, step: Step, target: str, arrival: _Arrival | None = None) -> None:
        arrives = arrival.phase + 1 if arrival else 0
        # phases only ascend: steps keep their order
        self.now = max(self.now, self.writable[target], arrives)
        self.ready[target] = self.now
        self.phases[self.now].append((step, arrival))

    def finish(self) -> tuple[Phase, ...]:
        """Return the phases; a last one that only frees buffers is none."""
        return tuple(_build_phase(self.phases[k]) for k in range(self.now + 1))


def _build_phase(steps: Sequence[tuple[Step, _Arrival | None]]) -> Phase:
    """Collect what arrives in a phase: one parcel from each phase that sends it."""
    pieces: dict[tuple[int, int], dict[tuple[str, Box], int]] = defaultdict(dict)
    for _, arrival in steps:
        if arrival is not None:
            parcel = pieces[arrival.rank, arrival.phase]
            # one piece serves several steps
            parcel.setdefault((arrival.source, arrival.box), len(parcel))
    numbers = {sender: k for k, sender in enumerate(pieces)}

    def origin(arrival: _Arrival | None) -> Origin | None:
        if arrival is None:
            return None
        sender = arrival.rank, arrival.phase
        return numbers[sender], pieces[sender][arrival.source, arrival.box]

    arriving = tuple(
        Parcel(*sender, tuple(parcel)) for sender, parcel in pieces.items()
    )
    return Phase(tuple((step, origin(arrival)) for step, arrival in steps), arriving)
