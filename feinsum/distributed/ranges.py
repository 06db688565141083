"""Ranges of many ranks at once: parts of them, and what they share.

All ranges of a kind have one step: 1 for blocks, and the number of parts for values
that were dealt out cyclically. Their ends are the start plus a multiple of the step.
"""

from __future__ import annotations

from math import gcd
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

Ranges: TypeAlias = tuple[Ints, Ints, tuple[int, ...]]
"""The starts and ends of ranges along all axes, and the step along each axis."""

RangesAlong: TypeAlias = tuple[Ints, Ints, int]
"""The same along one axis."""


def cut(
    first: Ints, end: Ints, part: Ints, n_parts: int, step: int = 1
) -> tuple[Ints, Ints]:
    """One of the blocks of a range, all equally long except the last ones.

    Source: Deinsum, section II-C; DISTAL, section 5.3: blocks of ``ceil(N / P)``.

    >>> a, b = cut(np.zeros(4, int), np.full(4, 10), np.arange(4), 4)
    >>> a.tolist(), b.tolist()
    ([0, 3, 6, 9], [3, 6, 9, 10])
    """
    length = -(-(end - first) // (step * n_parts)) * step
    low = np.minimum(first + part * length, end)
    return low, np.minimum(low + length, end)


def deal(
    first: Ints, end: Ints, part: Ints, n_parts: int, step: int = 1
) -> tuple[Ints, Ints]:
    """One of the parts of a range whose values are dealt out one by one, in turn.

    The step of the parts is ``step * n_parts``.

    >>> a, b = deal(np.zeros(4, int), np.full(4, 10), np.arange(4), 4)
    >>> a.tolist(), b.tolist()
    ([0, 1, 2, 3], [12, 13, 10, 11])
    """
    low = first + part * step
    return low, end_of(low, end - 1, step * n_parts)


def shared(one: Ranges, other: Ranges) -> Ranges:
    """The values that ranges of two kinds share, along all axes; ends as above."""
    (first, end, steps), (start, stop, paces) = one, other
    if {*steps, *paces} <= {1}:
        return np.maximum(first, start), np.minimum(end, stop), steps
    low, high = np.empty_like(first), np.empty_like(end)
    found = []
    for k, (step, pace) in enumerate(zip(steps, paces, strict=True)):
        low[:, k], high[:, k], both = shared_along(
            (first[:, k], end[:, k], step), (start[:, k], stop[:, k], pace)
        )
        found.append(both)
    return low, high, tuple(found)


def shared_along(one: RangesAlong, other: RangesAlong) -> RangesAlong:
    """The values that ranges share; nothing where the end is not after the start.

    By the Chinese remainder theorem these are a range too, whose step is the least
    common multiple.
    """
    (first, end, step), (start, stop, pace) = one, other
    if step == pace == 1:
        return np.maximum(first, start), np.minimum(end, stop), 1
    common = gcd(step, pace)
    both = step // common * pace
    inverse = pow(step // common, -1, pace // common)
    low = first + (start - first) // common * inverse % (pace // common) * step
    low = low + np.maximum(0, -((low - start) // both)) * both
    last = np.minimum(end - step, stop - pace)
    meets = (start - first) % common == 0
    return low, np.where(meets, end_of(low, last, both), low), both


def end_of(first: Ints, last: Ints, step: int | Ints) -> Ints:
    """The end of a range that has no values after the last one."""
    found: Ints = first + np.maximum(0, (last - first) // step + 1) * step
    return found


def lengths(ranges: Ranges) -> Ints:
    """The number of values along each axis."""
    first, end, steps = ranges
    found: Ints = (end - first) // np.array(steps, np.int64)
    return found
