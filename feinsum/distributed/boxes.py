"""Boxes: the rectangles of a tensor that ranks hold or need.

Along each axis a box has the values of a range. Its step is 1 for blocks, and the
number of parts for entries that are dealt out cyclically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm, prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.ranges import (
    Ints,
    Ranges,
    end_of,
    lengths,
    shared,
    shared_along,
)

Box: TypeAlias = tuple[range, ...]
"""The entries along each axis; of a scalar, the empty tuple."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """A box for every rank.

    Attributes:
        first: the start of each box, shape (n_ranks, n_axes).
        end: the end of each box, likewise: the start plus a multiple of the step.
        is_there: whether a rank has a box at all; a scalar's box has no axes.
        steps: the step along each axis, the same for all ranks.
    """

    first: Ints
    end: Ints
    is_there: NDArray[np.bool_]
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        is_filled = (self.end > self.first).all(axis=1)
        object.__setattr__(self, "is_there", self.is_there & is_filled)
        steps = self.steps or (1,) * self.first.shape[1]
        object.__setattr__(self, "steps", steps)

    @property
    def ranges(self) -> Ranges:
        return self.first, self.end, self.steps

    @property
    def lengths(self) -> Ints:
        """The number of values along each axis, shape (n_ranks, n_axes)."""
        return lengths(self.ranges)

    def __len__(self) -> int:
        return len(self.is_there)

    def box(self, rank: int) -> Box | None:
        """The box of a rank; None if it has none, or an empty one."""
        if not self.is_there[rank]:
            return None
        return tuple(
            map(range, self.first[rank].tolist(), self.end[rank].tolist(), self.steps)
        )

    def sizes(self) -> list[int]:
        """The exact number of entries of every rank."""
        return [
            prod(row) if here else 0
            for row, here in zip(
                self.lengths.tolist(), self.is_there.tolist(), strict=True
            )
        ]

    def ranks(self) -> list[int]:
        """The ranks that have a box."""
        found: list[int] = np.nonzero(self.is_there)[0].tolist()
        return found

    def contains(self, other: Boxes) -> NDArray[np.bool_]:
        """For each rank, whether the other's box is inside this one."""
        common = shared(self.ranges, other.ranges)
        # a longer common step skips entries of the other one
        is_alike = common[2] == other.steps
        inside = (lengths(common) == other.lengths).all(axis=1) & is_alike
        found: NDArray[np.bool_] = inside & self.is_there & other.is_there
        return found

    def where(self, is_there: NDArray[np.bool_]) -> Boxes:
        """The boxes of some ranks only."""
        return replace(self, is_there=self.is_there & is_there)


def box_shape(box: Box) -> tuple[int, ...]:
    """The shape of the entries of a box."""
    return tuple(map(len, box))


def box_size(box: Box) -> int:
    """Entries of a box; one for that of a scalar.

    >>> box_size((range(2, 5), range(0, 8, 2))), box_size(())
    (12, 1)
    """
    return prod(map(len, box))


@dataclass(frozen=True, eq=False)
class Overlap:
    """The boxes shared by sources and targets, by target and then by source.

    Attributes:
        source, target: ranks, one of each per box.
        first, end: the boxes, shape (n_boxes, n_axes).
        steps: as of :class:`Boxes`.
    """

    source: Ints
    target: Ints
    first: Ints
    end: Ints
    steps: tuple[int, ...]

    @property
    def ranges(self) -> Ranges:
        return self.first, self.end, self.steps

    def sizes(self) -> Ints:
        """Entries of every box."""
        found: Ints = lengths(self.ranges).prod(axis=1)
        return found

    def boxes(self) -> Iterator[tuple[int, int, Box]]:
        """Source, target and box, one after the other."""
        pairs = zip(
            self.source.tolist(),
            self.target.tolist(),
            self.first.tolist(),
            self.end.tolist(),
            strict=True,
        )
        for source, target, low, high in pairs:
            yield source, target, tuple(map(range, low, high, self.steps))

    def here(self, boxes: Boxes) -> Overlap:
        """The parts that targets already hold."""
        (first, end, steps), meets = _meeting(self, boxes)
        ranks = self.target[meets]
        return Overlap(ranks, ranks, first[meets], end[meets], steps)

    def without(self, boxes: Boxes) -> Overlap:
        """The parts that targets do not hold yet, in rectangles."""
        found = _dealt(self, boxes.steps)
        (first, end, _), meets = _meeting(found, boxes)
        left = [(found.first[~meets], found.end[~meets], np.nonzero(~meets)[0])]
        at = np.nonzero(meets)[0]
        low, high, first, end = found.first[at], found.end[at], first[at], end[at]
        for axis in range(low.shape[1]):
            before, after = high.copy(), low.copy()
            before[:, axis], after[:, axis] = first[:, axis], end[:, axis]
            left += [(low.copy(), before, at), (after, high.copy(), at)]
            low[:, axis], high[:, axis] = first[:, axis], end[:, axis]
        lows, highs, rows = (np.concatenate(part) for part in zip(*left, strict=True))
        return _filled(found, rows, (lows, highs, found.steps))


def _meeting(found: Overlap, boxes: Boxes) -> tuple[Ranges, NDArray[np.bool_]]:
    """What boxes share with those that their targets hold, and whether they do."""
    at = found.target
    both = shared(found.ranges, (boxes.first[at], boxes.end[at], boxes.steps))
    return both, boxes.is_there[at] & (both[0] < both[1]).all(axis=1)


def _dealt(found: Overlap, steps: tuple[int, ...]) -> Overlap:
    """The same entries, in boxes whose steps are multiples of others."""
    new = tuple(map(lcm, found.steps, steps))
    if new == found.steps:
        return found
    longest = lengths(found.ranges).max(axis=0, initial=1).tolist()
    ways = [
        range(0, min(step, old * n), old)
        for step, old, n in zip(new, found.steps, longest, strict=True)
    ]
    shifts = np.array([*product(*ways)])
    rows = np.repeat(np.arange(len(found.target)), len(shifts))
    first = (found.first[:, None] + shifts).reshape(-1, len(new))
    end = end_of(first, found.end[rows] - 1, np.array(new))
    return _filled(found, rows, (first, end, new))


def _filled(found: Overlap, rows: Ints, ranges: Ranges) -> Overlap:
    """Parts of boxes, those of given rows, without empty ones."""
    first, end, steps = ranges
    kept = (first < end).all(axis=1)
    at = rows[kept]
    return Overlap(found.source[at], found.target[at], first[kept], end[kept], steps)


def overlaps(sources: Boxes, targets: Boxes, labels: Ints | None = None) -> Overlap:
    """The intersections of the boxes of every source and every target.

    Args:
        labels: a natural number for each rank; sources serve targets with the same one.
            By default all serve all.

    Complexity: about proportional to the number of intersections. Boxes are matched
    axis by axis, and boxes that are the same so far are matched once.
    """
    of, at = np.nonzero(sources.is_there)[0], np.nonzero(targets.is_there)[0]
    sides = [_meets(sources, targets, axis) for axis in range(sources.first.shape[1])]
    # the axis with the most different ranges first: it rules out the most pairs
    sides.sort(key=lambda side: -len(side.pairs[0]))
    if labels is not None:
        every = np.arange(labels.max() + 1)
        sides.insert(0, _Side((every, every), labels, labels))
    of, at = _matched(sides, of, at) if len(of) else (of, of)
    held = sources.first[of], sources.end[of], sources.steps
    wanted = targets.first[at], targets.end[at], targets.steps
    return Overlap(of, at, *shared(held, wanted))


def _matched(sides: Sequence[_Side], of: Ints, at: Ints) -> tuple[Ints, Ints]:
    """All pairs of a source and a target that meet on all sides; by target, and then by
    source.

    Args:
        of, at: sources and targets.
    """
    group, wanted = np.zeros_like(of), np.zeros_like(at)
    for pairs, of_target, of_source in sides:
        n_ranges = int(of_source.max()) + 1
        joined = group * n_ranges + of_source[of]
        known, group = np.unique(joined, return_inverse=True)
        place, meeting = _of_each(of_target[at], pairs)
        at, wanted = at[place], wanted[place] * n_ranges + meeting
        found = np.searchsorted(known, wanted)
        # the search gives the length for what is greater than all
        is_known = known[np.minimum(found, len(known) - 1)] == wanted
        at, wanted = at[is_known], found[is_known]
    order = np.argsort(group, kind="stable")
    place, of = _of_each(wanted, (group[order], of[order]))
    at = at[place]
    order = np.lexsort((of, at))
    return of[order], at[order]


def _of_each(wanted: Ints, pairs: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """All values that belong to wanted keys, and which of those keys each belongs to.

    Args:
        pairs: keys, ascending, and the value of each.

    >>> keys, values = np.array([0, 0, 2]), np.array([7, 8, 9])
    >>> [found.tolist() for found in _of_each(np.array([2, 0, 1]), (keys, values))]
    [[0, 1, 1], [9, 7, 8]]
    """
    keys, values = pairs
    begin, end = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
    place = np.repeat(np.arange(len(wanted)), end - begin)
    first = np.cumsum(end - begin) - (end - begin)
    return place, values[np.arange(len(place)) - first[place] + begin[place]]


class _Side(NamedTuple):
    """Which ranges meet along an axis.

    Attributes:
        pairs: numbers of ranges of targets, ascending, and of sources.
        of_target, of_source: the range of every rank.
    """

    pairs: tuple[Ints, Ints]
    of_target: Ints
    of_source: Ints


def _meets(sources: Boxes, targets: Boxes, axis: int) -> _Side:
    ours, to = _ranges(targets, axis)
    theirs, by = _ranges(sources, axis)
    low, high, _ = shared_along(
        (ours[:, None, 0], ours[:, None, 1], targets.steps[axis]),
        (theirs[None, :, 0], theirs[None, :, 1], sources.steps[axis]),
    )
    at, of = np.nonzero(low < high)
    return _Side((at, of), to, by)


def _ranges(boxes: Boxes, axis: int) -> tuple[Ints, Ints]:
    """The different ranges along an axis, and which of them each rank has."""
    pairs = np.stack([boxes.first[:, axis], boxes.end[:, axis]], axis=1)
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    return unique, which.reshape(-1)
