"""Contraction of a pair of operands before the others."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import var

from feinsum.ir import Extent
from feinsum.raising import names_of
from feinsum.transforms.primitives.domains import intersect_sets
from feinsum.transforms.primitives.schedule import (
    Names,
    Schedule,
    make_scaled_sum,
    multiply_rules,
    with_row_values,
)


def merge_operands(
    schedule: Schedule, first: int, second: int
) -> tuple[Schedule, tuple[str, ...]]:
    """Replace the operands at two positions by their product, as one operand.

    The product sums over indices that no other term has. Rows that share both operands
    share the product.

    Rewrite, with the pair (D, u)::

        out[x,e,i] = sum((r,j), J(x,r,e)*D(r,i,j)*u(e,j))

        t(r,e,i) := sum(j', D(r,i,j')*u(e,j'))
        out[x,e,i] = sum(r, J(x,r,e)*t(r,e,i))

    Returns:
        The schedule, and the names of the new operands, at the last position.
    """
    positions = [k for k in range(len(schedule.terms)) if k not in (first, second)]
    outside = set(schedule.output).union(*(schedule.terms[k] for k in positions))
    joint = dict.fromkeys(schedule.terms[first] + schedule.terms[second])
    output = tuple(index for index in joint if index in outside)
    summed = tuple(index for index in joint if index not in outside)
    products: dict[tuple[str, str], str] = {}
    rows = []
    for row in schedule.rows:
        pair = row[first], row[second]
        if pair not in products:
            schedule, products[pair] = _with_product(schedule, pair, output, summed)
        rows.append((*(row[k] for k in positions), products[pair]))
    schedule = with_row_values(replace(schedule, rows=tuple(rows)))
    unused = [schedule.inames[index] for index in summed]
    t_unit = lp.remove_unused_inames(schedule.t_unit, unused)
    return schedule.with_unit(t_unit), tuple(products.values())


def _with_product(
    schedule: Schedule, pair: tuple[str, str], output: Names, summed: Names
) -> tuple[Schedule, str]:
    """Add the rule ``t(kept) := sum(summed, first*second)``."""
    points, inames = {}, []
    for index in summed:
        iname = schedule.fresh(f"{schedule.inames[index]}_sum")
        schedule = _with_iname(
            schedule, iname, schedule.extents[index], neighbour=schedule.inames[index]
        )
        points[index] = var(iname)
        inames.append(iname)
    arguments = schedule.generate_arguments(output)
    points.update(zip(output, map(var, arguments), strict=True))
    body = make_scaled_sum(1, tuple(inames), multiply_rules(schedule, pair, points))
    name = schedule.fresh("_".join(pair))
    rule = schedule.fresh(f"{name}_rule")
    schedule = schedule.with_rule(rule, arguments, body)
    dtype = np.dtype(np.result_type(*(schedule.dtypes[n] for n in pair)))
    return replace(
        schedule,
        rules=constantdict({**schedule.rules, name: rule}),
        spans=constantdict({**schedule.spans, name: output}),
        dtypes=constantdict({**schedule.dtypes, name: dtype}),
    ), name


def _with_iname(
    schedule: Schedule, iname: str, extent: Extent, *, neighbour: str
) -> Schedule:
    """Add an iname to the domain of another one.

    Loopy's ``precompute`` requires the inames of a footprint in one domain.
    """
    params = ", ".join(sorted(names_of(extent)))
    bounds = isl.BasicSet(f"[{params}] -> {{ [{iname}] : 0 <= {iname} < {extent} }}")
    domains = list(schedule.kernel.domains)
    home = schedule.kernel.get_home_domain_index(neighbour)
    domains[home] = intersect_sets(domains[home], bounds)
    return schedule.with_kernel(domains=domains)
