"""Sets of loops that have nothing to do with each other, as sets of their own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import islpy as isl
import loopy as lp

__all__ = ["with_independent_sets"]

SET, PARAM, DIV = isl.dim_type.set, isl.dim_type.param, isl.dim_type.div


def with_independent_sets(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """The kernel in which loops share a set only if constraints relate them.

    isl's operations take time that grows with a high power of the loops of a set. A
    set that one instruction needs whole stays, for nothing is gained.

    Rewrite::

        {[e,i,f,j]: 0 <= e < n and 0 <= i < e and 0 <= f, j < 4}

        {[e,i]: 0 <= e < n and 0 <= i < e}, {[f]: 0 <= f < 4}, {[j]: 0 <= j < 4}
    """
    nests = [i.within_inames | i.reduction_inames() for i in kernel.instructions]
    domains: list[isl.BasicSet] = []
    for domain in kernel.domains:
        loops = domain.get_var_names(SET)
        is_needed_whole = any(nest.issuperset(loops) for nest in nests)
        domains += [domain] if is_needed_whole else _parts(domain)
    is_changed = len(domains) > len(kernel.domains)
    return kernel.copy(domains=domains) if is_changed else kernel


def _parts(domain: isl.BasicSet) -> list[isl.BasicSet]:
    """Sets whose product is the domain, each of loops that constraints relate."""
    parts = [_only(domain, loops) for loops in _related(domain)]
    # where one loop runs not at all, none does
    is_run = isl.BasicSet.universe(domain.get_space().params())
    for part in parts:
        is_run = is_run.intersect(part.params())
    is_run = is_run.remove_redundancies()
    parts = [
        _without_unused(part.intersect_params(is_run).remove_redundancies())
        for part in parts
    ]
    return parts if _is_product(domain, parts) else [domain]


def _related(domain: isl.BasicSet) -> Iterator[list[int]]:
    """The places of loops that constraints relate, directly or by others."""
    n_loops, n_divs = domain.dim(SET), domain.dim(DIV)
    places = [(SET, k) for k in range(n_loops)] + [(DIV, k) for k in range(n_divs)]
    groups = [{place} for place in range(len(places))]
    for constraint in domain.get_constraints():
        used = [
            place
            for place, (kind, k) in enumerate(places)
            if constraint.involves_dims(kind, k, 1)
        ]
        joined = set[int]().union(*(groups[place] for place in used))
        for place in joined:
            groups[place] = joined
    for place in range(n_loops):
        if min(groups[place]) == place:
            yield sorted(k for k in groups[place] if k < n_loops)


def _only(domain: isl.BasicSet, loops: list[int]) -> isl.BasicSet:
    """The loops at some places, without the constraints of all others."""
    ends = [-1, *loops, domain.dim(SET)]
    gaps = [(a + 1, b - a - 1) for a, b in pairwise(ends) if b - a > 1]
    for first, n in gaps:
        domain = domain.drop_constraints_involving_dims(SET, first, n)
    # what no constraint is left of costs nothing to project out
    for first, n in reversed(gaps):
        domain = domain.project_out(SET, first, n)
    return domain


def _without_unused(domain: isl.BasicSet) -> isl.BasicSet:
    """The set without parameters that it does not depend on."""
    for place in reversed(range(domain.dim(PARAM))):
        if not domain.involves_dims(PARAM, place, 1):
            domain = domain.project_out(PARAM, place, 1)
    return domain


def _is_product(domain: isl.BasicSet, parts: list[isl.BasicSet]) -> bool:
    """Whether nothing was lost with the constraints of other loops.

    That is so without existentially quantified variables, as no constraint is of the
    loops of two parts.
    """
    if not domain.dim(DIV):
        return True
    whole = isl.BasicSet.universe(domain.get_space())
    for part in parts:
        whole = isl.BasicSet.intersect(*isl.align_two(whole, part))
    whole, domain = isl.align_two(whole, domain)
    return bool(whole.is_equal(domain))
