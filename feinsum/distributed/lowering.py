"""Lowering a plan to steps.

The lowering tells a sink what all ranks do. One sink writes the lists of steps, another
one only counts (:mod:`feinsum.distributed.counts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box, Boxes, Overlap, box_size, overlaps
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.machine import Machine
from feinsum.distributed.schedule import GroupSchedule, needed
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
        """The buffer name for every rank."""
        return {
            rank: name
            for name, ranks in self.buffers
            for rank in np.nonzero(ranks)[0].tolist()
        }


class Sink(Protocol):
    """Receives the events of a plan, in execution order."""

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        """All ranks with a box allocate a buffer."""

    def move(
        self, source: str, target: str, found: Overlap, tag: int, *, is_added: bool
    ) -> None:
        """Move boxes between buffers, within a rank or between ranks."""

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        """All ranks with a box of the target compute their leaf."""

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        """Some ranks free a buffer."""


@dataclass(frozen=True, eq=False)
class _Held:
    """A tensor at rest, and what was fetched of it and kept for later uses."""

    distribution: Distribution
    boxes: Boxes
    kept: tuple[tuple[str, Boxes], ...] = ()


def lower(
    sink: Sink,
    groups: Sequence[Group],
    schedules: Sequence[GroupSchedule],
    starts: Mapping[str, Distribution],
    extents: Mapping[str, int],
    n_ranks: int,
    outputs: Collection[str] = (),
) -> None:
    """Tell a sink what every rank does.

    Operands, and final results, are in buffers with their own names.

    Args:
        outputs: results to keep although groups read them.
    """
    lowering = _Lowering(sink, groups, schedules, starts, extents, n_ranks)
    lowering.kept = {*starts, *outputs}
    for at in range(len(groups)):
        lowering.lower_group(at)


class _Lowering:
    """Where each tensor is, as groups are computed one after the other."""

    def __init__(
        self,
        sink: Sink,
        groups: Sequence[Group],
        schedules: Sequence[GroupSchedule],
        starts: Mapping[str, Distribution],
        extents: Mapping[str, int],
        n_ranks: int,
    ) -> None:
        self.sink, self.groups, self.schedules = sink, groups, schedules
        self.extents, self.n_ranks, self.tag = extents, n_ranks, 0
        uses = [(at, a) for at, group in enumerate(groups) for a in group.inputs]
        self.last_use = {access.tensor: at for at, access in uses}
        self.kept = set(starts)
        self.held = {
            a.tensor: self._rest(a, starts[a.tensor])
            for _, a in uses
            if a.tensor in starts
        }

    def _rest(self, access: Access, distribution: Distribution) -> _Held:
        shape = tuple(self.extents[i] for i in access.indices)
        return _Held(distribution, distribution.boxes(shape, self.n_ranks))

    def lower_group(self, at: int) -> None:
        group, schedule = self.groups[at], self.schedules[at]
        n_inputs, loop = len(group.inputs), schedule.loop
        needs = [self._needs(group, schedule, t) for t in range(schedule.n_steps)]
        works = [np.logical_and.reduce([b.is_there for b in row]) for row in needs]
        works_ever = np.logical_or.reduce(works)
        name, target = self._make_target(group, schedule, works_ever)
        looped = [
            k for k, a in enumerate(group.inputs) if loop and loop.index in a.indices
        ]
        once = [k for k in range(n_inputs) if k not in looped]
        whole = {k: self._fetch(at, k, needs[0][k].where(works_ever)) for k in once}

        def fetched(t: int) -> dict[int, Input]:
            if t == schedule.n_steps:
                return {}
            return {
                k: self._fetch(at, k, needs[t][k].where(works[t]), t) for k in looped
            }

        ahead = fetched(0)
        for t, here in enumerate(works):
            parts, ahead = ahead, fetched(t + 1)
            inputs = whole | parts
            ordered = [inputs[k] for k in range(n_inputs)]
            self.sink.compute(at, ordered, name, target.where(here))
            self._free_fetched(at, parts)
        self._free_fetched(at, whole)
        self._free_tensors(at)
        self._finish(group, schedule, name, target)

    def _needs(self, group: Group, schedule: GroupSchedule, step: int) -> list[Boxes]:
        return [
            needed(schedule, access, self.extents, self.n_ranks, step)
            for access in group.inputs
        ]

    def _make_target(
        self, group: Group, schedule: GroupSchedule, works: NDArray[np.bool_]
    ) -> tuple[str, Boxes]:
        """Where leaves write: the result itself, or what becomes it by moving."""
        name = group.output.tensor
        boxes = needed(schedule, group.output, self.extents, self.n_ranks)
        if schedule.result != schedule.needs(group.output):
            name, boxes = f"{name}+", boxes.where(works)
        self.sink.make(name, boxes, is_zero=True)
        return name, boxes

    def _fetch(self, at: int, k: int, boxes: Boxes, step: int = 0) -> Input:
        """An input, from where it is at rest to where it is needed.

        Of a sequential loop the next part is fetched before this one is used.
        """
        access = self.groups[at].inputs[k]
        # two names in turn, as both parts are there at one time
        tensor, name = access.tensor, f"{access.tensor}@{at}.{k}.{step % 2}"
        held = self.held[tensor]
        missing, buffers = boxes.is_there.copy(), []
        for buffer, there in ((tensor, held.boxes), *held.kept):
            near = there.contains(boxes) & missing
            missing &= ~near
            buffers.append((buffer, near))
        wanted = boxes.where(missing)
        if missing.any():
            self.sink.make(name, wanted, is_zero=False)
            labels = _places(
                held.distribution.machine, held.distribution.copied_axes, self.n_ranks
            )
            found = overlaps(held.boxes, wanted, labels)
            for at_hand, there in held.kept:
                self._move(at_hand, name, found.here(there), is_added=False)
                found = found.without(there)
            self._move(tensor, name, found, is_added=False)
            if self._is_kept(at, k):
                kept = (*held.kept, (name, wanted))
                self.held[tensor] = _Held(held.distribution, held.boxes, kept)
        return Input(access.indices, boxes, (*buffers, (name, missing)))

    def _is_kept(self, at: int, k: int) -> bool:
        """Whether what is fetched whole is used again."""
        access, loop = self.groups[at].inputs[k], self.schedules[at].loop
        if loop is not None and loop.index in access.indices:
            return False
        later = [a.tensor for a in self.groups[at].inputs[k + 1 :]]
        return self.last_use[access.tensor] > at or access.tensor in later

    def _move(
        self, source: str, target: str, found: Overlap, *, is_added: bool
    ) -> None:
        self.tag += 1
        self.sink.move(source, target, found, self.tag, is_added=is_added)

    def _free_fetched(self, at: int, inputs: Mapping[int, Input]) -> None:
        for k, one in inputs.items():
            tensor = self.groups[at].inputs[k].tensor
            name, ranks = one.buffers[-1]
            kept = [kept for kept, _ in self.held[tensor].kept]
            if ranks.any() and name not in kept:
                self.sink.free(name, ranks)

    def _free_tensors(self, at: int) -> None:
        """Free tensors that no later group uses, except the caller's own."""
        for tensor, last in self.last_use.items():
            if last != at:
                continue
            held = self.held[tensor]
            for name, boxes in held.kept:
                self.sink.free(name, boxes.is_there)
            if tensor not in self.kept:
                self.sink.free(tensor, held.boxes.is_there)

    def _finish(
        self, group: Group, schedule: GroupSchedule, name: str, partial: Boxes
    ) -> None:
        """What leaves wrote is added up, or moves, where the result is to be."""
        to = group.output.tensor
        result = self._rest(group.output, schedule.result)
        self.held[to] = result
        if name == to:
            return
        is_added = bool(schedule.summed_axes(group))
        self.sink.make(to, result.boxes, is_zero=is_added)
        alike = tuple(k for k, index in enumerate(schedule.axes) if index is None)
        labels = _places(schedule.machine, alike, self.n_ranks)
        self._move(name, to, overlaps(partial, result.boxes, labels), is_added=is_added)
        self.sink.free(name, partial.is_there)


def _places(
    machine: Machine, axes: Sequence[int], n_ranks: int
) -> NDArray[np.int64] | None:
    """A number for each rank: its place along some axes; None if there are none.

    Copies of a tensor serve those at the same places along the axes of the copies.
    """
    if not axes:
        return None
    found = np.zeros(n_ranks, np.int64)
    for axis in axes:
        places = machine.coordinates(n_ranks)[:, axis]
        found = found * machine.sizes[axis] + places
    return found


class StepLists:
    """The sink that writes the lists of steps."""

    def __init__(self, n_ranks: int) -> None:
        self.lists: list[list[Step]] = [[] for _ in range(n_ranks)]
        self.begun: set[tuple[str, int]] = set()

    @property
    def steps(self) -> Steps:
        return tuple(map(tuple, self.lists))

    def make(self, name: str, boxes: Boxes, *, is_zero: bool) -> None:
        for rank, box in _boxes(boxes):
            self.lists[rank].append(Make(name, box, is_zero))

    def move(
        self, source: str, target: str, found: Overlap, tag: int, *, is_added: bool
    ) -> None:
        """Move boxes; sends come first, so that no rank waits for a later send."""
        for of, to, box in found.boxes():
            if of != to:
                self.lists[of].append(Send(to, source, box, tag))
        receive = Reduce if is_added else Receive
        for of, to, box in found.boxes():
            if of == to:
                self.lists[to].append(Take(source, target, box, is_added))
            else:
                self.lists[to].append(receive(of, target, box, tag))

    def compute(
        self, group: int, inputs: Sequence[Input], name: str, boxes: Boxes
    ) -> None:
        buffers = [one.names() for one in inputs]
        for rank, box in _boxes(boxes):
            sources = tuple(
                (names[rank], one.boxes.box(rank) or ())
                for names, one in zip(buffers, inputs, strict=True)
            )
            lengths = {
                i: place
                for one, (_, at) in zip(inputs, sources, strict=True)
                for i, place in zip(one.indices, at, strict=True)
            }
            n_points = box_size(tuple(lengths.values()))
            is_first = (name, rank) not in self.begun
            self.begun.add((name, rank))
            leaf = Leaf(group, sources, name, box, n_points, is_first)
            self.lists[rank].append(leaf)

    def free(self, name: str, ranks: NDArray[np.bool_]) -> None:
        for rank in np.nonzero(ranks)[0].tolist():
            self.lists[rank].append(Free(name))


def _boxes(boxes: Boxes) -> Iterator[tuple[int, Box]]:
    for rank in boxes.ranks():
        box = boxes.box(rank)
        assert box is not None
        yield rank, box
