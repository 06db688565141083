"""The lowering of a plan: events of all ranks together, and the steps of each rank.

A buffer is a named box of a tensor. :func:`lower` yields events, each with the boxes of
all ranks as arrays: these are what is counted (:mod:`feinsum.distributed.counts`), and
grouped into messages. :func:`list_steps` splits an event into the steps of single
ranks, which every engine interprets. The names of buffers::

    A          an operand, or a result, where it is distributed to
    A@1.0.0    what group 1 fetched of its input 0; the last digit alternates between
               the parts of a sequential loop, two of which are there at one time
    C+         partial sums of C, before they are added
    C@result   a result on its way to a requested distribution

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

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, Boxes, Ints, Overlap, find_overlap
from feinsum.distributed.distribution import Distribution, Machine
from feinsum.distributed.groups import Access, Group, get_shape
from feinsum.distributed.schedule import GroupSchedule, compute_needed_boxes

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan


@dataclass(frozen=True, slots=True)
class Make:
    """Allocate a buffer for a box, with zeros if values are added to it."""

    buffer: str
    box: Box
    is_zero: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy or add a box of a buffer of one rank to a buffer of another or the same.

    Both ranks have this step: one sends the box, the other one receives it.

    Attributes:
        sender, receiver: the ranks.
        source, target: their buffers.
        box: the part of both buffers.
        is_added: whether the receiver adds it.
        tag: the number of the move: messages of one tag may form a collective.
    """

    sender: int
    receiver: int
    source: str
    target: str
    box: Box
    is_added: bool
    tag: int

    @property
    def is_message(self) -> bool:
        """Whether the ranks differ."""
        return self.sender != self.receiver


@dataclass(frozen=True, slots=True)
class Leaf:
    """Add the einsum of a group, over boxes of buffers, to a buffer.

    Attributes:
        is_first: whether this leaf is the first that writes to the target.
    """

    group: int
    sources: tuple[tuple[str, Box], ...]
    target: str
    box: Box
    is_first: bool


@dataclass(frozen=True, slots=True)
class Free:
    """Free a buffer."""

    buffer: str


Step: TypeAlias = Make | Transfer | Leaf | Free

Steps: TypeAlias = tuple[tuple[Step, ...], ...]
"""One list for every rank."""


def get_tensor(buffer: str) -> str:
    """Return the tensor of a buffer: resident, fetched, or in partial results.

    >>> get_tensor("A@1.0.0"), get_tensor("C+"), get_tensor("B")
    ('A', 'C', 'B')
    """
    return buffer.partition("@")[0].rstrip("+")


@dataclass(frozen=True, eq=False)
class Input:
    """An input of a leaf: the box that each rank needs, and the buffers with it.

    Attributes:
        buffers: buffer names, each with a flag for each rank whose box it contains.
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


# ---- events: all ranks at once


@dataclass(frozen=True, eq=False)
class Allocation:
    """All ranks with a box allocate a buffer."""

    buffer: str
    boxes: Boxes
    is_zero: bool


@dataclass(frozen=True, eq=False)
class Move:
    """Boxes pass from one buffer to another, within a rank or between ranks.

    Attributes:
        tag, is_added: see :class:`Transfer`.
        weight: number of moves that this one represents, if loops are sampled.
    """

    source: str
    target: str
    overlap: Overlap
    tag: int
    is_added: bool
    weight: float = 1

    @property
    def is_sent(self) -> NDArray[np.bool_]:
        """Whether each box passes between two ranks."""
        is_sent: NDArray[np.bool_] = self.overlap.source != self.overlap.target
        return is_sent


@dataclass(frozen=True, eq=False)
class Computation:
    """All ranks with a box of the target compute their leaf.

    Attributes:
        is_first: for each rank, whether its leaf is the first that writes to the
            target.
        weight: number of computations that this one represents; see :class:`Move`.
    """

    group: int
    inputs: Sequence[Input]
    target: str
    boxes: Boxes
    is_first: NDArray[np.bool_]
    weight: float = 1


@dataclass(frozen=True, eq=False)
class Release:
    """Some ranks free a buffer."""

    buffer: str
    ranks: NDArray[np.bool_]


Event: TypeAlias = Allocation | Move | Computation | Release

Events: TypeAlias = Iterator[Event]


@dataclass(frozen=True, eq=False)
class _Residence:
    """The distribution of a tensor, and the boxes retained on other ranks for reuse."""

    buffer: str
    distribution: Distribution
    boxes: Boxes
    retained: tuple[tuple[str, Boxes], ...] = ()


def lower(plan: Plan, max_steps: int | None = None) -> Events:
    """Lower the schedules of a plan to the events of all ranks, in order.

    Operands and final results are in buffers with their own names.

    Args:
        plan: the plan.
        max_steps: number of steps that represent a longer sequential loop, in pairs of
            neighbors all over the loop.
    """
    lowering = _Lowering(plan, max_steps)
    for group in plan.groups:
        for access in group.inputs:
            if access.tensor in plan.starts:
                lowering.settle(access, plan.starts[access.tensor])
    for number in range(len(plan.groups)):
        yield from lowering.lower_group(number)
    for group in plan.groups:
        if group.output.tensor in lowering.moving:
            yield from lowering.move_result(
                group.output, plan.ends[group.output.tensor]
            )


class _Lowering:
    """Lowers groups one after the other, and tracks the residence of each tensor."""

    def __init__(self, plan: Plan, max_steps: int | None) -> None:
        self.groups, self.schedules = plan.groups, plan.schedules
        self.max_steps = max_steps
        self.extents, self.n_ranks, self.tag = plan.extents, plan.processes, 0
        self.last_use = plan.problem.last_use
        # the caller's own: never freed
        self.permanent = {*plan.starts, *plan.outputs}
        results = {group.output.tensor: d.result for group, d in plan.scheduled}
        self.moving = {name for name, d in plan.ends.items() if d != results[name]}
        self.weight = 1.0
        self.residences: dict[str, _Residence] = {}

    def settle(self, access: Access, distribution: Distribution) -> Boxes:
        """Set the distribution of a tensor, and return its boxes."""
        boxes = distribution.boxes(get_shape(access, self.extents), self.n_ranks)
        buffer = self._name_buffer(access.tensor)
        self.residences[access.tensor] = _Residence(buffer, distribution, boxes)
        return boxes

    def _name_buffer(self, tensor: str) -> str:
        # the final buffer of a result has its name
        return f"{tensor}@result" if tensor in self.moving else tensor

    def move_result(self, access: Access, end: Distribution) -> Events:
        """Move a result to its requested distribution, in the buffer with its name."""
        tensor = access.tensor
        residence = self.residences[tensor]
        boxes = end.boxes(get_shape(access, self.extents), self.n_ranks)
        yield Allocation(tensor, boxes, is_zero=False)
        yield from self._copy(residence, tensor, boxes)
        yield Release(residence.buffer, residence.boxes.is_there)

    def lower_group(self, number: int) -> Events:
        group, schedule = self.groups[number], self.schedules[number]
        n_inputs, loop = len(group.inputs), schedule.loop
        steps = _sample_steps(schedule.n_steps, self.max_steps)
        n_steps, weight = len(steps), schedule.n_steps / len(steps)
        needs = [
            [
                compute_needed_boxes(schedule, a, self.extents, self.n_ranks, step)
                for a in group.inputs
            ]
            for step in steps
        ]
        # a rank works at a step if no part that it needs is empty
        works = [np.logical_and.reduce([b.is_there for b in row]) for row in needs]
        works_ever = np.logical_or.reduce(works)
        name, target = self._choose_target(group, schedule, works_ever)
        yield Allocation(name, target, is_zero=True)
        looped = [
            k for k, a in enumerate(group.inputs) if loop and loop.index in a.indices
        ]
        unlooped: dict[int, Input] = {}
        for k in range(n_inputs):
            if k not in looped:
                boxes = needs[0][k].select(works_ever)
                unlooped[k] = yield from self._fetch(number, k, boxes)
        prefetched: dict[int, Input] = {}
        begun = np.zeros(self.n_ranks, bool)
        for step in range(n_steps + 1):
            current, prefetched = prefetched, {}
            self.weight = weight
            # the next part is under way while the leaf computes with this one
            for k in looped if step < n_steps else ():
                boxes = needs[step][k].select(works[step])
                prefetched[k] = yield from self._fetch(number, k, boxes, step)
            if step == 0:
                continue
            inputs = unlooped | current
            ordered = [inputs[k] for k in range(n_inputs)]
            boxes = target.select(works[step - 1])
            is_first = boxes.is_there & ~begun
            yield Computation(number, ordered, name, boxes, is_first, weight)
            begun |= boxes.is_there
            yield from self._free_fetched(number, current)
        self.weight = 1.0
        yield from self._free_fetched(number, unlooped)
        # before the result is allocated, which lowers the peak
        yield from self._free_dead_tensors(number)
        yield from self._finish(group, schedule, name, target)

    def _choose_target(
        self, group: Group, schedule: GroupSchedule, works: NDArray[np.bool_]
    ) -> tuple[str, Boxes]:
        """Return the buffer that leaves write: the result, or partial sums of it."""
        name = group.output.tensor
        boxes = compute_needed_boxes(schedule, group.output, self.extents, self.n_ranks)
        # the result is distributed differently, or leaves compute partial sums
        if schedule.result != schedule.needs(group.output):
            # only ranks that compute have partial sums
            return f"{name}+", boxes.select(works)
        return self._name_buffer(name), boxes

    def _fetch(
        self, number: int, k: int, boxes: Boxes, step: int = 0
    ) -> Generator[Event, None, Input]:
        """Fetch input k of a group to the ranks that need it.

        Nothing moves to ranks that already hold their box. Other ranks copy the overlap
        with boxes that they hold, and receive the rest.
        """
        access = self.groups[number].inputs[k]
        # two names in turn, because two parts of a loop coexist
        tensor, name = access.tensor, f"{access.tensor}@{number}.{k}.{step % 2}"
        residence = self.residences[tensor]
        missing, buffers = boxes.is_there.copy(), []
        resident = residence.buffer, residence.boxes
        for buffer, present in (resident, *residence.retained):
            is_local = present.contains(boxes) & missing
            missing &= ~is_local
            buffers.append((buffer, is_local))
        if missing.any():
            wanted = boxes.select(missing)
            yield Allocation(name, wanted, is_zero=False)
            yield from self._copy(residence, name, wanted)
            if self._is_retained(number, k):
                retained = (*residence.retained, (name, wanted))
                self.residences[tensor] = replace(residence, retained=retained)
        return Input(access.indices, boxes, (*buffers, (name, missing)))

    def _copy(self, residence: _Residence, target: str, wanted: Boxes) -> Events:
        """Fill a buffer with copies of a tensor, first with what each rank has."""
        distribution = residence.distribution
        labels = self._label(distribution.machine, distribution.copied_axes)
        overlap = find_overlap(residence.boxes, wanted, labels)
        for buffer, present in residence.retained:
            yield self._move(buffer, target, overlap.select_local(present))
            overlap = overlap.select_remote(present)
        yield self._move(residence.buffer, target, overlap)

    def _label(self, machine: Machine, axes: Sequence[int]) -> Ints | None:
        """Return a label for each rank, by its coordinates along the axes of copies.

        Each copy of a tensor serves the ranks with its coordinates along these axes, so
        that all copies serve equally many. Without copies, there are no labels.
        """
        return machine.number_ranks(axes, self.n_ranks) if axes else None

    def _is_retained(self, number: int, k: int) -> bool:
        """Return whether a fetched input is used again; parts of loops are not."""
        group, loop = self.groups[number], self.schedules[number].loop
        access = group.inputs[k]
        if loop is not None and loop.index in access.indices:
            return False
        later = [a.tensor for a in group.inputs[k + 1 :]]
        return self.last_use[access.tensor] > number or access.tensor in later

    def _move(
        self, source: str, target: str, overlap: Overlap, is_added: bool = False
    ) -> Move:
        self.tag += 1
        return Move(source, target, overlap, self.tag, is_added, self.weight)

    def _free_fetched(self, number: int, inputs: Mapping[int, Input]) -> Events:
        for k, fetched in inputs.items():
            tensor = self.groups[number].inputs[k].tensor
            name, ranks = fetched.buffers[-1]
            retained = [buffer for buffer, _ in self.residences[tensor].retained]
            # a retained buffer is freed by the last group that reads it
            if ranks.any() and name not in retained:
                yield Release(name, ranks)

    def _free_dead_tensors(self, number: int) -> Events:
        """Free tensors that no later group uses, except the permanent ones."""
        for tensor, last_group in self.last_use.items():
            if last_group != number:
                continue
            residence = self.residences[tensor]
            for name, boxes in residence.retained:
                yield Release(name, boxes.is_there)
            if tensor not in self.permanent:
                yield Release(residence.buffer, residence.boxes.is_there)

    def _finish(
        self, group: Group, schedule: GroupSchedule, name: str, partial: Boxes
    ) -> Events:
        """Move or reduce the leaves' buffer to the distribution of the result."""
        tensor = group.output.tensor
        result = self.settle(group.output, schedule.result)
        buffer = self._name_buffer(tensor)
        # leaves wrote to the result itself: nothing to add or move
        if name == buffer:
            return
        is_added = bool(schedule.summed_axes(group))
        yield Allocation(buffer, result, is_zero=is_added)
        copied = tuple(k for k, index in enumerate(schedule.axes) if index is None)
        labels = self._label(schedule.machine, copied)
        yield self._move(name, buffer, find_overlap(partial, result, labels), is_added)
        yield Release(name, partial.is_there)


def _sample_steps(n_steps: int, max_steps: int | None) -> Sequence[int]:
    """Return all steps of a loop, or pairs of neighboring steps of a longer one.

    >>> list(_sample_steps(3, 4)), list(_sample_steps(100, 4))
    ([0, 1, 2], [0, 1, 98, 99])
    """
    if max_steps is None or n_steps <= max_steps:
        return range(n_steps)
    firsts = np.linspace(0, n_steps - 2, max_steps // 2).astype(int)
    return sorted({int(first) + k for first in firsts for k in (0, 1)})


# ---- steps: of one rank after another


def list_steps(event: Event) -> Iterator[tuple[int, Step]]:
    """Yield the steps of an event, each with its rank."""
    match event:
        case Allocation(buffer, boxes, is_zero):
            for rank, box in boxes.items():
                yield rank, Make(buffer, box, is_zero)
        case Move(source, target, overlap, tag, is_added):
            transfers = [
                Transfer(sender, receiver, source, target, box, is_added, tag)
                for sender, receiver, box in overlap.boxes()
            ]
            # sends come first, so that no rank waits for a later send
            yield from ((step.sender, step) for step in transfers if step.is_message)
            yield from ((step.receiver, step) for step in transfers)
        case Computation(group, inputs, target, boxes, is_first):
            names = [operand.names() for operand in inputs]
            for rank, box in boxes.items():
                sources = tuple(
                    (buffers[rank], operand.boxes.box(rank) or ())
                    for operand, buffers in zip(inputs, names, strict=True)
                )
                # the first leaf overwrites the zeros, which saves an addition
                yield rank, Leaf(group, sources, target, box, bool(is_first[rank]))
        case Release(buffer, ranks):
            for rank in np.nonzero(ranks)[0].tolist():
                yield rank, Free(buffer)


def list_rank_steps(events: Iterable[Event], n_ranks: int) -> Steps:
    """Return the list of steps of every rank."""
    lists: list[list[Step]] = [[] for _ in range(n_ranks)]
    for event in events:
        for rank, step in list_steps(event):
            lists[rank].append(step)
    return tuple(map(tuple, lists))
