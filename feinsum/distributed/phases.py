"""Steps grouped into phases: what a rank does between two waits.

For engines whose tasks receive messages when they begin and send them when they end. A
message is sent at the end of the phase in which it is ready, and received at the
beginning of a later one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

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


@dataclass(frozen=True)
class Parcel:
    """Boxes of a rank's buffers at the end of a phase.

    Ranks that receive the same content share a parcel.
    """

    rank: int
    phase: int
    pieces: tuple[tuple[str, Box], ...]


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
    """The phases of every rank.

    >>> box = (range(2),)
    >>> one = (Make("X", box, False), Send(1, "X", box, 1))
    >>> two = (Make("Y", box, False), Receive(0, "Y", box, 1))
    >>> [[len(phase.steps) for phase in rank] for rank in phases_of((one, two))]
    [[1], [1, 1]]
    """
    ranks = [_Rank(number, row) for number, row in enumerate(steps)]
    sent: dict[_Message, tuple[int, str]] = {}
    waiting = deque(ranks)
    n_idle = 0
    while waiting:
        rank = waiting.popleft()
        n_idle = 0 if rank.go_on(sent) else n_idle + 1
        if rank.left:
            waiting.append(rank)
        assert n_idle <= len(waiting), "no rank can go on"
    return tuple(rank.finished() for rank in ranks)


_Message: TypeAlias = tuple[int, int, int, Box]
"""From whom, to whom, tag and box."""


class _Rank:
    """A rank whose steps are dealt out to phases, one after the other."""

    def __init__(self, number: int, steps: Sequence[Step]) -> None:
        self.number, self.left = number, deque(steps)
        self.now = 0
        self.ready: dict[str, int] = defaultdict(int)
        self.unsent: dict[str, int] = defaultdict(int)  # the first phase that may write
        self.phases: dict[int, list[tuple[Step, _Coming | None]]] = defaultdict(list)

    def go_on(self, sent: dict[_Message, tuple[int, str]]) -> bool:
        """Deal out steps up to a message that nobody has sent yet."""
        before = len(self.left)
        while self.left and self._deal(self.left[0], sent):
            self.left.popleft()
        return len(self.left) < before

    def _deal(self, step: Step, sent: dict[_Message, tuple[int, str]]) -> bool:
        match step:
            case Send(to, source, box, tag):
                phase = self.ready[source]
                sent[self.number, to, tag, box] = (phase, source)
                self.unsent[source] = max(self.unsent[source], phase + 1)
            case Receive(of, target, box, tag) | Reduce(of, target, box, tag):
                if (of, self.number, tag, box) not in sent:
                    return False
                phase, source = sent.pop((of, self.number, tag, box))
                self._put(step, target, _Coming(of, phase, source, box))
            case Make(target) | Take(_, target) | Leaf(_, _, target):
                self._put(step, target)
            case Free(buffer):
                phase = max(self.now, self.unsent[buffer])
                self.phases[phase].append((step, None))
                self.unsent[buffer] = phase
            case _:
                raise AssertionError(step)
        return True

    def _put(self, step: Step, target: str, coming: _Coming | None = None) -> None:
        arrives = coming.phase + 1 if coming else 0
        self.now = max(self.now, self.unsent[target], arrives)
        self.ready[target] = self.now
        self.phases[self.now].append((step, coming))

    def finished(self) -> tuple[Phase, ...]:
        """The phases; a last one that only frees buffers is none."""
        return tuple(_phase(self.phases[k]) for k in range(self.now + 1))


@dataclass(frozen=True)
class _Coming:
    rank: int
    phase: int
    source: str
    box: Box

    @property
    def origin(self) -> tuple[int, int]:
        return self.rank, self.phase


def _phase(steps: Sequence[tuple[Step, _Coming | None]]) -> Phase:
    pieces: dict[tuple[int, int], dict[tuple[str, Box], int]] = defaultdict(dict)
    for _, coming in steps:
        if coming is not None:
            there = pieces[coming.origin]
            there.setdefault((coming.source, coming.box), len(there))
    numbers = {origin: k for k, origin in enumerate(pieces)}
    placed = tuple(
        (
            step,
            None
            if coming is None
            else (
                numbers[coming.origin],
                pieces[coming.origin][coming.source, coming.box],
            ),
        )
        for step, coming in steps
    )
    arriving = tuple(Parcel(*origin, tuple(there)) for origin, there in pieces.items())
    return Phase(placed, arriving)
