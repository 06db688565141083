"""Comparing blocks of results with a reference computed for these blocks alone.

Nothing is gathered: every rank that holds a part of a result compares a sample of it.
Only the needed parts of operands are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box
from feinsum.distributed.facts import AnyPlan, plan_in
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.local import numpy_leaf, slices, within
from feinsum.distributed.plan import Plan
from feinsum.distributed.program_plan import ProgramPlan
from feinsum.distributed.room import free_bytes
from feinsum.errors import PlanError, WrongResultError
from feinsum.ir.evaluate import evaluate_statement
from feinsum.records import BlockCheck

Array = NDArray[Any]

Read: TypeAlias = Callable[[str, Box], Array]
"""A box of an operand, by its name."""

MOST_ENTRIES = 8
"""Most entries of a sample along each axis."""

MOST_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Sample:
    """One block that was compared.

    Attributes:
        n_entries: number of entries.
        error: largest error, relative to the largest entry of the reference.
    """

    n_entries: int
    error: float


def sample_boxes(plan: Plan, rank: int) -> dict[str, Box]:
    """For every output of which a rank has a part, a block of that part.

    Its position depends on the rank, so that samples of ranks differ.
    """
    chosen = np.random.default_rng(rank)
    found = {}
    for name in plan.outputs:
        box = plan.result_box(rank, name)
        if box is not None and all(box):
            found[name] = tuple(_some(chosen, side) for side in box)
    return found


def _some(chosen: np.random.Generator, side: range) -> range:
    length = min(MOST_ENTRIES, len(side))
    start = int(chosen.integers(0, len(side) - length + 1))
    return side[start : start + length]


def compared(
    made: AnyPlan, read: Read, parts: Mapping[str, tuple[Box, Array]]
) -> list[Sample]:
    """Compare blocks of outputs, given with their boxes, with the reference."""
    return [
        _compared(part, _reference(made, read, name, box))
        for name, (box, part) in parts.items()
    ]


def operand_boxes(plan: Plan, output: str, box: Box) -> dict[str, Box]:
    """The boxes of operands that a block of an output depends on.

    Raises:
        PlanError: with the rule ``memory``, if they are too large.
    """
    wanted = _wanted(_statements(plan), plan, output, box)
    _check_room(output, wanted)
    return {name: wanted[name] for name in plan.operands if name in wanted}


def check_of(made: AnyPlan, samples: Sequence[Sample]) -> BlockCheck:
    """The record of the samples of all ranks.

    Raises:
        WrongResultError: if one is wrong.
    """
    tolerance = tolerance_of(plan_in(made))
    errors = [one.error for one in samples]
    wrong = [error for error in errors if not error <= tolerance]
    if wrong:
        raise WrongResultError(
            f"{len(wrong)} of {len(errors)} blocks of results differ from the "
            f"reference by up to {max(wrong):.3g} of its largest entry; expected at "
            f"most {tolerance:.3g}. Nothing was recorded"
        )
    n_entries = sum(one.n_entries for one in samples)
    return BlockCheck(len(samples), n_entries, tolerance, max(errors, default=0.0))


def tolerance_of(plan: Plan) -> float:
    """The tolerance for rounding, for sums as long as the longest one."""
    kind = np.result_type(plan.dtype, np.float16)
    eps = float(np.finfo(kind if kind == plan.dtype else np.float64).eps)
    n_terms = max(prod(plan.extents[i] for i in group.summed) for group in plan.groups)
    return float(min(MOST_TOLERANCE, 64 * eps * max(1, n_terms)))


def _compared(part: Array, expected: Array) -> Sample:
    scale = float(np.max(np.abs(expected), initial=0.0)) or 1.0
    error = float(np.max(np.abs(part - expected), initial=0.0)) / scale
    return Sample(part.size, error)


def _reference(made: AnyPlan, read: Read, output: str, box: Box) -> Array:
    """A block of a result, of all that it depends on and nothing else."""
    plan = plan_in(made)
    groups = _statements(plan)
    wanted = _wanted(groups, plan, output, box)
    _check_room(output, wanted)
    known: dict[str, Array] = {
        name: np.asarray(read(name, wanted[name]))
        for name in plan.operands
        if name in wanted
    }
    for k, group in enumerate(groups):
        if group.output.tensor in wanted:
            known[group.output.tensor] = _computed(made, k, group, known, wanted)
    return known[output]


def _check_room(output: str, wanted: Mapping[str, Box]) -> None:
    n_bytes = 8 * sum(prod(map(len, box)) for box in wanted.values())
    if n_bytes > (free := free_bytes()):
        raise PlanError(
            f"a block of {output} depends on {n_bytes:,} bytes, and {free:,} are free: "
            "it cannot be verified. Record a run with smaller arrays",
            rules=("memory",),
        )


def _statements(plan: Plan) -> tuple[Group, ...]:
    """The statements, whatever the path."""
    if plan.statements is not None:
        return plan.groups
    einsum, output = plan.batched_einsum, plan.outputs[0]
    terms = zip(einsum.rows[0], einsum.inputs, strict=True)
    inputs = tuple(Access(operand.name, tuple(term)) for operand, term in terms)
    return (Group(inputs, Access(output, tuple(einsum.output))),)


def _wanted(
    groups: Sequence[Group], plan: Plan, output: str, box: Box
) -> dict[str, Box]:
    """For each tensor, the box that a block of a result depends on."""
    found = {output: box}
    for group in reversed(groups):
        if group.output.tensor not in found:
            continue
        sides = _sides(group, found, plan.extents)
        for access in group.inputs:
            needed = tuple(sides[i] for i in access.indices)
            before = found.get(access.tensor, needed)
            found[access.tensor] = tuple(map(_around, before, needed))
    return found


def _around(one: range, other: range) -> range:
    """A range that contains both."""
    if one == other:
        return one
    return range(min(one.start, other.start), max(one.stop, other.stop))


def _sides(
    group: Group, wanted: Mapping[str, Box], extents: Mapping[str, int]
) -> dict[str, range]:
    """For each index of a statement, the values that matter."""
    kept = dict(zip(group.output.indices, wanted[group.output.tensor], strict=True))
    every = {i for access in group.inputs for i in access.indices}
    return {i: kept.get(i, range(extents[i])) for i in every}


def _computed(
    made: AnyPlan,
    k: int,
    group: Group,
    known: Mapping[str, Array],
    wanted: Mapping[str, Box],
) -> Array:
    sides = _sides(group, wanted, plan_in(made).extents)
    blocks = []
    for access in group.inputs:
        box = tuple(sides[i] for i in access.indices)
        blocks.append(known[access.tensor][slices(within(box, wanted[access.tensor]))])
    if not isinstance(made, ProgramPlan):
        exact = [block.astype(np.result_type(block, np.float64)) for block in blocks]
        return numpy_leaf(group.subscripts, *exact)
    one = made.program.statements[k]
    named = {
        name: sides[index]
        for term, access in zip(one.inputs, group.inputs, strict=True)
        for name, index in zip(term, access.indices, strict=True)
    }
    first = {name: side.start for name, side in named.items()}
    steps = {name: side.step for name, side in named.items()}
    found: Array = evaluate_statement(one, blocks, first, steps)
    return found.astype(made.program.arrays[one.result].dtype, copy=False)
