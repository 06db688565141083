"""Loops that are split or peeled, and the domains of loops.

Peeling gives the remainder of a split loop a nest of its own.

Source: Loopy's ``split_iname``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

import islpy as isl
import loopy as lp

from feinsum.ir import Extent
from feinsum.raising import names_of
from feinsum.transforms.primitives.schedule import Names, Schedule

SET, PARAM = isl.dim_type.set, isl.dim_type.param


def make_domain(inames: Sequence[str], *conditions: str) -> isl.BasicSet:
    """Return the domain of inames for which conditions in isl's syntax hold.

    All other names in the conditions are outer loops or arguments: parameters of the
    domain.

    >>> make_domain(["i"], "0 <= i < N")
    BasicSet("[N] -> { [i] : 0 <= i < N }")
    """
    text = " and ".join(conditions)
    params = {*re.findall(r"[A-Za-z_]\w*", text)} - {*inames, "and"}
    return isl.BasicSet(
        f"[{', '.join(sorted(params))}] -> {{ [{', '.join(inames)}] : {text} }}"
    )


def intersect_sets(first: isl.BasicSet, second: isl.BasicSet) -> isl.BasicSet:
    """Return the intersection over the union of both sets of inames."""
    first, second = isl.align_two(first, second)
    return first & second


def join_domains(schedule: Schedule) -> Schedule:
    """Put all inames of the nest in one domain, as Loopy's ``precompute`` requires.

    Rewrite::

        { [i] : 0 <= i < 20 }    { [j] : 0 <= j < 20 }

        { [i, j] : 0 <= i, j < 20 }
    """
    kernel = schedule.kernel
    homes = {kernel.get_home_domain_index(i) for i in schedule.inames.values()}
    if len(homes) == 1:
        return schedule
    inames = kernel.all_inames()
    chosen = [_without_unused_params(kernel.domains[k], inames) for k in sorted(homes)]
    other_domains = [d for k, d in enumerate(kernel.domains) if k not in homes]
    return schedule.with_kernel(
        domains=[reduce(intersect_sets, chosen), *other_domains]
    )


def hoist_inames(schedule: Schedule, inames: Sequence[str]) -> Schedule:
    """Move each outer iname to a domain of its own.

    The remaining inames take it as a parameter, so a constraint on one inner nest no
    longer limits the outer inames of all nests.

    Rewrite::

        { [g, s] : ... }

        { [g] : ... }    [g] -> { [s] : ... }
    """
    for iname in inames:
        home = schedule.kernel.get_home_domain_index(iname)
        domains = list(schedule.kernel.domains)
        domain = domains[home]
        if domain.dim(SET) == 1:
            continue
        _, axis = domain.get_var_dict()[iname]
        outer = domain.project_out_except([iname], [SET])
        inner = domain.move_dims(PARAM, domain.dim(PARAM), SET, axis, 1)
        domains[home : home + 1] = [outer, inner]
        schedule = schedule.with_kernel(domains=domains)
    return schedule


def separate_inames(schedule: Schedule, inames: Collection[str]) -> Schedule:
    """Move inames on which no others depend to a domain of their own.

    Rewrite, for the iname t::

        { [s, t] : 0 <= s < 4 and 0 <= t < 5 }

        { [s] : 0 <= s < 4 }    { [t] : 0 <= t < 5 }
    """
    home = schedule.kernel.get_home_domain_index(min(inames))
    domains = list(schedule.kernel.domains)
    domain = domains[home]
    remaining = frozenset(domain.get_var_names(SET)) - frozenset(inames)
    domains[home : home + 1] = [
        domain.project_out_except(names, [SET])
        for names in (remaining, frozenset(inames))
    ]
    return schedule.with_kernel(domains=domains)


def factor_domains(schedule: Schedule, outer: str, guards: Collection[str]) -> Schedule:
    """Split every domain into factors over inames that share no constraint.

    The loops do not change. Loopy's code generator works on whole domains, and takes a
    fraction of the time for small ones.

    Rewrite::

        { [i, j] : 0 <= i, j < 20 }

        { [i] : 0 <= i < 20 }    { [j] : 0 <= j < 20 }

    Args:
        schedule: the schedule.
        outer: the iname of the grid that the whole domain may bound.
        guards: inames whose factors keep that bound; a domain that would lose it is
            not split.
    """
    kernel = schedule.kernel
    domains: list[isl.BasicSet] = []
    for domain in kernel.domains:
        factors = [
            _project_factor(
                domain, group, outer if group & set(guards) else None, kernel
            )
            for group in _group_coupled(domain)
        ]
        implied = _find_outer_bounds(kernel.domains, domain)
        for factor in factors:
            implied = intersect_sets(implied, _project_on_params(factor))
        implied, needed = isl.align_two(implied, _project_on_params(domain))
        domains += factors if implied.is_subset(needed) else [domain]
    bound = {name for domain in domains for name in domain.get_var_names(SET)}
    return schedule.with_kernel(
        domains=[_without_unused_params(domain, bound) for domain in domains]
    )


def _project_factor(
    domain: isl.BasicSet, group: set[str], outer: str | None, kernel: object
) -> isl.BasicSet:
    """Return the domain of ``group``, with its bounds of ``outer`` if given."""
    projected = domain.project_out_except(sorted(group), [SET])
    (factor,) = projected.to_set().gist_params(domain.params()).get_basic_sets()
    names = domain.get_var_names(PARAM)
    if outer not in names:
        return factor
    bounds = domain.project_out_except([], [SET])
    inames = kernel.all_inames()  # type: ignore[attr-defined]
    for name in names:
        _, axis = bounds.get_var_dict()[name]
        if name in inames and name != outer:
            bounds = bounds.project_out(PARAM, axis, 1)
    return intersect_sets(factor, bounds)


def _project_on_params(domain: isl.BasicSet) -> isl.Set:
    """Return the constraints on parameters that a domain implies, as a set."""
    params = domain.params()
    if isinstance(params, isl.BasicSet):
        params = isl.Set.from_basic_set(params)
    return isl.Set.from_params(params)


def _find_outer_bounds(domains: Sequence[isl.BasicSet], inner: isl.BasicSet) -> isl.Set:
    """Return the constraints of outer domains on the parameters of ``inner``."""
    params = set(inner.get_var_names(PARAM))
    bounds = isl.Set.universe(_project_on_params(inner).space)
    for domain in domains:
        names = domain.get_var_names(SET)
        if set(names) <= params:
            outer = domain.move_dims(PARAM, domain.dim(PARAM), SET, 0, len(names))
            bounds = intersect_sets(bounds, _project_on_params(outer))
    return bounds


def _group_coupled(domain: isl.BasicSet) -> list[set[str]]:
    """Group inames that share a constraint."""
    names = set(domain.get_var_names(SET))
    groups = [{name} for name in sorted(names)]
    for constraint in domain.get_constraints():
        used = set(constraint.get_coefficients_by_name()) & names
        for k in range(domain.dim(isl.dim_type.div)):
            used |= _find_inames_of_div(domain, k)
        joined = used.union(*(group for group in groups if group & used))
        groups = [group for group in groups if not group & used]
        groups += [joined] if joined else []
    return groups


def _find_inames_of_div(domain: isl.BasicSet, k: int) -> set[str]:
    div = domain.get_div(k)
    return {
        name
        for axis, name in enumerate(domain.get_var_names(SET))
        if not div.get_coefficient_val(isl.dim_type.in_, axis).is_zero()
    }


def _without_unused_params(
    domain: isl.BasicSet, inames: Collection[str]
) -> isl.BasicSet:
    """Drop the outer inames that the domain does not depend on."""
    for name in domain.get_var_names(PARAM):
        _, axis = domain.get_var_dict()[name]
        if name in inames and not domain.involves_dims(PARAM, axis, 1):
            domain = domain.project_out(PARAM, axis, 1)
    return domain


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
    used = {
        iname
        for insn_id in copies
        for iname in schedule.kernel.id_to_insn[insn_id].reduction_inames()
        | schedule.kernel.id_to_insn[insn_id].within_inames
    }
    inames = sorted(used - set(shared))
    schedule, renamed = with_own_inames(schedule, copies, inames, "remainder")
    schedule = separate_inames(schedule, tuple(renamed.values()))
    left = renamed[block.inner]
    inside = f"{block.position()} < {full}"
    beyond = f"{block.position(left)} >= {full}"
    # the order of parameters shows in the kernel
    params = ", ".join([block.outer, *sorted(names_of(extent))])
    for iname, condition in ((block.inner, inside), (left, beyond)):
        allowed = isl.BasicSet(f"[{params}] -> {{ [{iname}] : {condition} }}")
        schedule = constrain_domain(schedule, iname, allowed)
    return schedule


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


def with_own_inames(
    schedule: Schedule, instructions: Names, inames: Collection[str], suffix: str
) -> tuple[Schedule, dict[str, str]]:
    """Give instructions their own copies of inames; return the copy of each."""
    copies = {iname: schedule.fresh(f"{iname}_{suffix}") for iname in inames}
    if not copies:
        return schedule, copies
    t_unit = lp.duplicate_inames(
        schedule.t_unit,
        tuple(copies),
        new_inames=list(copies.values()),
        within=_match_any(instructions),
    )
    return schedule.with_unit(t_unit), copies


def constrain_domain(schedule: Schedule, iname: str, allowed: isl.BasicSet) -> Schedule:
    """Intersect the domain of ``iname`` with a set, which may have other inames."""
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
