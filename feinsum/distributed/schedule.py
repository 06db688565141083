"""Schedules: which process computes which part of a group, and in which order."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from feinsum.distributed.boxes import Boxes
from feinsum.distributed.distribution import (
    Cyclic,
    Distribution,
    distribution_violations,
)
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.machine import Machine, axis_name, machine_violations
from feinsum.distributed.ranges import cut, deal
from feinsum.ir.operand import Violation
from feinsum.records.document import STRICT
from feinsum.words import counted

MOST_PARTS = 2**14
"""Maximum parts of a sequential loop; each is a step in the lists of all ranks."""


@dataclass(frozen=True)
class Loop:
    """A sequential loop over the parts of a block of an index.

    Tensors with the index are fetched part by part, which needs less memory. Every
    process begins with the part given by the sum of its coordinates along ``rotate``.
    The parts are blocks or, if the loop is cyclic, every ``parts``-th value.

    Source: DISTAL, section 3.3 (divide, communicate, rotate).
    """

    __pydantic_config__ = STRICT

    index: str
    parts: int
    rotate: tuple[int, ...] = ()
    is_cyclic: Annotated[bool, Field(exclude_if=operator.not_)] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rotate", tuple(self.rotate))


@dataclass(frozen=True)
class GroupSchedule:
    """How a machine computes a group.

    Args:
        machine: its grid.
        axes: for each machine axis, the index that it partitions, or None if all
            processes along it compute the same.
        result: the final distribution of the result. Partial sums are added there: in
            blocks (a reduce-scatter) or on one rank (a reduce).
        loop: a sequential loop, if any.
        cyclic: the axes that deal out values of their index one by one, not blocks.
    """

    __pydantic_config__ = STRICT

    machine: Machine
    axes: tuple[str | None, ...]
    result: Distribution
    loop: Loop | None = None
    cyclic: Cyclic = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "cyclic", tuple(sorted(self.cyclic)))

    def cuts(self, index: str) -> tuple[int, ...]:
        """The machine axes that partition an index."""
        return tuple(k for k, cut in enumerate(self.axes) if cut == index)

    def parts(self, index: str) -> int:
        """The number of blocks of an index."""
        return prod(self.machine.sizes[k] for k in self.cuts(index))

    def needs(self, access: Access) -> Distribution:
        """Where a tensor must be, without any sequential loop."""
        cuts = tuple(map(self.cuts, access.indices))
        used = {k for cutting in cuts for k in cutting}
        return Distribution(
            self.machine, cuts, cyclic=tuple(k for k in self.cyclic if k in used)
        )

    def summed_axes(self, group: Group) -> tuple[int, ...]:
        """Axes of the machine along which there are partial sums."""
        return tuple(k for k, i in enumerate(self.axes) if i in group.summed)

    def reduction(self, group: Group) -> str:
        """How partial sums are reduced: ``scatter``, ``owner``, ``mixed``, ``none``."""
        summed = set(self.summed_axes(group))
        if not summed:
            return "none"
        at_one_place = summed & {k for k, _ in self.result.fixed}
        if not at_one_place:
            return "scatter"
        return "owner" if at_one_place == summed else "mixed"

    @property
    def n_steps(self) -> int:
        return 1 if self.loop is None else self.loop.parts


def needed(
    schedule: GroupSchedule,
    access: Access,
    extents: Mapping[str, int],
    n_ranks: int,
    step: int = 0,
) -> Boxes:
    """The part of a tensor that each rank needs at a step of the sequential loop."""
    shape = tuple(extents[i] for i in access.indices)
    boxes = schedule.needs(access).boxes(shape, n_ranks)
    loop = schedule.loop
    if loop is None or loop.index not in access.indices:
        return boxes
    axis = access.indices.index(loop.index)
    part = (step + _turn(schedule, loop, n_ranks)) % loop.parts
    first, end = boxes.first.copy(), boxes.end.copy()
    part_of, steps = deal if loop.is_cyclic else cut, list(boxes.steps)
    first[:, axis], end[:, axis] = part_of(
        first[:, axis], end[:, axis], part, loop.parts, steps[axis]
    )
    steps[axis] *= loop.parts if loop.is_cyclic else 1
    return replace(boxes, first=first, end=end, steps=tuple(steps))


def _turn(schedule: GroupSchedule, loop: Loop, n_ranks: int) -> NDArray[np.int64]:
    places = schedule.machine.coordinates(n_ranks)
    turn: NDArray[np.int64] = places[:, list(loop.rotate)].sum(axis=1)
    return turn


def schedule_violations(
    group: Group, schedule: GroupSchedule, n_processes: int
) -> Iterator[Violation]:
    """The violations of a schedule for a group."""
    name = group.output.tensor
    yield from machine_violations(schedule.machine, n_processes)
    if len(schedule.axes) != schedule.machine.n_axes:
        yield Violation(
            "axes",
            f"{name}: {counted(len(schedule.axes), 'index')} for "
            f"{counted(schedule.machine.n_axes, 'axis')} "
            "of the machine",
        )
        return
    for k, index in enumerate(schedule.axes):
        if index is not None and index not in group.indices:
            yield Violation(
                "axes",
                f"{name}: axis {axis_name(k)} partitions {index!r}, which is not an "
                "index",
            )
    own = {k for k, index in enumerate(schedule.axes) if index is not None}
    if not set(schedule.cyclic) <= own or len(set(schedule.cyclic)) < len(
        schedule.cyclic
    ):
        yield Violation(
            "axes",
            f"{name}: cyclic axes {schedule.cyclic}; expected different ones that "
            "partition an index",
        )
    yield from distribution_violations(
        f"the result {name}", schedule.result, len(group.output.indices), n_processes
    )
    yield from _result_violations(group, schedule)
    yield from _loop_violations(group, schedule)


def _result_violations(group: Group, schedule: GroupSchedule) -> Iterator[Violation]:
    name, result = group.output.tensor, schedule.result
    if result.machine != schedule.machine:
        yield Violation(
            "result", f"{name}: the result is distributed over another machine"
        )
        return
    for k in result.copied_axes:
        if schedule.axes[k] is not None:
            yield Violation(
                "result",
                f"{name}: the result is replicated along axis {axis_name(k)}, which "
                "partitions an index; let the group that needs copies fetch them",
            )
    for k in set(range(result.machine.n_axes)) - set(result.copied_axes):
        if schedule.axes[k] is None:
            yield Violation(
                "result",
                f"{name}: all processes along axis {axis_name(k)} compute the same, so "
                "the result must be replicated there",
            )


def _loop_violations(group: Group, schedule: GroupSchedule) -> Iterator[Violation]:
    loop, name = schedule.loop, group.output.tensor
    if loop is None:
        return
    if loop.index not in group.summed:
        yield Violation(
            "loop",
            f"{name}: a sequential loop over {loop.index!r}, which is not summed",
        )
    if not 1 <= loop.parts <= MOST_PARTS:
        yield Violation(
            "loop",
            f"{name}: a sequential loop of {counted(loop.parts, 'part')}; "
            "expected 1 to "
            f"{MOST_PARTS}",
        )
    for k in loop.rotate:
        if not 0 <= k < schedule.machine.n_axes:
            yield Violation(
                "loop", f"{name}: rotation by axis {k}, which does not exist"
            )
