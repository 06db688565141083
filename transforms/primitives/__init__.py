"""Primitives: one loop-nest rewrite each, shown before and after."""

from feinsum.transforms.primitives.compiler_hints import with_hints
from feinsum.transforms.primitives.domains import (
    factor_domains,
    hoist_inames,
    join_domains,
    separate_inames,
)
from feinsum.transforms.primitives.merge_operands import merge_operands
from feinsum.transforms.primitives.peel import (
    SplitLoops,
    even_block,
    peel_remainder,
    split,
)
from feinsum.transforms.primitives.schedule import Schedule, begin
from feinsum.transforms.primitives.stage_operand import (
    StagedTile,
    stage_accumulator,
    stage_operand,
    vectorize_last_axis,
)
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
