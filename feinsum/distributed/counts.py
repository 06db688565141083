"""The exact traffic of a plan: sums over its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Boxes, Overlap
from feinsum.distributed.lowering import Input

MOST_NUMBERS = 2**62
"""Numbers that a 64-bit integer can tell apart, with room."""


@dataclass(frozen=True)
class Counts:
    """Elements, messages and multiply-adds of a plan.

    Attributes:
        received: elements that pass between ranks unchanged.
        reduced: elements of partial sums that pass between ranks.
        most_received: the sum of both, for the rank that receives the most.
        messages: messages of all ranks.
        most_messages: maximum number of messages received by one rank.
        most_requests: maximum number of ranks to which one rank sends the same block at
            once.
        peak: maximum elements that a rank holds at one time, including operands.
        points: multiply-adds of all ranks, for the statements as given.
        most_points: multiply-adds of the busiest rank.
        busy: number of ranks that compute anything.
    """

    received: int
    reduced: int
    most_received: int
    messages: int
    most_messages: int
    most_requests: int
    peak: int
    points: int
    most_points: int
    busy: int

    @property
    def moved(self) -> int:
        """Elements that pass between ranks, which the planner minimizes."""
        return self.received + self.reduced

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"moved": self.moved, **asdict(self)}


class Tally:
    """The sink that only counts, without making the steps.

    Uses Python integers, which do not overflow.

    Args:
        at_rest: elements of operands that each rank holds all the time.
        has_requests: also count requests, which takes the longest.
    """

    def __init__(self, at_rest: Sequence[int], *, has_requests: bool = True) -> None:
        self.has_requests = has_requests
        n_ranks = len(at_rest)
        self.now = np.array(at_rest, object)
        self.peak = self.now.copy()
        self.received, self.reduced, self.points = np.zeros((3, n_ranks), object)
        self.messages = np.zeros(n_ranks, np.int64)
        self.sizes: dict[str, NDArray[Any]] = {}
        self.most_requests = 0

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        self.sizes[name] = np.array(boxes.sizes(), object)
        self.now = self.now + self.sizes[name]
        self.peak = np.maximum(self.peak, self.now)

    def move(
        self, source: str, target: str, found: Overlap, tag: int, *, is_added: bool
    ) -> None:
        is_sent = found.source != found.target
        to, sizes = found.target[is_sent], found.sizes()[is_sent]
        total = self.reduced if is_added else self.received
        # one move fits 64 bits, which are added faster than Python's integers
        by_rank = np.zeros(len(total), np.int64)
        np.add.at(by_rank, to, sizes)
        total += by_rank.astype(object)
        np.add.at(self.messages, to, 1)
        if len(to) and self.has_requests:
            blocks = [found.source[:, None], found.first, found.end]
            sent = np.concatenate(blocks, axis=1)[is_sent]
            _, n_requests = np.unique(_numbered(sent), return_counts=True)
            self.most_requests = max(self.most_requests, int(n_requests.max()))

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        lengths = {
            i: one.boxes.lengths[:, axis]
            for one in inputs
            for axis, i in enumerate(one.indices)
        }
        points = np.array(boxes.is_there, object) * 1
        for length in lengths.values():
            points = points * length.astype(object)
        self.points = self.points + points

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        self.now = self.now - self.sizes[name] * ranks

    def counts(self) -> Counts:
        """The sums."""
        return Counts(
            received=int(self.received.sum()),
            reduced=int(self.reduced.sum()),
            most_received=int((self.received + self.reduced).max()),
            messages=int(self.messages.sum()),
            most_messages=int(self.messages.max()),
            most_requests=self.most_requests,
            peak=int(self.peak.max()),
            points=int(self.points.sum()),
            most_points=int(self.points.max()),
            busy=int((self.points > 0).sum()),
        )


def _numbered(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each row of natural numbers: equal exactly if the rows are.

    Numbers are sorted ten times as fast as rows.

    >>> _numbered(np.array([[0, 3], [1, 2], [0, 3]])).tolist()
    [3, 6, 3]
    """
    numbers, n_numbers = np.zeros(len(rows), np.int64), 1
    for column in rows.T:
        n_values = int(column.max()) + 1
        if n_numbers * n_values >= MOST_NUMBERS:
            known, numbers = np.unique(numbers, return_inverse=True)
            n_numbers = len(known)
        numbers = numbers * n_values + column
        n_numbers *= n_values
    return numbers
