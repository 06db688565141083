"""Pointwise products, row reductions and all else: blocks of one output index."""

from __future__ import annotations

import loopy as lp

from feinsum.ir import BatchedEinsum
from feinsum.raising import LoopNest
from feinsum.transforms.library.packed_contraction import suits_packing
from feinsum.transforms.library.roles import is_long, number, text, typical
from feinsum.transforms.primitives import begin, split
from feinsum.transforms.registry import Parameters, Space, Transform, register

__all__ = ["ROWWISE"]


def rowwise(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Distribute blocks of one output index over the grid.

    Rewrite, for ``ij->i``::

        for i:  out[i] = sum(j, A[i,j])

        for i_outer in parallel:
            for i_inner < min(block, N - block*i_outer):
                out[i] = sum(j, A[i,j])

    The loops inside of a block stay plain, and are left to the vectorizer of the
    OpenCL compiler: these kernels are bound by memory bandwidth.

    Parameters:
        index: the output index.
        block: its values per work-group.
    """
    schedule = begin(t_unit, nest)
    iname = schedule.inames[text(parameters, "index")]
    schedule, _ = split(schedule, iname, number(parameters, "block"), outer_tag="g.0")
    return schedule.t_unit


def _space(einsum: BatchedEinsum) -> Space | None:
    """Any einsum with an output index that is worth distributing."""
    long = [i for i in einsum.output if is_long(einsum.extents[i])]
    long.sort(key=lambda i: -typical(einsum.extents[i]))
    if not long:
        return None
    return {"index": tuple(long), "block": (64, 8, 16, 512, 8192)}


ROWWISE = register(
    Transform(
        "rowwise",
        1,
        "blocks of one output index over the grid, plain loops inside",
        _space,
        rowwise,
        is_searched=lambda einsum: not suits_packing(einsum),
    )
)
