"""Primitives: one loop-nest rewrite each, shown before and after."""

from feinsum.transforms.primitives.compiler_hints import with_hints
from feinsum.transforms.primitives.loops import (
    SplitLoops,
    even_block,
    factor_domains,
    hoist_inames,
    join_domains,
    peel_remainder,
    separate_inames,
    split,
)
from feinsum.transforms.primitives.operands import (
    StagedTile,
    merge_operands,
    stage_accumulator,
    stage_operand,
    vectorize_last_axis,
)
from feinsum.transforms.primitives.schedule import Schedule, begin
from feinsum.transforms.primitives.write_nest import LoopRange, NestWriter

__all__ = [
    "LoopRange",
    "NestWriter",
    "Schedule",
    "SplitLoops",
    "StagedTile",
    "begin",
    "even_block",
    "factor_domains",
    "hoist_inames",
    "join_domains",
    "merge_operands",
    "peel_remainder",
    "separate_inames",
    "split",
    "stage_accumulator",
    "stage_operand",
    "vectorize_last_axis",
    "with_hints",
]
