"""Contractions by packed tiles, as libraries compute matrix products.

Source: Goto and van de Geijn 2008, van Zee and van de Geijn 2015 for the loops around
a register tile; Springer and Bientinesi 2018 (GETT) for tiles that span several
indices; paper, section 8.
"""

from __future__ import annotations

import loopy as lp

from feinsum.ir import BatchedEinsum
from feinsum.raising import LoopNest
from feinsum.transforms.library.packed.bounded import starts
from feinsum.transforms.library.packed.cost import packed_cost
from feinsum.transforms.library.packed.nest import PackedNest
from feinsum.transforms.library.packed.plan import Tiles, find_roles, make_plan
from feinsum.transforms.library.packed.space import (
    constraint,
    constraint_1,
    proposals,
    space,
    space_1,
)
from feinsum.transforms.primitives import begin
from feinsum.transforms.registry import Parameters, Transform, register
from feinsum.transforms.roles import reuse

__all__ = ["PACKED_CONTRACTION", "suits_packing"]

MIN_REUSE = 16
"""Of einsums for which families without packing are not worth a trial."""


def packed_contraction(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Pack tiles of both operands and multiply them by register tiles.

    Rewrite, for ``ac,cb->ab`` with the vector index b and the register index a::

        for a, b:  out[a,b] = sum(c, A[a,c]*B[c,b])

        for b_tile, a_tile in parallel:
            sums[...] = 0
            for c_tile:
                B_pack[panel,c,v,:] = B(...)          # 0 outside of the array
                A_pack[block,c,r] = A(...)
                for panel, block:                     # r < rows, v < vectors unrolled
                    tile[r,v,:] = sums[panel,block,r,v,:]
                    for c:
                        tile[r,v,:] += A_pack[block,c,r]*B_pack[panel,c,v,:]
                    sums[panel,block,r,v,:] = tile[r,v,:]
            out[...] = sums[...]

    Tiles span as many indices as needed to fill them. If one tile holds the whole sum,
    a finished register tile is stored at once.

    With more than two operands, some are multiplied while packing, others into the
    sums, whichever takes the fewest operations; see :class:`PackedNest`.

    Parameters:
        vector: output index of one operand alone, which is packed on the right; its
            entries are lanes.
        register: output index of the operands packed on the left.
        lanes: entries of a vector.
        vectors: vectors of a register tile.
        rows: rows of a register tile.
        inside: the inner loop over register tiles, ``rows`` or ``columns``.
        width: entries of a tile over the output indices of the right side.
        height: entries of a tile over those of the left side.
        depth: entries of a tile over the summed indices.
        stores: ``cached``, or ``streamed`` past the caches.
    """
    return _packed(t_unit, nest, parameters, is_explicit=True)


def _packed(
    t_unit: lp.TranslationUnit,
    nest: LoopNest,
    parameters: Parameters,
    *,
    is_explicit: bool,
) -> lp.TranslationUnit:
    schedule = begin(t_unit, nest)
    tiles = Tiles.of(parameters)
    roles = find_roles(nest.einsum, tiles.vector, tiles.register)
    assert roles is not None
    plan = make_plan(nest.einsum, schedule.extents, roles, tiles)
    nest_writer = PackedNest(
        schedule,
        plan,
        is_row_inside=parameters["inside"] == "rows",
        is_streamed=parameters["stores"] == "streamed",
        is_explicit=is_explicit,
    )
    return nest_writer.written().t_unit


def packed_contraction_1(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """The same for recipes recorded before ``stores`` existed."""
    return packed_contraction_2(t_unit, nest, {**parameters, "stores": "cached"})


def packed_contraction_2(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """The same for recipes recorded when compilers chose what to hold in registers."""
    return _packed(t_unit, nest, parameters, is_explicit=False)


register(
    Transform(
        "packed_contraction",
        1,
        "operands packed in tiles, as before stores could pass the caches",
        space_1,
        packed_contraction_1,
        constraint_1,
    )
)
register(
    Transform(
        "packed_contraction",
        2,
        "operands packed in tiles, as before vectors were held in registers",
        space,
        packed_contraction_2,
        constraint,
    )
)
PACKED_CONTRACTION = register(
    Transform(
        "packed_contraction",
        3,
        "operands packed in tiles over several indices, multiplied in registers",
        space,
        packed_contraction,
        constraint,
        starts=starts,
        cost=packed_cost,
        proposals=proposals,
    )
)


def suits_packing(einsum: BatchedEinsum) -> bool:
    """Whether only this family is worth a trial."""
    return PACKED_CONTRACTION.fits(einsum) and reuse(einsum) >= MIN_REUSE
