"""Rewrites of loop domains that later steps need, or that make these faster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import islpy as isl

from feinsum.transforms.primitives.schedule import Schedule

SET, PARAM = isl.dim_type.set, isl.dim_type.param


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
