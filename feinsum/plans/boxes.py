"""Boxes: the rectangles of a tensor that ranks hold or need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

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
    """One of so many blocks of a range, as long as the longest but for the last ones.

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
        """What targets already hold."""
        first, end, meets = self._shared(boxes)
        ranks = self.target[meets]
        return Overlap(ranks, ranks, first[meets], end[meets])

    def without(self, boxes: Boxes) -> Overlap:
        """What targets do not hold yet, in rectangles."""
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
    sources: Boxes, targets: Boxes, mask: NDArray[np.bool_] | None = None
) -> Overlap:
    """The intersections of the boxes of every source and every target.

    Args:
        mask: which pairs to include, shape (n_targets, n_sources); all by default.
    """
    is_pair = targets.is_there[:, None] & sources.is_there[None, :]
    if mask is not None:
        is_pair = is_pair & mask
    meets = sorted(
        (_meets(sources, targets, axis) for axis in range(sources.first.shape[1])),
        key=lambda found: -found[0].size,
    )
    if meets:
        table, to, by = meets[0]
        is_pair &= table[to][:, by]
    at, of = np.nonzero(is_pair)
    for table, to, by in meets[1:]:
        is_kept = table[to[at], by[of]]
        at, of = at[is_kept], of[is_kept]
    low = np.maximum(targets.first[at], sources.first[of])
    high = np.minimum(targets.end[at], sources.end[of])
    return Overlap(of, at, low, high)


def _meets(
    sources: Boxes, targets: Boxes, axis: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Which ranges along an axis meet, and which of them targets and sources have."""
    ours, to = _ranges(targets, axis)
    theirs, by = _ranges(sources, axis)
    low = np.maximum(ours[:, None, 0], theirs[None, :, 0])
    high = np.minimum(ours[:, None, 1], theirs[None, :, 1])
    return low < high, to, by


def _ranges(boxes: Boxes, axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different ranges along an axis, and which of them each rank has."""
    pairs = np.stack([boxes.first[:, axis], boxes.end[:, axis]], axis=1)
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    return unique, which.reshape(-1)
