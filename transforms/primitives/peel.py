"""Loop splitting, and peeling, which gives the remainder a loop nest of its own.

Source: Loopy's ``split_iname``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl
import loopy as lp

from feinsum.ir import Extent
from feinsum.raising import names_of
from feinsum.transforms.primitives.domains import (
    hoist_inames,
    intersect_sets,
    separate_inames,
)
from feinsum.transforms.primitives.schedule import Names, Schedule


def peel_remainder(
    schedule: Schedule, index: str, block: SplitLoops, tile: int, shared: Sequence[str]
) -> Schedule:
    """Move the iterations after the last full tile to a separate nest.

    Later steps rewrite only the first nest. All its tiles are full, so it needs no
    masks.

    Rewrite, with F for ``N//tile*tile``::

        for g, s, others:  out[size*g + s] = f(size*g + s)

        for g:
            for s while size*g + s < F, others:
                out[size*g + s] = f(size*g + s)
            for s' from F - size*g, others':
                out[size*g + s'] = f(size*g + s')

    Args:
        schedule: the schedule.
        index: the index that was split into ``block``.
        block: the loops of the split.
        tile: length of a tile.
        shared: inames, such as the grid's, of which both nests share the loop, so that
            the size of the grid has a closed form.
    """
    extent = schedule.extents[index]
    full = _format_full_extent(extent, tile)
    if full == str(extent):
        return schedule
    # Loopy cannot infer that an argument is not negative
    if not isinstance(extent, int):
        schedule = schedule.with_unit(lp.assume(schedule.t_unit, f"{extent} >= 0"))
    # the size of the grid then has a closed form, whatever bounds the nests inside
    schedule = hoist_inames(schedule, shared)
    schedule, copies = _with_copied_rows(schedule)
    schedule, renamed = _with_own_inames(schedule, copies, shared)
    remainder_iname = renamed[block.inner]
    schedule = _constrain_domain(
        schedule, block.inner, block.outer, f"{block.position()} < {full}", extent
    )
    return _constrain_domain(
        schedule,
        remainder_iname,
        block.outer,
        f"{block.position(remainder_iname)} >= {full}",
        extent,
    )


def _format_full_extent(extent: Extent, tile: int) -> str:
    """Return the number of iterations in full tiles, in isl's syntax."""
    if isinstance(extent, int):
        return str(extent // tile * tile)
    return f"{tile}*floor({extent}/{tile})"


def _with_copied_rows(schedule: Schedule) -> tuple[Schedule, Names]:
    """Add a copy of every row; with its rules expanded, no later step rewrites it."""
    kernel = schedule.kernel
    unused = kernel.get_instruction_id_generator()
    ids = {i: unused(f"{i}_remainder") for i in schedule.instructions}
    rows = {i: _without_order(kernel.id_to_insn[i], copy) for i, copy in ids.items()}
    copies = [
        _without_order(kernel.id_to_insn[i].copy(id=copy), i) for i, copy in ids.items()
    ]
    instructions = [rows.get(insn.id, insn) for insn in kernel.instructions]
    schedule = schedule.with_kernel(instructions=[*instructions, *copies])
    within = _match_any(tuple(ids.values()))
    return schedule.with_unit(lp.expand_subst(schedule.t_unit, within=within)), tuple(
        ids.values()
    )


def _without_order(insn: lp.InstructionBase, other_id: str) -> lp.InstructionBase:
    """Declare that a row and its copy write distinct entries; Loopy checks both."""
    return insn.copy(no_sync_with=frozenset({*insn.no_sync_with, (other_id, "any")}))


def _with_own_inames(
    schedule: Schedule, copies: Names, shared: Sequence[str]
) -> tuple[Schedule, dict[str, str]]:
    """Give the copies inames of their own, except for the shared ones."""
    kernel = schedule.kernel
    used = {
        iname
        for insn_id in copies
        for iname in kernel.id_to_insn[insn_id].reduction_inames()
        | kernel.id_to_insn[insn_id].within_inames
    }
    renamed = {
        iname: schedule.fresh(f"{iname}_remainder")
        for iname in sorted(used - set(shared))
    }
    schedule = schedule.with_unit(
        lp.duplicate_inames(
            schedule.t_unit,
            tuple(renamed),
            new_inames=list(renamed.values()),
            within=_match_any(copies),
        )
    )
    return separate_inames(schedule, tuple(renamed.values())), renamed


def _constrain_domain(
    schedule: Schedule, iname: str, outer: str, condition: str, extent: Extent
) -> Schedule:
    """Intersect the domain of ``iname`` with a condition in isl's syntax."""
    params = ", ".join([outer, *sorted(names_of(extent))])
    allowed = isl.BasicSet(f"[{params}] -> {{ [{iname}] : {condition} }}")
    domains = list(schedule.kernel.domains)
    home = schedule.kernel.get_home_domain_index(iname)
    domains[home] = intersect_sets(domains[home], allowed)
    return schedule.with_kernel(domains=domains)


def _match_any(instructions: Names) -> str:
    return " or ".join(f"id:{insn_id}" for insn_id in instructions)


@dataclass(frozen=True)
class SplitLoops:
    """The loops of an index that was split: ``size*outer + inner``."""

    outer: str
    inner: str
    size: int

    def position(self, inner: str | None = None) -> str:
        """Return the index in isl's syntax, with another inner iname if given."""
        return f"{self.size}*{self.outer} + {inner or self.inner}"


def split(
    schedule: Schedule,
    iname: str,
    size: int,
    *,
    outer_tag: str | None = None,
    inner_tag: str | None = None,
) -> tuple[Schedule, SplitLoops]:
    """Split a loop into blocks of ``size`` iterations.

    Rewrite::

        for i < N:  f(i)

        for i_outer < ceil(N/size):
            for i_inner < min(size, N - size*i_outer):  f(size*i_outer + i_inner)
    """
    block = SplitLoops(
        schedule.fresh(f"{iname}_outer"), schedule.fresh(f"{iname}_inner"), size
    )
    return schedule.with_unit(
        lp.split_iname(
            schedule.t_unit,
            iname,
            size,
            outer_iname=block.outer,
            inner_iname=block.inner,
            outer_tag=outer_tag,
            inner_tag=inner_tag,
        )
    ), block


def even_block(extent: int, target: int) -> int:
    """Return the block length nearest to ``target`` that divides ``extent``, if any.

    Only lengths within a factor of two of ``target`` count; ``target`` itself is
    the answer where none of them divides.

    >>> even_block(20, 8), even_block(3, 8), even_block(37, 8)
    (10, 3, 8)
    """
    if extent <= target:
        return extent
    near = range(max(1, target // 2), 2 * target + 1)
    divisors = [size for size in near if extent % size == 0]
    return min(divisors, key=lambda size: (abs(size - target), -size), default=target)
