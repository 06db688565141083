"""The leaves of a plan: the workloads whose recipes its processes look up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from constantdict import constantdict

from feinsum.canonical import WorkloadKey, canonicalize
from feinsum.distributed.groups import Group
from feinsum.distributed.schedule import GroupSchedule, needed
from feinsum.errors import PlanError
from feinsum.ir import BatchedEinsum, batched_einsum, to_text
from feinsum.ir import array as operand_of
from feinsum.records.document import STRICT

if TYPE_CHECKING:
    from feinsum.distributed.plan import Plan


@dataclass(frozen=True)
class LeafWork:
    """One process's share of a group.

    Attributes:
        key: key of the workload whose recipe is looked up.
        text: the einsum of the largest block, as accepted by ``feinsum tune``.
    """

    __pydantic_config__ = STRICT

    key: str
    text: str


def extents_of(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The extent of every index, as a number.

    Raises:
        PlanError: if a size is missing or invalid.
    """
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise PlanError(
                f"size {name}={value!r}; expected an integer from 0", rules=("sizes",)
            )
    known = {p.name for p in einsum.size_params}
    if missing := sorted(known - set(sizes)):
        raise PlanError(
            f"no value of {', '.join(missing)}; a plan needs the value of every size",
            rules=("sizes",),
        )
    if unknown := sorted(set(sizes) - known):
        raise PlanError(
            f"there is no size parameter {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known)) or 'none'}",
            rules=("sizes",),
        )
    return constantdict(
        {
            index: extent if isinstance(extent, int) else sizes[extent.name]
            for index, extent in einsum.extents.items()
        }
    )


def leaf_work(
    dtypes: Mapping[str, Any], dtype: Any, group: Group, lengths: Mapping[str, int]
) -> LeafWork:
    """The workload of a block of a group.

    Intermediates have the dtype of the result.
    """
    names = [f"b{k}" for k in range(len(group.inputs))]
    operands = [
        operand_of(
            name,
            tuple(lengths[i] for i in access.indices),
            dtypes.get(access.tensor, dtype),
        )
        for name, access in zip(names, group.inputs, strict=True)
    ]
    block = batched_einsum(group.subscripts, [operands])
    key: WorkloadKey = canonicalize(block).key
    return LeafWork(key, to_text(block))


def leaves_of(plan: Plan) -> tuple[LeafWork, ...]:
    """For every group, the workload of the largest block."""
    found = []
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        lengths = _largest_block(group, schedule, plan.extents, plan.processes)
        found.append(leaf_work(plan.operands, plan.dtype, group, lengths))
    return tuple(found)


def _largest_block(
    group: Group, schedule: GroupSchedule, extents: Mapping[str, int], n_ranks: int
) -> dict[str, int]:
    """The extents of the block with the most multiply-adds, at the first step."""
    lengths = {}
    for access in group.inputs:
        boxes = needed(schedule, access, extents, n_ranks)
        sizes = boxes.lengths.astype(object)
        lengths.update({i: sizes[:, k] for k, i in enumerate(access.indices)})
    points = np.ones(n_ranks, object)
    for length in lengths.values():
        points = points * length
    rank = int(points.argmax())
    return {i: int(length[rank]) for i, length in lengths.items()}
