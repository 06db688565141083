"""Sums side by side: work-items with neighbouring results read neighbouring terms."""

from __future__ import annotations

import loopy as lp

from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine
from feinsum.transforms.gpu.cost import WARP
from feinsum.transforms.gpu.grid import GPUS, MOST_ITEMS, has_plain_dtype, parts_of
from feinsum.transforms.gpu.rows import shared_sums, shared_sums_s
from feinsum.transforms.registry import (
    Parameters,
    Table,
    Transform,
    register,
    space_of_parts,
)
from feinsum.transforms.roles import number, text


def gpu_columns(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Deal the terms of neighbouring sums out to columns of work-items.

    Rewrite, for ``ij->j`` with the summed index i::

        for j:  out[j] = sum(i, A[i,j])

        for group, y, x in parallel, j = columns*group + x:
            part[y,x] = sum(step, A[y + items*step, j])
            (barrier)
            for half in items/2, ..., 1:  if y < half:
                part[y,x] = part[y,x] + part[y + half, x]
                (barrier)
            if y == 0:  out[j] = part[0,x]

    Parameters:
        summed: the index that is dealt out.
        items: work-items of a column, a power of two.
        columns: of a work-group.
    """
    items, columns = number(parameters, "items"), number(parameters, "columns")
    summed = text(parameters, "summed")
    return shared_sums(t_unit, nest, summed, items, columns, (1, 0))


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    summed = einsum.summation_indices
    fits = has_plain_dtype(einsum) and summed and einsum.output
    if not fits or parts_of(einsum.output, einsum.extents) is None:
        return None
    return {
        "summed": tuple(sorted(summed)),
        "items": (8, 16, 32, 4),
        "columns": (32, 64, 128),
    }


def _constraint(_workload: Workload, parameters: Parameters) -> str | None:
    n_items = number(parameters, "items") * number(parameters, "columns")
    if n_items > MOST_ITEMS:
        return f"{n_items} work-items in a group, of {MOST_ITEMS}"
    return None


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """A warp reads neighbouring columns; a group has a part of each term of a few."""
    parts, summed = parts_of(einsum.output, einsum.extents), text(parameters, "summed")
    assert parts is not None
    first = parts[0]
    lanes = [first.at(k) for k in range(min(WARP, first.number()))]
    items, columns = number(parameters, "items"), number(parameters, "columns")
    return shared_sums_s(einsum, machine, summed, items, columns, lanes)


GPU_COLUMNS = register(
    Transform(
        "gpu_columns",
        1,
        "neighbouring sums, each shared by a column of the group",
        space_of_parts(_space, _constraint, proposes_all=True),
        gpu_columns,
        _cost,
        devices=GPUS,
    )
)
