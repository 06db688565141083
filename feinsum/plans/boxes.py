"""Boxes: the rectangles of a tensor that ranks hold or need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Box", "Boxes", "Overlap", "box_size", "cut", "overlaps"]

Box: TypeAlias = tuple[tuple[int, int], ...]
"""First entry and the end along each axis; of a scalar, the empty tuple."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """A box for every rank.

    Attributes:
        first: the start of each box, shape (n_ranks, n_axes).
        end: the end of each box, likewise.
        is_there: whether a rank has a box at all; a scalar's box has no axes.
    """

    first: NDArray[np.int64]
    end: NDArray[np.int64]
    is_there: NDArray[np.bool_]

    def __post_init__(self) -> None:
        is_filled = (self.end > self.first).all(axis=1)
        object.__setattr__(self, "is_there", self.is_there & is_filled)

    def __len__(self) -> int:
        return len(self.is_there)

    def box(self, rank: int) -> Box | None:
        """The box of a rank; None if it has none, or an empty one."""
        if not self.is_there[rank]:
            return None
        pairs = zip(self.first[rank].tolist(), self.end[rank].tolist(), strict=True)
        return tuple(pairs)

    def sizes(self) -> list[int]:
        """The exact number of entries of every rank."""
        lengths = (self.end - self.first).tolist()
        return [
            prod(row) if here else 0
            for row, here in zip(lengths, self.is_there.tolist(), strict=True)
        ]

    def ranks(self) -> list[int]:
        """The ranks that have a box."""
        found: list[int] = np.nonzero(self.is_there)[0].tolist()
        return found

    def contains(self, other: Boxes) -> NDArray[np.bool_]:
        """For each rank, whether the other's box is inside this one."""
        inside = (self.first <= other.first) & (other.end <= self.end)
        found: NDArray[np.bool_] = inside.all(axis=1) & self.is_there & other.is_there
        return found

    def where(self, is_there: NDArray[np.bool_]) -> Boxes:
        """The boxes of some ranks only."""
        return Boxes(self.first, self.end, self.is_there & is_there)


def box_size(box: Box) -> int:
    """Entries of a box; one for that of a scalar.

    >>> box_size(((2, 5), (0, 4))), box_size(())
    (12, 1)
    """
    return prod(end - first for first, end in box)


def cut(
    first: NDArray[np.int64],
    end: NDArray[np.int64],
    part: NDArray[np.int64],
    n_parts: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One of the blocks of a range, all equally long except the last ones.

    Source: Deinsum, section II-C; DISTAL, section 5.3: blocks of ``ceil(N / P)``.

    >>> a, b = cut(np.zeros(4, int), np.full(4, 10), np.arange(4), 4)
    >>> a.tolist(), b.tolist()
    ([0, 3, 6, 9], [3, 6, 9, 10])
    """
    length = -(-(end - first) // n_parts)
    low = np.minimum(first + part * length, end)
    return low, np.minimum(low + length, end)


@dataclass(frozen=True, eq=False)
class Overlap:
    """The boxes shared by sources and targets, by target and then by source.

    Attributes:
        source, target: ranks, one of each per box.
        first, end: the boxes, shape (n_boxes, n_axes).
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    first: NDArray[np.int64]
    end: NDArray[np.int64]

    def sizes(self) -> NDArray[np.int64]:
        """Entries of every box."""
        found: NDArray[np.int64] = (self.end - self.first).prod(axis=1)
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
            yield source, target, tuple(zip(low, high, strict=True))

    def here(self, boxes: Boxes) -> Overlap:
        """The parts that targets already hold."""
        first, end, meets = self._shared(boxes)
        ranks = self.target[meets]
        return Overlap(ranks, ranks, first[meets], end[meets])

    def without(self, boxes: Boxes) -> Overlap:
        """The parts that targets do not hold yet, in rectangles."""
        first, end, meets = self._shared(boxes)
        left = [(self.first[~meets], self.end[~meets], np.nonzero(~meets)[0])]
        at = np.nonzero(meets)[0]
        low, high, first, end = self.first[at], self.end[at], first[at], end[at]
        for axis in range(low.shape[1]):
            before, after = high.copy(), low.copy()
            before[:, axis], after[:, axis] = first[:, axis], end[:, axis]
            left += [(low.copy(), before, at), (after, high.copy(), at)]
            low[:, axis], high[:, axis] = first[:, axis], end[:, axis]
        lows, highs, rows = (np.concatenate(part) for part in zip(*left, strict=True))
        is_filled = (lows < highs).all(axis=1)
        rows = rows[is_filled]
        return Overlap(
            self.source[rows], self.target[rows], lows[is_filled], highs[is_filled]
        )

    def _shared(
        self, boxes: Boxes
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        first = np.maximum(self.first, boxes.first[self.target])
        end = np.minimum(self.end, boxes.end[self.target])
        meets = boxes.is_there[self.target] & (first < end).all(axis=1)
        return first, end, meets


def overlaps(
    sources: Boxes, targets: Boxes, labels: NDArray[np.int64] | None = None
) -> Overlap:
    """The intersections of the boxes of every source and every target.

    Args:
        labels: a natural number for each rank; sources serve targets with the same one.
            By default all serve all.

    Complexity: about proportional to the number of intersections. Boxes are matched
    axis by axis, and boxes that are the same so far are matched once.
    """
    of, at = np.nonzero(sources.is_there)[0], np.nonzero(targets.is_there)[0]
    sides = [_meets(sources, targets, axis) for axis in range(sources.first.shape[1])]
    sides.sort(key=lambda side: -len(side.pairs[0]))
    if labels is not None:
        every = np.arange(labels.max() + 1)
        sides.insert(0, _Side((every, every), labels, labels))
    of, at = _matched(sides, of, at) if len(of) else (of, of)
    low = np.maximum(targets.first[at], sources.first[of])
    high = np.minimum(targets.end[at], sources.end[of])
    return Overlap(of, at, low, high)


def _matched(
    sides: Sequence[_Side], of: NDArray[np.int64], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
        is_known = known[np.minimum(found, len(known) - 1)] == wanted
        at, wanted = at[is_known], found[is_known]
    order = np.argsort(group, kind="stable")
    place, of = _of_each(wanted, (group[order], of[order]))
    at = at[place]
    order = np.lexsort((of, at))
    return of[order], at[order]


def _of_each(
    wanted: NDArray[np.int64], pairs: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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

    pairs: tuple[NDArray[np.int64], NDArray[np.int64]]
    of_target: NDArray[np.int64]
    of_source: NDArray[np.int64]


def _meets(sources: Boxes, targets: Boxes, axis: int) -> _Side:
    ours, to = _ranges(targets, axis)
    theirs, by = _ranges(sources, axis)
    low = np.maximum(ours[:, None, 0], theirs[None, :, 0])
    high = np.minimum(ours[:, None, 1], theirs[None, :, 1])
    at, of = np.nonzero(low < high)
    return _Side((at, of), to, by)


def _ranges(boxes: Boxes, axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different ranges along an axis, and which of them each rank has."""
    pairs = np.stack([boxes.first[:, axis], boxes.end[:, axis]], axis=1)
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    return unique, which.reshape(-1)
