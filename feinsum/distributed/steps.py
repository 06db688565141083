"""Steps: what every rank does, in order, and the lowering of a plan to them.

A buffer is a named box of a tensor. The lowering emits events for all ranks at once; a
sink turns them into lists of steps (:class:`StepLists`), which every engine interprets,
or only counts them (:mod:`feinsum.distributed.counts`). The names of buffers::

    A          an operand, or a result, where it is distributed to
    A@1.0.0    what group 1 fetched of its input 0; the last digit alternates between
               the parts of a sequential loop, two of which are there at one time
    C+         partial sums of C, before they are added

For ``out[i] = A[i,j] * x[j]`` with j partitioned over two ranks, rank 0 does::

    make     out+[0:4] of zeros
    compute  out+[0:4] += A[0:4, 0:3] * x[0:3]
    make     out[0:2] of zeros
    send     out+[2:4] to 1
    take     out+[0:2] add to out
    reduce   out[0:2] from 1
    free     out+
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, Boxes, Ints, Overlap, box_size, overlaps
from feinsum.distributed.distribution import Distribution, Machine
from feinsum.distributed.groups import Access, Group, shape_of
from feinsum.distributed.schedule import GroupSchedule, needed_boxes


@dataclass(frozen=True, slots=True)
class Make:
    """Allocate a buffer for a box; zeros if something is added to it."""

    buffer: str
    box: Box
    is_zero: bool


@dataclass(frozen=True, slots=True)
class Take:
    """Copy or add a box from one buffer of this rank to another."""

    source: str
    target: str
    box: Box
    is_added: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Send a box of a buffer to another rank."""

    rank: int
    source: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a box from another rank into a buffer."""

    rank: int
    target: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Receive a box from another rank and add it to a buffer."""

    rank: int
    target: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """Add the einsum of a group, over boxes of buffers, to a buffer.

    Attributes:
        is_first: whether nothing was written there before.
    """

    group: int
    sources: tuple[tuple[str, Box], ...]
    target: str
    box: Box
    n_points: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class Free:
    """Free a buffer."""

    buffer: str


Step: TypeAlias = Make | Take | Send | Receive | Reduce | Leaf | Free

Steps: TypeAlias = tuple[tuple[Step, ...], ...]
"""One list for every rank."""


def tensor_of(buffer: str) -> str:
    """Return the tensor of a buffer: resident, fetched, or in partial results.

    >>> tensor_of("A@1.0.0"), tensor_of("C+"), tensor_of("B")
    ('A', 'C', 'B')
    """
    return buffer.partition("@")[0].rstrip("+")


@dataclass(frozen=True, eq=False)
class Input:
    """An input of a leaf: what each rank needs, and the buffers that contain it.

    Attributes:
        buffers: buffer names, each with the ranks whose box is there.
    """

    indices: tuple[str, ...]
    boxes: Boxes
    buffers: tuple[tuple[str, NDArray[np.bool_]], ...]

    def names(self) -> dict[int, str]:
        """Return the buffer name for every rank."""
        return {
            rank: name
            for name, ranks in self.buffers
            for rank in np.nonzero(ranks)[0].tolist()
        }


class Sink:
    """Receives the events of a plan, in execution order; by default it ignores them."""

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        """All ranks with a box allocate a buffer."""

    def move(
        self, source: str, target: str, overlap: Overlap, tag: int, *, is_added: bool
    ) -> None:
        """Boxes move between buffers, within a rank or between ranks."""

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        """All ranks with a box of the target compute their leaf."""

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        """Some ranks free a buffer."""


@dataclass(frozen=True, eq=False)
class _Residence:
    """Where a tensor is, and what was fetched of it and retained for later uses."""

    distribution: Distribution
    boxes: Boxes
    retained: tuple[tuple[str, Boxes], ...] = ()


def lower(
    sink: Sink,
    groups: Sequence[Group],
    schedules: Sequence[GroupSchedule],
    starts: Mapping[str, Distribution],
    extents: Mapping[str, int],
    n_ranks: int,
    outputs: Collection[str] = (),
) -> None:
    """Emit what every rank does to a sink.

    Operands, and final results, are in buffers with their own names.

    Args:
        starts: initial distribution of each operand.
        outputs: results to keep although groups read them.
    """
    lowering = _Lowering(sink, groups, schedules, extents, n_ranks)
    lowering.permanent = {*starts, *outputs}
    for group in groups:
        for access in group.inputs:
            if access.tensor in starts:
                lowering.settle(access, starts[access.tensor])
    for number in range(len(groups)):
        lowering.lower_group(number)


class _Lowering:
    """Where each tensor is, as groups are computed one after the other."""

    def __init__(
        self,
        sink: Sink,
        groups: Sequence[Group],
        schedules: Sequence[GroupSchedule],
        extents: Mapping[str, int],
        n_ranks: int,
    ) -> None:
        self.sink, self.groups, self.schedules = sink, groups, schedules
        self.extents, self.n_ranks, self.tag = extents, n_ranks, 0
        self.last_use = {
            access.tensor: number
            for number, group in enumerate(groups)
            for access in group.inputs
        }
        self.permanent: set[str] = set()
        self.residences: dict[str, _Residence] = {}

    def settle(self, access: Access, distribution: Distribution) -> Boxes:
        """Remember where a tensor is now."""
        boxes = distribution.boxes(shape_of(access, self.extents), self.n_ranks)
        self.residences[access.tensor] = _Residence(distribution, boxes)
        return boxes

    def lower_group(self, number: int) -> None:
        group, schedule = self.groups[number], self.schedules[number]
        n_inputs, loop = len(group.inputs), schedule.loop
        needs = [self._needs(group, schedule, t) for t in range(schedule.n_steps)]
        # a rank works at a step if no part that it needs is empty
        works = [np.logical_and.reduce([b.is_there for b in row]) for row in needs]
        works_ever = np.logical_or.reduce(works)
        name, target = self._make_target(group, schedule, works_ever)
        looped = [
            k for k, a in enumerate(group.inputs) if loop and loop.index in a.indices
        ]
        whole = {
            k: self._fetch(number, k, needs[0][k].select(works_ever))
            for k in range(n_inputs)
            if k not in looped
        }

        def fetch_parts(t: int) -> dict[int, Input]:
            if t == schedule.n_steps:
                return {}
            return {
                k: self._fetch(number, k, needs[t][k].select(works[t]), t)
                for k in looped
            }

        prefetched = fetch_parts(0)
        for t, works_now in enumerate(works):
            # the next part is under way while the leaf computes with this one
            parts, prefetched = prefetched, fetch_parts(t + 1)
            inputs = whole | parts
            ordered = [inputs[k] for k in range(n_inputs)]
            self.sink.compute(number, ordered, name, target.select(works_now))
            self._free_fetched(number, parts)
        self._free_fetched(number, whole)
        # before the result is allocated, which lowers the peak
        self._free_dead_tensors(number)
        self._finish(group, schedule, name, target)

    def _needs(self, group: Group, schedule: GroupSchedule, step: int) -> list[Boxes]:
        return [
            needed_boxes(schedule, access, self.extents, self.n_ranks, step)
            for access in group.inputs
        ]

    def _make_target(
        self, group: Group, schedule: GroupSchedule, works: NDArray[np.bool_]
    ) -> tuple[str, Boxes]:
        """Make the buffer of the leaves: the result, or what becomes it by moving."""
        name = group.output.tensor
        boxes = needed_boxes(schedule, group.output, self.extents, self.n_ranks)
        # leaves are not where the result is to be, or have partial sums
        if schedule.result != schedule.needs(group.output):
            # only ranks that compute have partial sums
            name, boxes = f"{name}+", boxes.select(works)
        self.sink.make(name, boxes, is_zero=True)
        return name, boxes

    def _fetch(self, number: int, k: int, boxes: Boxes, step: int = 0) -> Input:
        """Fetch input k of a group, from where it is to where it is needed.

        Nothing moves to ranks whose box is inside one that they hold already. Others
        take the overlap with what they hold, and receive the rest.
        """
        access = self.groups[number].inputs[k]
        # two names in turn, as two parts are there at one time
        tensor, name = access.tensor, f"{access.tensor}@{number}.{k}.{step % 2}"
        residence = self.residences[tensor]
        missing, buffers = boxes.is_there.copy(), []
        for buffer, present in ((tensor, residence.boxes), *residence.retained):
            is_local = present.contains(boxes) & missing
            missing &= ~is_local
            buffers.append((buffer, is_local))
        if missing.any():
            wanted = boxes.select(missing)
            self.sink.make(name, wanted, is_zero=False)
            distribution = residence.distribution
            labels = _labels(
                distribution.machine, distribution.copied_axes, self.n_ranks
            )
            overlap = overlaps(residence.boxes, wanted, labels)
            for buffer, present in residence.retained:
                self._move(buffer, name, overlap.local_part(present), is_added=False)
                overlap = overlap.remote_part(present)
            self._move(tensor, name, overlap, is_added=False)
            if self._is_retained(number, k):
                retained = (*residence.retained, (name, wanted))
                self.residences[tensor] = _Residence(
                    distribution, residence.boxes, retained
                )
        return Input(access.indices, boxes, (*buffers, (name, missing)))

    def _is_retained(self, number: int, k: int) -> bool:
        """Whether what is fetched whole is used again."""
        group, loop = self.groups[number], self.schedules[number].loop
        access = group.inputs[k]
        if loop is not None and loop.index in access.indices:
            return False
        later = [a.tensor for a in group.inputs[k + 1 :]]
        return self.last_use[access.tensor] > number or access.tensor in later

    def _move(
        self, source: str, target: str, overlap: Overlap, *, is_added: bool
    ) -> None:
        # a tag for each move: messages of one tag may form a collective
        self.tag += 1
        self.sink.move(source, target, overlap, self.tag, is_added=is_added)

    def _free_fetched(self, number: int, inputs: Mapping[int, Input]) -> None:
        for k, fetched in inputs.items():
            tensor = self.groups[number].inputs[k].tensor
            name, ranks = fetched.buffers[-1]
            retained = [buffer for buffer, _ in self.residences[tensor].retained]
            # later groups read what is retained; the last of them frees it
            if ranks.any() and name not in retained:
                self.sink.free(name, ranks)

    def _free_dead_tensors(self, number: int) -> None:
        """Free tensors that no later group uses, except the caller's own."""
        for tensor, last in self.last_use.items():
            if last != number:
                continue
            residence = self.residences[tensor]
            for name, boxes in residence.retained:
                self.sink.free(name, boxes.is_there)
            if tensor not in self.permanent:
                self.sink.free(tensor, residence.boxes.is_there)

    def _finish(
        self, group: Group, schedule: GroupSchedule, name: str, partial: Boxes
    ) -> None:
        """Add or move what leaves wrote to where the result is to be."""
        tensor = group.output.tensor
        result = self.settle(group.output, schedule.result)
        # leaves wrote to the result itself: nothing to add or move
        if name == tensor:
            return
        is_added = bool(schedule.summed_axes(group))
        self.sink.make(tensor, result, is_zero=is_added)
        copied = tuple(k for k, index in enumerate(schedule.axes) if index is None)
        labels = _labels(schedule.machine, copied, self.n_ranks)
        self._move(name, tensor, overlaps(partial, result, labels), is_added=is_added)
        self.sink.free(name, partial.is_there)


def _labels(machine: Machine, axes: Sequence[int], n_ranks: int) -> Ints | None:
    """Return a number for each rank: its coordinates along some axes; None for none.

    Copies of a tensor serve those with the same coordinates along the axes of copies,
    so that each copy serves its share.
    """
    if not axes:
        return None
    labels = np.zeros(n_ranks, np.int64)
    for axis in axes:
        coordinates = machine.coordinates(n_ranks)[:, axis]
        labels = labels * machine.sizes[axis] + coordinates
    return labels


class StepLists(Sink):
    """The sink that writes the lists of steps."""

    def __init__(self, n_ranks: int) -> None:
        self.lists: list[list[Step]] = [[] for _ in range(n_ranks)]
        self._begun: set[tuple[str, int]] = set()

    @property
    def steps(self) -> Steps:
        return tuple(map(tuple, self.lists))

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        for rank, box in boxes.items():
            self.lists[rank].append(Make(name, box, is_zero))

    def move(
        self, source: str, target: str, overlap: Overlap, tag: int, *, is_added: bool
    ) -> None:
        """Move boxes; sends come first, so that no rank waits for a later send."""
        for of, to, box in overlap.boxes():
            if of != to:
                self.lists[of].append(Send(to, source, box, tag))
        receive = Reduce if is_added else Receive
        for of, to, box in overlap.boxes():
            if of == to:
                self.lists[to].append(Take(source, target, box, is_added))
            else:
                self.lists[to].append(receive(of, target, box, tag))

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        buffers = [each.names() for each in inputs]
        for rank, box in boxes.items():
            sources = tuple(
                (names[rank], each.boxes.box(rank) or ())
                for names, each in zip(buffers, inputs, strict=True)
            )
            sides = {
                index: side
                for each, (_, part) in zip(inputs, sources, strict=True)
                for index, side in zip(each.indices, part, strict=True)
            }
            n_points = box_size(tuple(sides.values()))
            # the first leaf overwrites the zeros, which saves an addition
            is_first = (name, rank) not in self._begun
            self._begun.add((name, rank))
            leaf = Leaf(group, sources, name, box, n_points, is_first)
            self.lists[rank].append(leaf)

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        for rank in np.nonzero(ranks)[0].tolist():
            self.lists[rank].append(Free(name))
