"""Pointwise products, row reductions and anything else: blocks of one output index.

For ``ij->i`` with blocks of 64 rows, work-group g computes out[64*g:64*g + 64] with
plain loops, which the compiler vectorizes::

    g = 0   rows   0 ..  63 of A  -->  out[0:64]
        1   rows  64 .. 127       -->  out[64:128]
        ...
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import loopy as lp
from pymbolic import primitives as p

from feinsum.ir import BatchedEinsum, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.library.packed.packed_contraction import suits_packing
from feinsum.transforms.library.streaming_cost import (
    count_sum_cycles,
    count_vector_cycles,
    predict_streaming_s,
)
from feinsum.transforms.primitives import (
    Schedule,
    begin,
    split,
    stage_operand,
    with_hints,
)
from feinsum.transforms.primitives.compiler_hints import SUMS, VECTORS, list_sums
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import count_points, get_typical_extent, is_long


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Distribute blocks of one output index over the grid.

    Rewrite, for ``ij->i``::

        for i:  out[i] = sum(j, A[i,j])

        for i_outer in parallel:
            for i_inner < min(block, N - block*i_outer):
                out[i] = sum(j, A[i,j])

    The loops inside a block stay plain, and are left to the compiler's vectorizer.

    Parameters:
        index: the output index.
        block: its values per work-group.
    """
    schedule = begin(t_unit, nest)
    iname = schedule.inames[parameters["index"]]
    size = parameters["block"]
    return split(schedule, iname, size, outer_tag="g.0")[0].t_unit


def apply_on_cpus(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Distribute blocks of one output index over the grid, and evaluate functions once.

    Rewrite, for ``ij,kj->ik`` with a function f for the first operand::

        for i, k:  out[i,k] = sum(j, f(i,j)*B[k,j])

        for i_outer in parallel:
            for i_inner < min(block, N - block*i_outer):
                for j:  f_tile[j] = f(i,j)
                for k:  out[i,k] = sum(j, f_tile[j]*B[k,j])

    Parameters:
        index: the output index.
        block: its values per work-group.
        sums: ``in_order`` of the loops, or in ``any_order``.
        vectors: which the compiler makes of the loops, ``usual`` or ``widest``.
    """
    schedule, index = begin(t_unit, nest), parameters["index"]
    size = parameters["block"]
    schedule, block = split(schedule, schedule.inames[index], size, outer_tag="g.0")
    for name in _find_evaluated_ahead(schedule, index):
        schedule, _ = stage_operand(schedule, name, (block.outer, block.inner))
    sums, vectors = parameters["sums"], parameters["vectors"]
    return with_hints(schedule, sums=sums, vectors=vectors).t_unit


def _find_evaluated_ahead(schedule: Schedule, index: str) -> Names:
    """Return the operands to evaluate ahead because several output entries need them.

    There are none if all operands are arrays, which are cheap to read again in place.
    If some are functions, arrays get tiles, too: compilers optimize loops best that
    read tiles only.
    """
    shared = tuple(n for n in schedule.operands if _is_shared(schedule, n, index))
    rules = [schedule.kernel.substitutions[schedule.rules[name]] for name in shared]
    has_function = any(not isinstance(rule.expression, p.Subscript) for rule in rules)
    return shared if has_function else ()


def _is_shared(schedule: Schedule, name: str, index: str) -> bool:
    """Return whether several entries of the output read the same few entries.

    Diagonals are excluded, since a tile has one axis for each index.
    """
    span = schedule.spans[name]
    if len({*span}) < len(span):
        return False
    inside = prod(get_typical_extent(schedule.extents[i]) for i in span if i != index)
    is_small = inside * schedule.dtypes[name].itemsize <= cpu.FUNCTION_TILE_BYTES
    return is_small and index in span and not {*schedule.output} <= {*span}


def space(workload: Workload) -> Space | None:
    """Offer any einsum with an output index that is worth distributing."""
    einsum = workload.einsum
    long = [i for i in einsum.output if is_long(einsum.extents[i])]
    long.sort(key=lambda i: -get_typical_extent(einsum.extents[i]))
    table: Table = {"index": tuple(long), "block": (64, 8, 16, 512, 8192)}
    return Space(table, is_searched=not suits_packing(einsum)) if long else None


def space_on_cpus(workload: Workload) -> Space | None:
    plain = space(workload)
    if plain is None:
        return None
    *outer, last = workload.einsum.output
    hints = {"sums": list_sums(workload.einsum), "vectors": VECTORS}
    table = {**plain, **hints}
    # blocks of the last index would cut lines of memory into short pieces
    indices = tuple(i for i in plain["index"] if i != last or not outer)
    return replace(plain, table=table, candidates={**table, "index": indices})


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel) -> float:
    """Predict the seconds; the compiler interchanges summed loops as is best."""
    most_bytes = 64 if parameters["vectors"] == VECTORS[1] else 32
    summed = einsum.summation_indices
    # Without a sum, the last axis of the output is the innermost loop.
    if not summed:
        cycles = count_vector_cycles(
            einsum, einsum.output[-1], machine, most_bytes=most_bytes, step=1
        )
    else:
        cycles = min(
            count_sum_cycles(einsum, inner, machine, most_bytes=most_bytes)
            for inner in summed
        )
    # in order, every addition waits for the previous one, however wide the vectors are
    if summed and parameters["sums"] != SUMS[1]:
        cycles = max(cycles, cpu.CHAIN_CYCLES * count_points(einsum, einsum.indices))
    index, block = parameters["index"], parameters["block"]
    n_groups = max(1.0, count_points(einsum, (index,)) / block)
    return predict_streaming_s(einsum, cycles, machine, n_groups=n_groups)


ROWWISE = register(
    Transform(
        "rowwise",
        1,
        "blocks of one output index over the grid, plain loops inside",
        space,
        apply,
    )
)
ROWWISE_ON_CPUS = register(
    replace(
        ROWWISE,
        version=2,
        summary="rowwise@1, functions evaluated once, with hints to the compiler",
        space=space_on_cpus,
        apply=apply_on_cpus,
        devices=frozenset({"cpu"}),
        cost=cost,
    )
)
