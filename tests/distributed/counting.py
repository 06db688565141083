"""The counts of a plan by their definition: step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from feinsum.distributed.boxes import box_size
from feinsum.distributed.counts import Counts
from feinsum.distributed.steps import Free, Leaf, Make, Receive, Reduce, Send, Steps


def count_steps(steps: Steps, resident: Sequence[int]) -> Counts:
    """The counts of lists of steps, one step after the other.

    Args:
        resident: elements of operands that each rank holds all the time.
    """
    ranks = [_count_rank(row, rest) for row, rest in zip(steps, resident, strict=True)]
    received, reduced, messages, peaks, points = zip(*ranks, strict=True)
    requests = Counter(
        (rank, step.tag, step.source, step.box)
        for rank, row in enumerate(steps)
        for step in row
        if type(step) is Send
    )
    return Counts(
        received=sum(received),
        reduced=sum(reduced),
        most_received=max(a + b for a, b in zip(received, reduced, strict=True)),
        messages=sum(messages),
        most_messages=max(messages),
        most_requests=max(requests.values(), default=0),
        peak=max(peaks),
        points=sum(points),
        most_points=max(points),
        busy=sum(map(bool, points)),
    )


def _count_rank(steps: Any, resident: int) -> tuple[int, int, int, int, int]:
    received = reduced = messages = points = 0
    peak = now = resident
    live: dict[str, int] = {}
    for step in steps:
        kind = type(step)
        if kind is Make:
            live[step.buffer] = box_size(step.box)
            now += live[step.buffer]
            peak = max(peak, now)
        elif kind is Free:
            now -= live.pop(step.buffer)
        elif kind is Receive:
            received += box_size(step.box)
            messages += 1
        elif kind is Reduce:
            reduced += box_size(step.box)
            messages += 1
        elif kind is Leaf:
            points += step.n_points
    return received, reduced, messages, peak, points
