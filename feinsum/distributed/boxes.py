"""Boxes: the rectangles of a tensor that ranks hold or need.

A box has a range of values along each axis of a tensor: consecutive ones for a block,
every n-th one for a cyclic distribution over n processes. A 6 x 4 matrix on 3 ranks,
by rows, with the number of the rank that holds each entry::

    blocks, i -> x          cyclic, i -> x%
    0 0 0 0                 0 0 0 0      rank 0 holds (range(0, 6, 3), range(0, 4))
    0 0 0 0                 1 1 1 1
    1 1 1 1                 2 2 2 2
    1 1 1 1                 0 0 0 0
    2 2 2 2                 1 1 1 1
    2 2 2 2                 2 2 2 2

All ranks have the same step along an axis, so the boxes of all ranks are two integer
arrays, of starts and of ends, and one step per axis. Everything here works on these
arrays, without a loop over ranks: plans may have thousands of ranks, and a planner
intersects their boxes for many plans. Ends are the start plus a multiple of the step,
so that equal boxes have equal ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, lcm, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

Ranges: TypeAlias = tuple[Ints, Ints, tuple[int, ...]]
"""The starts and ends of ranges along all axes, and the step along each axis."""

RangesAlong: TypeAlias = tuple[Ints | int, Ints | int, int]
"""The same along one axis, of all ranks or of one."""

Box: TypeAlias = tuple[range, ...]
"""The entries along each axis; of a scalar, the empty tuple."""


def take_block(
    first: Ints, end: Ints, number: Ints, n_parts: int, step: int = 1
) -> tuple[Ints, Ints]:
    """Return block ``number`` of each range cut into ``n_parts`` blocks.

    All blocks of a range are equally long except the last ones.

    Source: Deinsum, section II-C; DISTAL, section 5.3: blocks of ``ceil(N / P)``.

    >>> a, b = take_block(np.zeros(4, int), np.full(4, 10), np.arange(4), 4)
    >>> a.tolist(), b.tolist()
    ([0, 3, 6, 9], [3, 6, 9, 10])
    """
    # rounded up, so that only the last blocks are shorter, or empty
    length = -(-(end - first) // (step * n_parts)) * step
    low = np.minimum(first + number * length, end)
    return low, np.minimum(low + length, end)


def take_cyclic_part(
    first: Ints, end: Ints, number: Ints, n_parts: int, step: int = 1
) -> tuple[Ints, Ints]:
    """Return every ``n_parts``-th value of each range, from value ``number`` on.

    The step of the parts is ``step * n_parts``.

    >>> a, b = take_cyclic_part(np.zeros(4, int), np.full(4, 10), np.arange(4), 4)
    >>> a.tolist(), b.tolist()
    ([0, 1, 2, 3], [12, 13, 10, 11])
    """
    low = first + number * step
    return low, compute_end(low, end - 1, step * n_parts)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    """Return the values that ranges share along all axes."""
    (first, end, steps), (start, stop, other_steps) = left, right
    if {*steps, *other_steps} <= {1}:  # blocks alone: the usual case, and ten times
        return np.maximum(first, start), np.minimum(end, stop), steps  # as fast
    low, high = np.empty_like(first), np.empty_like(end)
    common_steps = []
    for k, (step, other_step) in enumerate(zip(steps, other_steps, strict=True)):
        low[:, k], high[:, k], common_step = intersect_along(
            (first[:, k], end[:, k], step), (start[:, k], stop[:, k], other_step)
        )
        common_steps.append(common_step)
    return low, high, tuple(common_steps)


def intersect_along(left: RangesAlong, right: RangesAlong) -> RangesAlong:
    """Return the values that ranges share; an empty result ends where it starts.

    By the Chinese remainder theorem these are a range too, whose step is the least
    common multiple.
    """
    (first, end, step), (start, stop, other_step) = left, right
    if step == other_step == 1:
        return np.maximum(first, start), np.minimum(end, stop), 1
    divisor = gcd(step, other_step)
    common_step = step // divisor * other_step
    # the first value of the left range that is congruent to the right one
    inverse = pow(step // divisor, -1, other_step // divisor)
    low = first + (start - first) // divisor * inverse % (other_step // divisor) * step
    # it may precede the right range, whose values repeat with the common step
    low = low + np.maximum(0, -((low - start) // common_step)) * common_step
    last_common = np.minimum(end - step, stop - other_step)
    meets = (start - first) % divisor == 0
    return (
        low,
        np.where(meets, compute_end(low, last_common, common_step), low),
        common_step,
    )


def compute_end(first: Ints, last: Ints, step: int | Ints) -> Ints:
    """Return the end of a range without values after ``last``."""
    end: Ints = first + np.maximum(0, (last - first) // step + 1) * step
    return end


def compute_lengths(ranges: Ranges) -> Ints:
    """Return the number of values along each axis."""
    first, end, steps = ranges
    lengths: Ints = (end - first) // np.array(steps, np.int64)
    return lengths


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
        # a rank with an empty box allocates, sends and computes nothing
        object.__setattr__(self, "is_there", self.is_there & is_filled)
        steps = self.steps or (1,) * self.first.shape[1]
        object.__setattr__(self, "steps", steps)

    @property
    def ranges(self) -> Ranges:
        return self.first, self.end, self.steps

    @property
    def lengths(self) -> Ints:
        """The number of values along each axis, shape (n_ranks, n_axes)."""
        return compute_lengths(self.ranges)

    def __len__(self) -> int:
        return len(self.is_there)

    def box(self, rank: int) -> Box | None:
        """Return the box of a rank; None if it has none, or an empty one."""
        if not self.is_there[rank]:
            return None
        return tuple(
            map(range, self.first[rank].tolist(), self.end[rank].tolist(), self.steps)
        )

    def items(self) -> Iterator[tuple[int, Box]]:
        """Yield each rank that has a box, with the box."""
        for rank in self.ranks():
            box = self.box(rank)
            assert box is not None
            yield rank, box

    def sizes(self) -> list[int]:
        """Return the exact number of entries of every rank."""
        # Python's integers: a product of extents may exceed 64 bits
        rows = zip(self.lengths.tolist(), self.is_there.tolist(), strict=True)
        return [prod(row) if is_there else 0 for row, is_there in rows]

    def ranks(self) -> list[int]:
        """Return the ranks that have a box."""
        ranks: list[int] = np.nonzero(self.is_there)[0].tolist()
        return ranks

    def contains(self, other: Boxes) -> NDArray[np.bool_]:
        """Return for each rank whether its box contains the box in ``other``."""
        common = intersect(self.ranges, other.ranges)
        # a longer common step skips entries of the other box
        is_same_step = common[2] == other.steps
        is_inside = (compute_lengths(common) == other.lengths).all(
            axis=1
        ) & is_same_step
        contains: NDArray[np.bool_] = is_inside & self.is_there & other.is_there
        return contains

    def count_missing(self, present: Boxes) -> float:
        """Count the entries of all ranks that they do not have in ``present``."""
        shared = compute_lengths(intersect(self.ranges, present.ranges))
        # floating point: a product of extents may exceed 64 bits
        n_shared = shared.prod(axis=1, dtype=float) * (self.is_there & present.is_there)
        n_needed = self.lengths.prod(axis=1, dtype=float) * self.is_there
        return float((n_needed - n_shared).sum())

    def select(self, is_there: NDArray[np.bool_]) -> Boxes:
        """Return the boxes of some ranks only."""
        return replace(self, is_there=self.is_there & is_there)


def get_box_shape(box: Box) -> tuple[int, ...]:
    """Return the shape of the entries of a box."""
    return tuple(map(len, box))


def count_entries(box: Box) -> int:
    """Return the number of entries of a box; a scalar has one.

    >>> count_entries((range(2, 5), range(0, 8, 2))), count_entries(())
    (12, 1)
    """
    return prod(map(len, box))


def intersect_boxes(left: Box, right: Box) -> Box | None:
    """Return the entries that two boxes share; None if there are none.

    >>> intersect_boxes((range(0, 9, 2),), (range(3, 9, 3),))
    (range(6, 12, 6),)
    """
    sides = []
    for pair in zip(left, right, strict=True):
        # ends are the start plus a multiple of the step
        a, b = ((s.start, s.start + len(s) * s.step, s.step) for s in pair)
        low, high, step = intersect_along(a, b)
        sides.append(range(int(low), int(high), step))
    return tuple(sides) if all(sides) else None


@dataclass(frozen=True, eq=False)
class Overlap:
    """The intersections of boxes of sources and targets, by target, then by source.

    Attributes:
        source, target: the two ranks of each box, shape (n_boxes,).
        first, end: the boxes, shape (n_boxes, n_axes).
        steps: as in :class:`Boxes`.
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
        """Return the number of entries of every box."""
        sizes: Ints = compute_lengths(self.ranges).prod(axis=1)
        return sizes

    def boxes(self) -> Iterator[tuple[int, int, Box]]:
        """Yield source, target and box, one after the other."""
        rows = zip(
            self.source.tolist(),
            self.target.tolist(),
            self.first.tolist(),
            self.end.tolist(),
            strict=True,
        )
        for source, target, low, high in rows:
            yield source, target, tuple(map(range, low, high, self.steps))

    def select_local(self, boxes: Boxes) -> Overlap:
        """Return the parts that targets already hold in ``boxes``."""
        (first, end, steps), meets = _meet_targets(self, boxes)
        ranks = self.target[meets]
        return Overlap(ranks, ranks, first[meets], end[meets], steps)

    def select_remote(self, boxes: Boxes) -> Overlap:
        """Return the parts that targets do not hold yet, in rectangles.

        A box minus a box is up to two rectangles per axis: what lies before and after
        the inner box along the first axis, then the same of the remaining slab along
        the second axis, and so on::

            +-----------------+
            |     before 0    |
            +------+---+------+
            | b. 1 | X | a. 1 |     X: what the target holds
            +------+---+------+
            |     after 0     |
            +-----------------+
        """
        overlap = _refine_steps(self, boxes.steps)
        (first, end, _), meets = _meet_targets(overlap, boxes)
        # boxes that share nothing with the inner one stay whole
        untouched = np.nonzero(~meets)[0]
        pieces = [(overlap.first[~meets], overlap.end[~meets], untouched)]
        rows = np.nonzero(meets)[0]
        low, high = overlap.first[rows], overlap.end[rows]
        first, end = first[rows], end[rows]
        for axis in range(low.shape[1]):
            before, after = high.copy(), low.copy()
            before[:, axis], after[:, axis] = first[:, axis], end[:, axis]
            pieces += [(low.copy(), before, rows), (after, high.copy(), rows)]
            # what remains is the slab of the inner box along this axis
            low[:, axis], high[:, axis] = first[:, axis], end[:, axis]
        lows, highs, origins = (
            np.concatenate(arrays) for arrays in zip(*pieces, strict=True)
        )
        return _drop_empty(overlap, origins, (lows, highs, overlap.steps))


def _meet_targets(overlap: Overlap, boxes: Boxes) -> tuple[Ranges, NDArray[np.bool_]]:
    """Intersect each box with the one that its target holds.

    Returns:
        The intersections, and whether they are not empty.
    """
    targets = overlap.target
    common = intersect(
        overlap.ranges, (boxes.first[targets], boxes.end[targets], boxes.steps)
    )
    return common, boxes.is_there[targets] & (common[0] < common[1]).all(axis=1)


def _refine_steps(overlap: Overlap, steps: tuple[int, ...]) -> Overlap:
    """Split boxes until their steps are multiples of the given steps.

    A box minus a cyclic part consists of few boxes only if their steps agree.
    """
    fine_steps = tuple(map(lcm, overlap.steps, steps))
    if fine_steps == overlap.steps:
        return overlap
    # no more offsets than the longest box has values
    longest = compute_lengths(overlap.ranges).max(axis=0, initial=1).tolist()
    offsets = [
        range(0, min(step, box_step * n), box_step)
        for step, box_step, n in zip(fine_steps, overlap.steps, longest, strict=True)
    ]
    shifts = np.array([*product(*offsets)])
    rows = np.repeat(np.arange(len(overlap.target)), len(shifts))
    first = (overlap.first[:, None] + shifts).reshape(-1, len(fine_steps))
    end = compute_end(first, overlap.end[rows] - 1, np.array(fine_steps))
    return _drop_empty(overlap, rows, (first, end, fine_steps))


def _drop_empty(overlap: Overlap, rows: Ints, ranges: Ranges) -> Overlap:
    """Return the overlap whose boxes are the ranges that are not empty.

    Args:
        overlap: the overlap that the ranges are parts of.
        rows: for each range, the number of its box in ``overlap``.
        ranges: start, end and step of each range.
    """
    first, end, steps = ranges
    is_filled = (first < end).all(axis=1)
    filled_rows = rows[is_filled]
    source, target = overlap.source[filled_rows], overlap.target[filled_rows]
    return Overlap(source, target, first[is_filled], end[is_filled], steps)


def find_overlap(sources: Boxes, targets: Boxes, labels: Ints | None = None) -> Overlap:
    """Intersect the boxes of every source and every target.

    Args:
        sources: a box for each source rank.
        targets: a box for each target rank.
        labels: a natural number for each rank; a source serves only targets with its
            label. By default every source serves every target.
    """
    senders, receivers = (np.nonzero(x.is_there)[0] for x in (sources, targets))
    meets = np.ones((len(receivers), len(senders)), bool)
    if labels is not None:
        meets = labels[receivers][:, None] == labels[senders]
    for axis in range(len(sources.steps)):
        # ranges repeat along an axis: there are far fewer of them than ranks
        target_ranges, target_numbers = _find_distinct_ranges(targets, receivers, axis)
        source_ranges, source_numbers = _find_distinct_ranges(sources, senders, axis)
        low, high, _ = intersect_along(
            (target_ranges[:, None, 0], target_ranges[:, None, 1], targets.steps[axis]),
            (source_ranges[None, :, 0], source_ranges[None, :, 1], sources.steps[axis]),
        )
        meets &= np.less(low, high)[target_numbers].take(source_numbers, axis=1)
    rows, columns = np.nonzero(meets)
    receivers, senders = receivers[rows], senders[columns]
    present = sources.first[senders], sources.end[senders], sources.steps
    needed = targets.first[receivers], targets.end[receivers], targets.steps
    return Overlap(senders, receivers, *intersect(present, needed))


def _find_distinct_ranges(boxes: Boxes, ranks: Ints, axis: int) -> tuple[Ints, Ints]:
    """Return the distinct ranges along an axis, and the number of each rank's range."""
    pairs = np.stack([boxes.first[ranks, axis], boxes.end[ranks, axis]], axis=1)
    unique, numbers = np.unique(pairs, axis=0, return_inverse=True)
    return unique, numbers.reshape(-1)
