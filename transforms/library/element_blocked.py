"""Batches over one long index: operators of discontinuous Galerkin codes.

For ``ij,ej->ei`` with 8 lanes, each lane of a vector is an element. A work-group copies
u of its elements into private memory, transposed: entry j of eight elements is then one
vector. D is read entry by entry, and each entry multiplies a whole vector::

    u[e,j]  in memory              u_tile[j,:]  in private memory
    e: 0   j0 j1 j2 ...            j: 0   e0 e1 e2 e3 e4 e5 e6 e7
       1   j0 j1 j2 ...   -->         1   e0 e1 e2 e3 e4 e5 e6 e7
       ..                             ..
                                   acc[i,:] += D[i,j] * u_tile[j,:]

Source: paper, section 8.1 (loop permutation, hoisting, tiling of the reference
matrices and of the elements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import loopy as lp

from feinsum.contraction.paths import find_pairwise_path
from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.primitives import (
    Schedule,
    SplitLoops,
    StagedTile,
    begin,
    even_block,
    factor_domains,
    join_domains,
    merge_operands,
    peel_remainder,
    split,
    stage_accumulator,
    stage_operand,
)
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import (
    count_points,
    find_element_indices,
    fit_lanes,
    get_typical_extent,
    has_real_dtype,
)


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Vectorize over the elements, all other indices being short.

    Rewrite, for the gradient ``xre,rij,ej->xei``, ``lanes`` elements at a time::

        for x, e, i:  out[x,e,i] = sum((r,j), J[x,r,e]*D[r,i,j]*u[e,j])

        for e_group in parallel:                  # lanes*vectors elements each
            for e_vector < vectors:
                J_tile[x,r,:], u_tile[j,:] = ...
                for r, i_outer:                   # t := sum(j, D*u)
                    acc[i_inner,:] = 0
                    for j, i_inner:  acc[i_inner,:] += D[r,i,j]*u_tile[j,:]
                    t_tile[r,i,:] = acc[i_inner,:]
                for x, i_outer:                   # out = sum(r, J*t)
                    (likewise)

    Parameters:
        element: the long index.
        lanes: elements of a vector.
        vectors: vectors of elements of a work-group.
        rows: length of the register block over the longest free index.
        stage_matrices: copy operands without elements to private memory, once
            per work-group.
    """
    element = parameters["element"]
    lanes = fit_lanes(nest.extent(element), parameters["lanes"])
    if lanes == 1:
        raise TransformError(f"index {element!r} is too short for vectors")
    schedule = join_domains(begin(t_unit, nest))
    inputs = schedule.operands
    schedule, products = _contract_cheaply(schedule, element, lanes)
    size = lanes * parameters["vectors"]
    schedule, group = split(schedule, schedule.inames[element], size, outer_tag="g.0")
    schedule = peel_remainder(schedule, element, group, lanes, (group.outer,))
    schedule, vector = split(schedule, group.inner, lanes, inner_tag="vec")
    loops = _Loops(element, group, vector)
    # a product is staged before the products that it reads: staging it makes the loops
    # in which these are read
    schedule, tiles = _stage(schedule, products[::-1], loops, "vec")
    wanted = [
        name
        for name in inputs
        if parameters["stage_matrices"] or element in schedule.spans[name]
    ]
    schedule, _ = _stage(schedule, wanted, loops, "unr")
    # Loopy projects whole domains: factors take a fraction of the time
    schedule = factor_domains(schedule, group.outer, (vector.outer,))
    return _accumulate(schedule, tiles, loops, parameters["rows"]).t_unit


@dataclass(frozen=True)
class _Loops:
    """The loops that the long index was split into."""

    element: str
    group: SplitLoops
    vector: SplitLoops


def _contract_cheaply(
    schedule: Schedule, element: str, lanes: int
) -> tuple[Schedule, list[str]]:
    """Contract pairs in the order of fewest operations, except for the last."""
    extents = {i: get_typical_extent(extent) for i, extent in schedule.extents.items()}
    # count the elements of one vector: with all of them, steps that multiply operands
    # with elements would always come last
    extents[element] = lanes
    path = find_pairwise_path(schedule.terms, schedule.output, tuple(extents.items()))
    products: list[str] = []
    for first, second in path[:-1]:
        schedule, names = merge_operands(schedule, first, second)
        products += names
    return schedule, products


def _stage(
    schedule: Schedule, operands: list[str], loops: _Loops, lane_tag: str
) -> tuple[Schedule, dict[str, StagedTile]]:
    """Stage a tile of each operand, per vector of elements or per work-group."""
    tiles = {}
    for name in operands:
        has_element = loops.element in schedule.spans[name]
        group, vector = loops.group.outer, loops.vector.outer
        schedule, tiles[name] = stage_operand(
            schedule,
            name,
            (group, vector) if has_element else (group,),
            lane=loops.element if has_element else None,
            lane_tag=lane_tag,
        )
    return schedule, tiles


def _accumulate(
    schedule: Schedule, tiles: dict[str, StagedTile], loops: _Loops, rows: int
) -> Schedule:
    """Sum the products and the results in registers."""
    for name, tile in tiles.items():
        free = {i: iname for i, iname in tile.inames.items() if i != loops.element}
        schedule, private = _split_register_block(schedule, free, rows)
        schedule = stage_accumulator(
            schedule,
            tile.instruction,
            private,
            schedule.dtypes[name],
            lane=tile.inames.get(loops.element),
            store_tag="vec",
        )
    free = {i: schedule.inames[i] for i in schedule.output if i != loops.element}
    schedule, private = _split_register_block(schedule, free, rows)
    for k, insn_id in enumerate(schedule.instructions):
        schedule = stage_accumulator(
            schedule,
            insn_id,
            private,
            schedule.get_row_dtype(k),
            lane=loops.vector.inner,
        )
    return schedule


def _split_register_block(
    schedule: Schedule, free: Mapping[str, str], rows: int
) -> tuple[Schedule, tuple[str, ...]]:
    """Split the longest of the ``free`` inames, and unroll the inner loop."""
    fixed = {i: n for i in free if isinstance(n := schedule.extents[i], int)}
    if not fixed:
        return schedule, ()
    longest = max(fixed, key=fixed.__getitem__)
    schedule, block = split(
        schedule, free[longest], even_block(fixed[longest], rows), inner_tag="unr"
    )
    return schedule, (block.inner,)


def space(workload: Workload) -> Space | None:
    """Fit einsums with one long output index, if all tiles together are small."""
    einsum = workload.einsum
    if not has_real_dtype(einsum):
        return None
    elements = tuple(i for i in find_element_indices(einsum) if _fits(einsum, i))
    if not elements:
        return None
    table: Table = {
        "element": elements,
        "lanes": (8, 4),
        "vectors": (16, 4, 64),
        "rows": (4, 10, 5),
        "stage_matrices": (False, True),
    }
    return Space(table, is_searched=einsum.batch_size <= cpu.MAX_BATCH_ROWS)


def _fits(einsum: BatchedEinsum, element: str) -> bool:
    tiles = [tuple(i for i in term if i != element) for term in einsum.inputs]
    tiles.append(tuple(i for i in einsum.output if i != element))
    n_entries = sum(count_points(einsum, tile) for tile in set(tiles))
    return n_entries <= cpu.ELEMENT_TILE_ENTRIES


ELEMENT_BLOCKED = register(
    Transform(
        "element_blocked",
        1,
        "short contractions over many elements, vectorized over the elements",
        space,
        apply,
    )
)
