"""Programs that repeat a block: each distinct block is planned once.

Thirty-two layers of a transformer are 32 times the same statements, of which each reads
the result of the one before::

    x0 --[ block 1 ]--> x1 --[ block 2 ]--> x2 --[ block 3 ]--> x3 ...
                     d1                  d2                  d3

Block 1 is planned together with what precedes the first block, and x1 gets some
distribution d1. Block 2 is planned with the request that x1 starts as d1, and its
result gets d2. If d2 is d1, block 3 is the same problem as block 2, and has its
schedules with other names; usually this is so after two or three blocks. To place x1
well, a block is planned together with its successor, whose schedules are dropped.

Tensors that several blocks read start where an earlier block has them. What moves in
all is counted exactly, as for every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from feinsum.distributed.assembly import place_operands, with_schedules
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import get_shape
from feinsum.distributed.plans import Plan
from feinsum.distributed.schedule import GroupSchedule
from feinsum.distributed.statement_graph import Statements

MIN_BLOCK, MIN_REPEATS = 4, 6
"""Minimum number of statements in a block, and of blocks.

About four pairs of blocks are planned, so fewer blocks are planned faster together.
"""

PlanGroups = Callable[[Plan], Plan]
"""Completes a plan without schedules."""


def plan_blocks(bare: Plan, plan_groups: PlanGroups) -> Plan | None:
    """Plan the blocks of a program one after the other.

    Args:
        bare: a plan of statements without schedules.
        plan_groups: plans the statements of a block.

    Returns:
        None if no block is repeated.
    """
    problem = bare.problem
    blocks = find_blocks(problem)
    if not blocks:
        return None
    present = dict(bare.requested_starts)
    planned: dict[Hashable, tuple[GroupSchedule, ...]] = {}
    schedules: list[GroupSchedule] = []
    for k, block in enumerate(blocks):
        # with the next block, because its reads decide where results are best
        window = range(block.start, blocks[min(k + 1, len(blocks) - 1)].stop)
        part = _cut_part(bare, window, present)
        names = _name_alike(part)
        key = _make_key(part, names)
        if key not in planned:
            planned[key] = _rename(plan_groups(part).schedules, names)
        own_names = {common: name for name, common in names.items()}
        chosen = _rename(planned[key], own_names)[: len(block)]
        schedules += chosen
        groups = problem.groups[block.start : block.stop]
        placed = place_operands(problem.dtypes, groups, chosen, problem.extents)
        present = {**placed, **present}
        for group, schedule in zip(groups, chosen, strict=True):
            present[group.output.tensor] = schedule.result
    return with_schedules(bare, schedules)


def find_blocks(problem: Statements) -> list[range]:
    """Return the statements of each block; none if nothing is repeated.

    The first block includes what precedes the repetition, the last one what follows.

    >>> from feinsum.distributed.statement_graph import statements
    >>> lines = [f"x{k + 1}[i] = W{k}[i,j] * x{k}[j]" for k in range(36)]
    >>> shapes = {f"W{k}": (4, 4) for k in range(36)} | {"x0": (4,)}
    >>> [len(block) for block in find_blocks(statements(lines, shapes))]
    [6, 4, 4, 4, 4, 4, 4, 6]
    """
    n = len(problem.groups)
    described = list(_describe_groups(problem))
    for length in range(MIN_BLOCK, n // MIN_REPEATS + 1):
        is_same = [a == b for a, b in zip(described, described[length:], strict=False)]
        first, last = _find_longest_run(is_same)
        # statements in the run equal those one block later
        if last - first < (MIN_REPEATS - 1) * length or 2 * (last - first) < n:
            continue
        end = last + length
        live = _count_live(problem)
        # where the fewest elements pass from block to block
        cut = min(range(first + 1, first + length + 1), key=live.__getitem__)
        cuts = [0, *range(cut + length, end - length + 1, length), n]
        return [range(a, b) for a, b in pairwise(cuts)]
    return []


def _describe_groups(problem: Statements) -> Iterator[Hashable]:
    """Yield for each group what is equal in repeated blocks: no names."""
    producers = {group.output.tensor: k for k, group in enumerate(problem.groups)}
    for number, group in enumerate(problem.groups):
        names = {index: k for k, index in enumerate(group.indices)}
        extents = tuple(problem.extents[index] for index in names)
        terms = []
        for access in group.inputs:
            producer = producers.get(access.tensor)
            # a tensor of an earlier block is as far away in each block
            storage = (
                problem.dtypes.get(access.tensor),
                access.tensor in problem.patterns,
            )
            source = storage if producer is None else number - producer
            terms.append((source, tuple(names[i] for i in access.indices)))
        output = tuple(names[i] for i in group.output.indices)
        yield tuple(terms), output, extents


def _find_longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    """Return start and end of the longest run of true values."""
    best, start = (0, 0), 0
    for k, flag in enumerate([*flags, False]):
        if flag:
            continue
        best = max(best, (start, k), key=lambda run: run[1] - run[0])
        start = k + 1
    return best


def _count_live(problem: Statements) -> list[int]:
    """Return for each border between groups the elements of results that pass it."""
    last_use = problem.last_use
    live = [0] * (len(problem.groups) + 1)
    for number, group in enumerate(problem.groups):
        size = prod(get_shape(group.output, problem.extents))
        for border in range(number + 1, last_use.get(group.output.tensor, 0) + 1):
            live[border] += size
    return live


def _cut_part(bare: Plan, numbers: range, present: Mapping[str, Distribution]) -> Plan:
    """Return a plan of some statements, whose operands are also earlier results.

    Args:
        bare: the plan of all statements, without schedules.
        numbers: the statements.
        present: distributions of what is there before them.
    """
    problem = bare.problem
    groups = problem.groups[numbers.start : numbers.stop]
    results = [group.output.tensor for group in groups]
    read = dict.fromkeys(a.tensor for group in groups for a in group.inputs)
    later = {a.tensor for g in problem.groups[numbers.stop :] for a in g.inputs}
    outputs = tuple(t for t in results if t in later or t in problem.outputs)
    extents = {i: problem.extents[i] for group in groups for i in group.indices}
    dtypes = {
        tensor: problem.dtypes.get(tensor, problem.dtype.str)
        for tensor in read
        if tensor not in results
    }
    nonzeros = {
        tensor: problem.nonzeros[problem.patterns[tensor][0]]
        for tensor in dtypes
        if tensor in problem.patterns
    }
    starts = {tensor: present[tensor] for tensor in dtypes if tensor in present}
    return replace(
        bare,
        statements=Statements(groups, extents, dtypes, outputs, nonzeros),
        starts=starts,
        placed=tuple(starts),
        ends={tensor: bare.ends[tensor] for tensor in outputs if tensor in bare.ends},
    )


def _name_alike(part: Plan) -> Mapping[str, str]:
    """Return a name for every tensor and index: a number in order of first use."""
    tensors = dict.fromkeys(a.tensor for group in part.groups for a in group.accesses)
    indices = dict.fromkeys(i for group in part.groups for i in group.indices)
    common = {tensor: f"t{k}" for k, tensor in enumerate(tensors)}
    return common | {index: f"i{k}" for k, index in enumerate(indices)}


def _make_key(part: Plan, names: Mapping[str, str]) -> Hashable:
    """Return a key that is equal for parts that differ only in names."""
    problem = part.problem
    groups = tuple(
        tuple((names[a.tensor], *(names[i] for i in a.indices)) for a in group.accesses)
        for group in problem.groups
    )
    named = [
        frozenset((names[name], value) for name, value in values.items())
        for values in (
            problem.extents,
            problem.dtypes,
            problem.nonzeros,
            part.starts,
            part.ends,
        )
    ]
    return groups, frozenset(names[t] for t in problem.outputs), *named


def _rename(
    schedules: Sequence[GroupSchedule], names: Mapping[str, str]
) -> tuple[GroupSchedule, ...]:
    """Return schedules with other names of indices."""
    return tuple(
        replace(
            schedule,
            axes=tuple(axis and names[axis] for axis in schedule.axes),
            loop=schedule.loop
            and replace(schedule.loop, index=names[schedule.loop.index]),
        )
        for schedule in schedules
    )
