"""Blocks: consecutive stages that run together for some values of shared indices.

The scores of attention have tokens times tokens entries. If they are computed head by
head and a few rows at a time, they stay in the caches from the first product through
the softmax to the second product, and are never stored as a whole::

    for each head, for each block of rows s:
        scores = Q[s] @ K.T                  a few rows, in the cache
        weights = softmax(scores)
        result[s] = weights @ V

Source: Dao and others 2022 (attention in tiles that stay in fast memory).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.programs.fusion import Fusion, find_fusions
from feinsum.programs.stages import (
    Stage,
    find_common_cuts,
    list_outputs,
    list_stages,
    make_stage,
)

Box = Mapping[str, slice]
"""Values of some indices of a statement."""

BLOCK_BYTES = 1 << 22
"""Maximum bytes of the largest array in a block.

Several such arrays fit into a last-level cache, and kernels on them take about a
millisecond, ten times as long as a call.
"""

MIN_BLOCK_BYTES = 1 << 18
"""Bytes of the largest array below which a block is not worth another thread."""

BLOCKS = 4
"""Number of blocks for each thread, so that threads finish at about the same time."""

MIN_ROWS = 64
"""Minimum length of a block along an index that an operand of a product lacks.

Products of fewer rows are slow, because they read the other operand too often.
"""

STATEMENT_S = 1.5e-5
"""Overhead of a statement of a block, in seconds."""

BYTES_PER_S = 1e10
"""Bandwidth of memory."""

CACHED_BYTES_PER_S = 2e10
"""Bandwidth of caches."""

Sizes = Mapping[str, int]


class BlockCut(NamedTuple):
    """An index that is partitioned.

    Attributes:
        names: its name in every statement, by result.
        length: number of its values in one block.
        extent: number of all its values.
    """

    names: Mapping[str, str]
    length: int
    extent: int


@dataclass(frozen=True)
class FusedStages:
    """Stages that run together.

    Attributes:
        stages: the stages, in order.
        cuts: the partitioned indices; empty for a stage that runs as a whole.
        outputs: the results that are read after the block, or are outputs.
        fusion: the functional batched einsum that the stages form, if any.
    """

    stages: tuple[Stage, ...]
    cuts: tuple[BlockCut, ...] = ()
    outputs: tuple[str, ...] = ()
    fusion: Fusion | None = None

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(
            statement for stage in self.stages for statement in stage.statements
        )

    def list_spent(self, k: int, owned: Iterable[str] = ()) -> frozenset[str]:
        """Return the results and owned arrays that no stage after stage ``k`` reads."""
        # the outputs outlive the block
        results = {statement.result for statement in self.statements}
        read_later = {name for stage in self.stages[k + 1 :] for name in stage.operands}
        return frozenset({*results, *owned} - read_later - {*self.outputs})

    def boxes(self) -> Iterator[tuple[slice, ...]]:
        """Yield the values of the partitioned indices, block by block."""
        yield from product(
            *(
                [slice(low, min(low + n, extent)) for low in range(0, extent, n)]
                for _, n, extent in self.cuts
            )
        )

    def box_of(self, result: str, values: Sequence[slice]) -> Box:
        """Return the values of a statement's indices in one of :meth:`boxes`."""
        names = (cut.names[result] for cut in self.cuts)
        return dict(zip(names, values, strict=True))


def list_blocks(
    program: Program, sizes: Sizes, n_threads: int = 1
) -> tuple[FusedStages, ...]:
    """Group the stages of a program into blocks where that is predicted to be faster.

    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.macros import attention
    >>> p = program()
    >>> _ = attention(p, *(p.input(name, (512, 32, 64)) for name in "QKV"))
    >>> (block,) = list_blocks(p.build(), {})
    >>> [(cut.extent, cut.length) for cut in block.cuts], block.outputs
    ([(32, 2), (512, 512)], ('r5',))
    """
    return _choose_blocks(program, tuple(sorted(sizes.items())), n_threads)


@lru_cache(maxsize=64)
def _choose_blocks(
    program: Program, sizes: tuple[tuple[str, int], ...], n_threads: int
) -> tuple[FusedStages, ...]:
    """Choose blocks first, then fusions among the statements outside of blocks."""
    values = dict(sizes)
    blocks = [
        statement
        for block in _group_stages(program, values, n_threads)
        for statement in (_dissolve(program, block, values) or [block])
    ]
    free = [
        statement
        for block in blocks
        if not block.cuts
        for statement in block.statements
    ]
    fusions = find_fusions(program, free, values)
    return tuple(_with_fusions(program, blocks, fusions))


def _dissolve(program: Program, block: FusedStages, sizes: Sizes) -> list[FusedStages]:
    """Split a block into its stages, if fusions save more; else return none."""
    # a stage that runs as a whole is not a block
    if not block.cuts:
        return []
    fusions = find_fusions(program, block.statements, sizes)
    saved = sum(fusion.saved_bytes for fusion in fusions)
    # a block saves a write and a read of each result that passes between its stages
    if saved < 2 * count_inner_bytes(program, block, sizes):
        return []
    return [*map(_wrap_stage, block.stages)]


def count_inner_bytes(program: Program, block: FusedStages, sizes: Sizes) -> int:
    """Return the bytes of all results that pass between stages of a block."""
    return sum(
        program.n_bytes(name, sizes)
        for stage in block.stages
        for name in stage.outputs
        if name not in block.outputs
    )


def _with_fusions(
    program: Program, blocks: Sequence[FusedStages], fusions: Sequence[Fusion]
) -> Iterator[FusedStages]:
    """Replace the last statement of each fusion by the fusion, and drop its others."""
    fused, by_last_statement = set[str](), {}
    for fusion in fusions:
        results = {statement.result for statement in fusion.statements}
        ordered = [x for x in program.statements if x.result in results]
        # one stage after the other computes the same
        stages = tuple(make_stage(program, [statement]) for statement in ordered)
        block = FusedStages(stages, outputs=fusion.results, fusion=fusion)
        by_last_statement[ordered[-1].result] = block
        fused |= results
    for block in blocks:
        if not any(statement.result in fused for statement in block.statements):
            yield block
            continue
        unfused: list[Statement] = []
        for statement in block.statements:
            if statement.result not in fused:
                unfused.append(statement)
            elif statement.result in by_last_statement:
                if unfused:
                    yield _wrap_stage(make_stage(program, unfused))
                    unfused = []
                yield by_last_statement[statement.result]
        if unfused:
            yield _wrap_stage(make_stage(program, unfused))


def _wrap_stage(stage: Stage) -> FusedStages:
    return FusedStages((stage,), outputs=stage.outputs)


def _group_stages(
    program: Program, sizes: Sizes, n_threads: int
) -> tuple[FusedStages, ...]:
    """Return the grouping of consecutive stages that saves the most."""
    stages = list_stages(program)
    best: list[tuple[float, tuple[FusedStages, ...]]] = [(0.0, ())]
    for end in range(1, len(stages) + 1):
        last_stage = stages[end - 1]
        saved, grouping = best[end - 1]
        candidate = saved, (*grouping, _wrap_stage(last_stage))
        # dynamic programming over the position where the last block ends
        for begin in range(end - 1):
            block = _make_block(program, stages[begin:end], sizes, n_threads)
            if block is None:
                continue
            total = best[begin][0] + _estimate_saved_s(program, block, sizes)
            if total > candidate[0]:
                candidate = total, (*best[begin][1], block)
        best.append(candidate)
    return best[-1][1]


def _make_block(
    program: Program, stages: Sequence[Stage], sizes: Sizes, n_threads: int
) -> FusedStages | None:
    """Cut stages along all indices that they share; None if that saves nothing."""
    statements = [statement for stage in stages for statement in stage.statements]
    outputs = list_outputs(program, statements)
    cuts = [*find_common_cuts(statements)]
    # a block whose inner results are all stored saves no traffic
    if not cuts or all(name in outputs for stage in stages for name in stage.outputs):
        return None
    first_result = statements[0].result
    first_extents = program.extents_at(statements[0], sizes)
    extents = [first_extents[cut[first_result]] for cut in cuts]
    if 0 in extents:
        return None
    is_free = [_is_free(statements, cut) for cut in cuts]
    inner = [name for stage in stages for name in stage.outputs if name not in outputs]
    largest = max(1, *(program.n_bytes(name, sizes) for name in inner))
    # as many blocks as keep all threads at work
    share = max(MIN_BLOCK_BYTES, largest // (BLOCKS * n_threads))
    block_cuts = []
    # indices that cost nothing to cut come first
    for k in sorted(range(len(cuts)), key=lambda k: not is_free[k]):
        fitting = max(1, min(BLOCK_BYTES, share) * extents[k] // largest)
        # see MIN_ROWS
        min_length = 1 if is_free[k] else min(MIN_ROWS, extents[k])
        length = min(extents[k], max(min_length, fitting))
        largest = max(1, largest * length // extents[k])
        block_cuts.append(BlockCut(cuts[k], length, extents[k]))
    return FusedStages(tuple(stages), tuple(block_cuts), outputs)


def _is_free(statements: Sequence[Statement], cut: Mapping[str, str]) -> bool:
    """Return whether every operand has the index, so that none is read repeatedly."""
    return all(
        cut[statement.result] in term
        for statement in statements
        for term in statement.inputs
    )


def _estimate_saved_s(program: Program, block: FusedStages, sizes: Sizes) -> float:
    """Estimate the seconds that a block saves.

    Results that stay in caches save memory traffic; data that blocks read again, and
    the overhead of their statements, cost time.
    """
    saved = 2 * count_inner_bytes(program, block, sizes)
    counts = [-(-cut.extent // cut.length) for cut in block.cuts]
    extra_bytes = 0
    for statement in block.statements:
        for name, term in statement.accesses:
            # an operand without the index is read once for each block
            lacking = [
                count
                for cut, count in zip(block.cuts, counts, strict=True)
                if cut.names[statement.result] not in term
            ]
            extra_bytes += (prod(lacking) - 1) * program.n_bytes(name, sizes)
    n_calls = prod(counts) * len(block.statements)
    return (
        saved / BYTES_PER_S - extra_bytes / CACHED_BYTES_PER_S - n_calls * STATEMENT_S
    )
