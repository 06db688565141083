"""Facts of plans: their documents, verification by samples, and plausibility.

A fact records that a plan ran on a fleet, how many elements it moved and, if its ranks
had cores of their own, its seconds. The result is verified by samples: each rank
compares a small block of its part with a reference, which is computed for this block
alone from the boxes of operands that it depends on. Nothing is gathered::

    out[i,k] = A[i,j] * B[j,k], a sample of 8 x 8 entries

         B  |###|          # read: columns of B and rows of A of the sample
    A       |###|
    #####   +---+
    #####   | S |          S: computed again, and compared
            +---+

The checks of :mod:`feinsum.records.plausibility` reach :func:`findings` by its entry
point, because it is in a higher layer: it counts the steps of the plan again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box
from feinsum.distributed.groups import Group, groups_of
from feinsum.distributed.local import compute_with_numpy
from feinsum.distributed.plans import Plan
from feinsum.distributed.program_plan import ProgramPlan, evaluate_block
from feinsum.distributed.storage import get_slices, make_relative
from feinsum.errors import FeinsumError, PlanError, WrongResultError
from feinsum.free_memory import get_free_memory_bytes
from feinsum.ir import from_text
from feinsum.programs.key import program_key
from feinsum.records import BlockCheck, Finding, Fleet, PlanRecord
from feinsum.records.capability import compute_least_work, get_capability
from feinsum.records.plausibility import make_finding

Array = NDArray[Any]

AnyPlan: TypeAlias = Plan | ProgramPlan

Read: TypeAlias = Callable[[str, Box], Array]
"""A box of an operand, by its name."""

MAX_EXTENT = 2**40
"""Maximum extent of an index in a recorded plan; limits the work of checking it."""

MAX_STEPS = 2**18
"""Maximum steps of all ranks in sequential loops; recounting more takes too long."""

SAMPLE_LENGTH = 8
"""Entries of a sample along each axis."""

MAX_TOLERANCE = 1e-3
"""Relative error above which a block is wrong, however long its sums are."""


def read_plan(text: str | bytes) -> AnyPlan:
    """Read a plan of an einsum, or of a program together with its statements.

    Raises:
        PlanError: if it is not a plan, or breaks a rule.
        ProgramError: if its program is ill-formed.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    # plans have no kind in their documents; only those of programs have this field
    if isinstance(document, dict) and "program" in document:
        return ProgramPlan.from_json(text)
    return Plan.from_json(text)


def get_inner_plan(plan: AnyPlan) -> Plan:
    """Return the plan itself, or the plan of a program plan."""
    return plan.plan if isinstance(plan, ProgramPlan) else plan


def get_plan_key(plan: AnyPlan) -> str:
    """Return the key of a plan's einsum or program, as used by ``feinsum query``.

    Raises:
        PlanError: for bare statements, which have no key.

    >>> import feinsum
    >>> A, x = feinsum.array("A", (4, 4)), feinsum.array("x", 4)
    >>> e = feinsum.einsum("ij,j->i", A, x)
    >>> from feinsum.canonical import canonicalize
    >>> get_plan_key(feinsum.plan(e, processes=2)) == canonicalize(e).key
    True
    """
    if isinstance(plan, ProgramPlan):
        return program_key(plan.program)
    if plan.statements is not None:
        raise PlanError(
            "a plan of bare statements has no key; plan a program, which has one",
            rules=("einsum",),
        )
    return plan.key


def build_fact(
    plan: AnyPlan,
    fleet: Fleet,
    counted: int,
    verification: BlockCheck,
    samples_s: Sequence[float] = (),
) -> PlanRecord:
    """Build the fact of a run of a plan; a fleet without cores for all has no seconds.

    Args:
        plan: the plan that ran.
        fleet: the hosts and ranks on which it ran.
        counted: elements that the engine counted.
        verification: the comparison of sampled blocks with the reference.
        samples_s: seconds of each timed run.
    """
    return PlanRecord(
        get_plan_key(plan),
        plan.to_json(),
        fleet,
        plan.counts.document(),
        counted,
        verification,
        tuple(samples_s) if fleet.is_timed else (),
        {"recorded_by": "feinsum"},
    )


# ---- plausibility


def findings(record: PlanRecord) -> Iterator[Finding]:
    """Yield the implausible values of a fact: those that contradict each other."""
    try:
        document = _read_bounded(record.plan)
        key = get_plan_key(document)
    except FeinsumError as error:
        yield make_finding("plan", str(error)[:200])
        return
    plan, fleet = get_inner_plan(document), record.fleet
    # ids are digests of texts: two spellings would be two facts
    if document.to_json() != record.plan:
        yield make_finding("plan", "its text is not in the canonical form")
    if key != record.workload:
        yield make_finding("key-of-another-plan", f"{record.workload[:80]}, not {key}")
    if fleet.ranks != plan.processes:
        yield make_finding("fleet", f"{fleet.ranks} ranks of {plan.processes}")
    expected = plan.counts.document()
    if dict(record.predicted) != expected or record.counted != expected["moved"]:
        claim = f"{record.counted} received, {record.predicted.get('moved')} predicted"
        yield make_finding("counts", f"{claim}; the steps move {expected['moved']}")
    min_s = _estimate_min_seconds(plan, fleet)
    if min(record.samples_s, default=min_s) < min_s:
        claim = f"{min(record.samples_s):g} s, but {min_s:.3g} s at least"
        yield make_finding("faster-than-possible", claim)


# cached: a database checks each fact when it arrives, and again when it is served
@lru_cache(64)
def _read_bounded(text: str) -> AnyPlan:
    """Read a plan, and refuse one whose steps take too long to count again.

    Raises:
        PlanError: if an extent or the number of steps exceeds its limit.
    """
    document = read_plan(text)
    plan = get_inner_plan(document)
    if max(plan.extents.values(), default=0) > MAX_EXTENT:
        raise PlanError(f"an extent is larger than {MAX_EXTENT}", rules=("sizes",))
    n_steps = plan.processes * sum(schedule.n_steps for schedule in plan.schedules)
    if n_steps > MAX_STEPS:
        raise PlanError(
            f"{n_steps} steps over all ranks; at most {MAX_STEPS} can be counted again",
            rules=("loop",),
        )
    return document


def _estimate_min_seconds(plan: Plan, fleet: Fleet) -> float:
    """Return the least seconds of the rank with the largest leaf, on its threads."""
    rank = get_capability(replace(fleet.device, compute_units=fleet.threads))
    works = (compute_least_work(from_text(leaf.text), {}) for leaf in plan.leaves)
    return max((rank.seconds(work) for work in works), default=0.0)


# ---- verification


@dataclass(frozen=True)
class Sample:
    """One block that was compared.

    Attributes:
        n_entries: number of entries.
        error: largest error, relative to the largest entry of the reference.
    """

    n_entries: int
    error: float


def choose_sample_boxes(plan: Plan, rank: int) -> dict[str, Box]:
    """Choose a block within a rank's part of every output.

    Its position depends on the rank, so that samples of ranks differ.
    """
    # seeded by the rank, so that the same samples can be checked again
    rng = np.random.default_rng(rank)

    def sample(side: range) -> range:
        length = min(SAMPLE_LENGTH, len(side))
        start = int(rng.integers(0, len(side) - length + 1))
        return side[start : start + length]

    boxes = {name: plan.result_box(rank, name) for name in plan.outputs}
    return {
        name: tuple(map(sample, box))
        for name, box in boxes.items()
        if box is not None and all(box)
    }


def compare_samples(
    plan: AnyPlan, read: Read, blocks: Mapping[str, tuple[Box, Array]]
) -> list[Sample]:
    """Compare blocks of outputs, given with their boxes, with the reference."""
    samples = []
    for name, (box, block) in blocks.items():
        expected = _compute_reference(plan, read, name, box)
        scale = float(np.max(np.abs(expected), initial=0.0)) or 1.0
        # relative to the largest entry: single ones may cancel to zero
        error = float(np.max(np.abs(block - expected), initial=0.0)) / scale
        samples.append(Sample(block.size, error))
    return samples


def find_operand_boxes(plan: Plan, output: str, box: Box) -> dict[str, Box]:
    """Return the boxes of operands that a block of an output depends on.

    Raises:
        PlanError: with the rule ``memory``, if they are too large.
    """
    boxes = _find_dependencies(_list_statements(plan), plan, output, box)
    return {name: boxes[name] for name in plan.operands if name in boxes}


def build_check(plan: AnyPlan, samples: Sequence[Sample]) -> BlockCheck:
    """Build the record of the samples of all ranks.

    Raises:
        WrongResultError: if a sample differs by more than the tolerance.
    """
    tolerance = compute_rounding_tolerance(get_inner_plan(plan))
    errors = [sample.error for sample in samples]
    wrong = [error for error in errors if not error <= tolerance]  # not a number, too
    if wrong:
        raise WrongResultError(
            f"{len(wrong)} of {len(errors)} blocks of results differ from the "
            f"reference by up to {max(wrong):.3g} of its largest entry; expected at "
            f"most {tolerance:.3g}. Nothing was recorded"
        )
    n_entries = sum(sample.n_entries for sample in samples)
    return BlockCheck(len(samples), n_entries, tolerance, max(errors, default=0.0))


def compute_rounding_tolerance(plan: Plan) -> float:
    """Compute the tolerance for rounding errors in the longest sum of a plan."""
    kind = np.result_type(plan.dtype, np.float16)
    eps = float(np.finfo(kind if kind == plan.dtype else np.float64).eps)
    n_terms = max(prod(plan.extents[i] for i in group.summed) for group in plan.groups)
    # the bound of rounding errors grows with the number of terms
    return float(min(MAX_TOLERANCE, 64 * eps * max(1, n_terms)))


def _compute_reference(plan: AnyPlan, read: Read, output: str, box: Box) -> Array:
    """Compute a block of a result from the boxes of operands that it depends on."""
    inner = get_inner_plan(plan)
    groups = _list_statements(inner)
    boxes = _find_dependencies(groups, inner, output, box)
    arrays: dict[str, Array] = {
        name: np.asarray(read(name, boxes[name]))
        for name in inner.operands
        if name in boxes
    }
    for k, group in enumerate(groups):
        if group.output.tensor in boxes:
            arrays[group.output.tensor] = _compute_block(plan, k, group, arrays, boxes)
    return arrays[output]


def _list_statements(plan: Plan) -> tuple[Group, ...]:
    """Return the statements of a plan, without the groups of its path."""
    if plan.statements is not None:
        return plan.groups
    einsum = plan.batched_einsum
    one_step = (tuple(range(len(einsum.inputs))),)
    return groups_of(einsum, one_step, plan.extents)


def _find_dependencies(
    groups: Sequence[Group], plan: Plan, output: str, box: Box
) -> dict[str, Box]:
    """Return for each tensor the box that a block of a result depends on.

    Raises:
        PlanError: with the rule ``memory``, if they are too large.
    """
    boxes = {output: box}
    # backwards, so that all readers of a tensor come before its producer
    for group in reversed(groups):
        if group.output.tensor not in boxes:
            continue
        sides = _find_sides(group, boxes, plan.extents)
        for access in group.inputs:
            needed = tuple(sides[i] for i in access.indices)
            present = boxes.get(access.tensor, needed)
            # one box for all readers: slightly more work, but simpler
            boxes[access.tensor] = tuple(map(_join_ranges, present, needed))
    n_bytes = 8 * sum(prod(map(len, box)) for box in boxes.values())
    if n_bytes > (available := get_free_memory_bytes()):
        raise PlanError(
            f"a block of {output} depends on {n_bytes:,} bytes, and {available:,} are "
            "free: it cannot be verified. Record a run with smaller arrays",
            rules=("memory",),
        )
    return boxes


def _join_ranges(range_a: range, range_b: range) -> range:
    """Return a range that contains both."""
    if range_a == range_b:
        return range_a
    return range(min(range_a.start, range_b.start), max(range_a.stop, range_b.stop))


def _find_sides(
    group: Group, boxes: Mapping[str, Box], extents: Mapping[str, int]
) -> dict[str, range]:
    """Return for each index of a statement the values that its output box needs."""
    box = boxes[group.output.tensor]
    sides = dict(zip(group.output.indices, box, strict=True))
    inputs = {i for access in group.inputs for i in access.indices}
    return {i: sides.get(i, range(extents[i])) for i in inputs}


def _compute_block(
    plan: AnyPlan,
    k: int,
    group: Group,
    arrays: Mapping[str, Array],
    boxes: Mapping[str, Box],
) -> Array:
    """Compute the box of a statement's result, in at least double precision."""
    sides = _find_sides(group, boxes, get_inner_plan(plan).extents)
    needed = [tuple(sides[i] for i in access.indices) for access in group.inputs]
    blocks = [
        arrays[name][get_slices(make_relative(box, boxes[name]))]
        for name, box in zip((a.tensor for a in group.inputs), needed, strict=True)
    ]
    if not isinstance(plan, ProgramPlan):
        exact = [block.astype(np.result_type(block, np.float64)) for block in blocks]
        product: Array = compute_with_numpy(group.subscripts, *exact)
        return product
    statement = plan.program.statements[k]
    block = evaluate_block(statement, blocks, needed)
    return block.astype(plan.program.arrays[statement.result].dtype, copy=False)
