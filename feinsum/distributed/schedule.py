"""Schedules: which process computes which part of a group, and in which order.

``C[i,k] = A[i,j] * B[j,k]`` on a machine ``x=2 y=2`` whose axes partition i and k. Each
process computes one block of C and needs a block of rows of A and of columns of B::

              B   k0    k1            rank 0 (x=0 y=0): C[i0,k0]
                +-----+-----+         rank 1 (x=0 y=1): C[i0,k1]
                |  |  |  |  |         rank 2 (x=1 y=0): C[i1,k0]
         A      +--v--+--v--+         rank 3 (x=1 y=1): C[i1,k1]
        +-----+ +-----+-----+
     i0 |  -->| |  0  |  1  |         A is needed as ij->i*, so ranks 0 and 1 hold
        +-----+ +-----+-----+         copies of A[i0,:]; B is needed as jk->*k
     i1 |  -->| |  2  |  3  |
        +-----+ +-----+-----+

A sequential loop over parts of j fetches A and B part by part, which needs less memory.
If an axis partitions j, its processes have partial sums of the same block, which are
added on the ranks that hold the result.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from feinsum.canonical import canonicalize
from feinsum.distributed.boxes import Boxes, Ints, take_block, take_cyclic_part
from feinsum.distributed.distribution import Cyclic, Distribution, Machine
from feinsum.distributed.groups import Access, Group, get_shape
from feinsum.ir import array as operand_of
from feinsum.ir import batched_einsum, to_text
from feinsum.records.document import Part

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan

MAX_PARTS = 2**14
"""Parts of a sequential loop; each is a step in the lists of all ranks."""


@dataclass(frozen=True)
class Loop(Part):
    """A sequential loop over the parts of a block of an index.

    Tensors with the index are fetched part by part, which needs less memory. Every
    process begins with the part given by the sum of its coordinates along ``rotate``.
    The parts are blocks or, if the loop is cyclic, every ``parts``-th value.

    Source: DISTAL, section 3.3 (divide, communicate, rotate).
    """

    index: str
    parts: int
    rotate: tuple[int, ...] = ()
    is_cyclic: Annotated[bool, Field(exclude_if=operator.not_)] = False

    sequences = ("rotate",)


@dataclass(frozen=True)
class GroupSchedule(Part):
    """The assignment of a group's work and results to the processes of a machine.

    Args:
        machine: the grid of processes.
        axes: for each machine axis, the index that it partitions, or None if all
            processes along it compute the same.
        result: the final distribution of the result. Partial sums are added there: in
            blocks (a reduce-scatter) or on one rank (a reduce).
        loop: a sequential loop, if any.
        cyclic: the axes that distribute the values of their index cyclically.
    """

    machine: Machine
    axes: tuple[str | None, ...]
    result: Distribution
    loop: Loop | None = None
    cyclic: Cyclic = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "cyclic", tuple(sorted(self.cyclic)))

    def cuts(self, index: str) -> tuple[int, ...]:
        """Return the machine axes that partition an index."""
        return tuple(k for k, cut in enumerate(self.axes) if cut == index)

    def parts(self, index: str) -> int:
        """Return the number of blocks of an index."""
        return prod(self.machine.sizes[k] for k in self.cuts(index))

    def needs(self, access: Access) -> Distribution:
        """Return the distribution in which a tensor is needed, without the loop."""
        return derive_distribution(self.axes, access, self.machine, self.cyclic)

    def summed_axes(self, group: Group) -> tuple[int, ...]:
        """Return the axes of the machine along which there are partial sums."""
        return tuple(k for k, i in enumerate(self.axes) if i in group.summed)

    def reduction(self, group: Group) -> str:
        """Name the reduction of sums: ``scatter``, ``owner``, ``mixed`` or ``none``."""
        summed = set(self.summed_axes(group))
        if not summed:
            return "none"
        at_one_coordinate = summed & {k for k, _ in self.result.fixed}
        if not at_one_coordinate:
            return "scatter"
        return "owner" if at_one_coordinate == summed else "mixed"

    @property
    def n_steps(self) -> int:
        return 1 if self.loop is None else self.loop.parts


def compute_needed_boxes(
    schedule: GroupSchedule,
    access: Access,
    extents: Mapping[str, int],
    n_ranks: int,
    step: int = 0,
) -> Boxes:
    """Return the part of a tensor that each rank needs at a step of the loop."""
    boxes = schedule.needs(access).boxes(get_shape(access, extents), n_ranks)
    loop = schedule.loop
    # tensors without the index are fetched once, as a whole
    if loop is None or loop.index not in access.indices:
        return boxes
    axis = access.indices.index(loop.index)
    coordinates = schedule.machine.coordinates(n_ranks)
    # rotated, so that the processes of a row fetch different parts at one time
    offset: Ints = coordinates[:, list(loop.rotate)].sum(axis=1)
    number = (step + offset) % loop.parts
    first, end, steps = boxes.first.copy(), boxes.end.copy(), list(boxes.steps)
    get_part = take_cyclic_part if loop.is_cyclic else take_block
    first[:, axis], end[:, axis] = get_part(
        first[:, axis], end[:, axis], number, loop.parts, steps[axis]
    )
    steps[axis] *= loop.parts if loop.is_cyclic else 1
    return replace(boxes, first=first, end=end, steps=tuple(steps))


# ---- placement of the operands and results of a schedule


def derive_distribution(
    axes: Sequence[str | None],
    access: Access,
    machine: Machine,
    cyclic: Sequence[int] = (),
) -> Distribution:
    """Return the distribution in which a tensor is needed, given the axes' indices."""
    cuts = tuple(
        tuple(k for k, index in enumerate(axes) if index == i) for i in access.indices
    )
    used = {k for cutting in cuts for k in cutting}
    return Distribution(machine, cuts, cyclic=tuple(k for k in cyclic if k in used))


def without_copies(need: Distribution) -> Distribution:
    """Return the same blocks without copies: each on the first rank that needs it."""
    return replace(need, fixed=tuple((k, 0) for k in need.copied_axes))


def list_result_choices(
    group: Group, axes: Sequence[str | None], machine: Machine
) -> Iterator[Distribution]:
    """Yield the possible distributions of a result.

    Machine axes along which there are partial sums may partition the result further.
    """
    base = derive_distribution(axes, group.output, machine).cuts
    summed = [k for k, i in enumerate(axes) if i in group.summed]
    # each such axis partitions a tensor axis (reduce-scatter), or none (reduce)
    for targets in product((*range(len(base)), None), repeat=len(summed)):
        cuts = list(base)
        for k, target in zip(summed, targets, strict=True):
            if target is not None:
                cuts[target] = (*cuts[target], k)
        # coordinate 0 represents all coordinates, which differ only in ranks' names
        fixed = [(k, 0) for k, t in zip(summed, targets, strict=True) if t is None]
        yield Distribution(machine, tuple(cuts), tuple(fixed))


def spread_result(
    group: Group,
    axes: Sequence[str | None],
    machine: Machine,
    extents: Mapping[str, int],
) -> Distribution:
    """Distribute a result evenly: axes of partial sums partition its longest axes."""
    base = derive_distribution(axes, group.output, machine)
    summed = tuple(k for k, i in enumerate(axes) if i in group.summed)
    return _spread_evenly(base, summed, get_shape(group.output, extents))


def choose_initial_distribution(
    need: Distribution, shape: Sequence[int]
) -> Distribution:
    """Distribute one copy of a tensor evenly over the ranks that need it."""
    return _spread_evenly(need, need.copied_axes, shape)


def _spread_evenly(
    base: Distribution, axes: Sequence[int], shape: Sequence[int]
) -> Distribution:
    """Partition the longest tensor axes along more machine axes.

    If no tensor axis is long enough for a machine axis, all is at its coordinate 0.
    """
    machine, cuts, fixed = base.machine, list(base.cuts), list(base.fixed)
    lengths = list(shape)
    for target, term in enumerate(cuts):
        for k in term:
            lengths[target] = -(-lengths[target] // machine.sizes[k])
    # large machine axes first, because fewer tensor axes are long enough for them
    for k in sorted(axes, key=lambda k: -machine.sizes[k]):
        target = max(range(len(cuts)), key=lambda d: lengths[d], default=-1)
        if target < 0 or lengths[target] < machine.sizes[k]:
            fixed.append((k, 0))
            continue
        cuts[target] = (*cuts[target], k)
        lengths[target] = -(-lengths[target] // machine.sizes[k])
    return Distribution(machine, tuple(cuts), tuple(fixed), base.cyclic)


# ---- leaves: the workloads whose recipes processes look up


@dataclass(frozen=True)
class LeafWork(Part):
    """One process's share of a group.

    Attributes:
        key: key of the workload whose recipe is looked up.
        text: the einsum of the largest block, as accepted by ``feinsum tune``.
    """

    key: str
    text: str


def list_leaves(plan: Plan) -> tuple[LeafWork, ...]:
    """Return for every group the workload of the largest block."""
    return tuple(_make_leaf_work(plan, *pair) for pair in plan.scheduled)


def _make_leaf_work(plan: Plan, group: Group, schedule: GroupSchedule) -> LeafWork:
    lengths = _find_largest_block(group, schedule, plan.extents, plan.processes)
    has_pattern = plan.is_sparse(group.output.tensor)
    blocks = []
    for access in group.inputs:
        dtype = plan.operands.get(access.tensor, plan.dtype)
        storage = "csf" if plan.is_sparse(access.tensor) else ""
        storage += "=" * (bool(storage) and has_pattern)
        blocks.append((get_shape(access, lengths), dtype.str, storage))
    return _make_leaf(group.subscripts, tuple(blocks))


# cached: the many plans that a planner compares have few different blocks
@lru_cache(4096)
def _make_leaf(
    subscripts: str, blocks: tuple[tuple[tuple[int, ...], str, str], ...]
) -> LeafWork:
    """Return the workload of blocks, each with its shape, dtype and storage."""
    # any names will do: the key belongs to the canonical form
    operands = [
        replace(operand_of(f"b{k}", shape, dtype), storage=storage)
        for k, (shape, dtype, storage) in enumerate(blocks)
    ]
    einsum = batched_einsum(subscripts, [operands])
    return LeafWork(canonicalize(einsum).key, to_text(einsum))


def _find_largest_block(
    group: Group, schedule: GroupSchedule, extents: Mapping[str, int], n_ranks: int
) -> dict[str, int]:
    """Return the extents of the block with the most multiply-adds at the first step."""
    lengths = {}
    for access in group.inputs:
        boxes = compute_needed_boxes(schedule, access, extents, n_ranks)
        # Python's integers: the number of points may exceed 64 bits
        sizes = boxes.lengths.astype(object)
        lengths.update({i: sizes[:, k] for k, i in enumerate(access.indices)})
    points = np.ones(n_ranks, object)
    for length in lengths.values():
        points = points * length
    # ragged blocks: the largest one decides the time of the group
    rank = int(points.argmax())
    return {i: int(length[rank]) for i, length in lengths.items()}
